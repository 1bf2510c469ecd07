"""A reader written from docs/reference/file-format.md reads the same postings."""

from __future__ import annotations

import hashlib
import json
import re
import sqlite3
import struct
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import citadel
from tests.filter.worlds import small_dictionaries
from tests.index import stranger
from tests.index.quick import Quick

ROOT = Path(__file__).parents[2]


def test_reader_knows_the_documented_sections() -> None:
    """The reader has every "number NAME" of the tables in docs/reference/file-format.md, and no other."""
    text = (ROOT / "docs" / "reference" / "file-format.md").read_text()
    documented = {
        int(number): name for number, name in re.findall(r"\b(\d{1,2}) ([A-Z]+(?:_[A-Z]+)*)\b", text)
    }
    assert {number: name for number, name in documented.items() if number in stranger.NAMES} == stranger.NAMES


@pytest.fixture
def vectors(tmp_path: Path) -> Path:
    """300 documents: one posting or none with key 9; every third has two with key 2."""
    random = np.random.default_rng(5)
    fields = {"lexical": citadel.Field(3, "int8"), "semantic": citadel.Field(2, "int8")}
    with citadel.Index.create(Quick(tmp_path / "i"), fields=fields, fingerprint="by hand") as index:
        for n in range(300):
            keys = [9] * (n % 7 != 0) + [2, 2] * (n % 3 == 0)
            document: dict[str, Any] = {
                "id": f"d{n}",
                "keys": keys,
                "weights": [0.5] * len(keys),
                "text": f"text {n}",
            }
            document |= {"vectors": random.normal(size=(len(keys), 3)).round(3), "semantic": [n, -1.0]}
            index.add_vectors([document])
        index.commit()
    return tmp_path / "i"


def segment(folder: Path) -> stranger.File:
    return stranger.File(next(folder.glob("seg-*")))


def test_manifest(vectors: Path) -> None:
    newest = max(vectors.glob("gen.*"))
    line, check, end = newest.read_bytes().split(b"\n")
    assert (check.decode(), end) == (f"{stranger.crc32c(line):08x}", b"")
    data = json.loads(line)
    assert set(data) == {
        "format", "index", "generation", "settings", "segments",
        "deletions", "deleted", "codebook", "counts", "build", "graphs",
    }  # fmt: skip
    (record,) = data["segments"]
    assert (record["documents"], record["postings"]) == (300, 257 + 200)
    for part in (record["file"], record["documents_file"]):
        content = (vectors / part["name"]).read_bytes()
        assert (len(content), stranger.crc32c(content)) == (part["length"], part["crc"])


def test_lists(vectors: Path) -> None:
    file = segment(vectors)
    assert (file.kind, file.version, file.meta["kind"], file.meta["documents"]) == (1, 2, "vectors", 300)
    assert file.numbers("KEYS", "I") == (2, 9)
    two, nine = stranger.lists(file)
    assert two == [n for n in range(300) if n % 3 == 0 for _ in range(2)]
    assert nine == [n for n in range(300) if n % 7]
    assert set(file.section("WEIGHTS")) == {25}  # ⌈0.5 / 0.02⌉
    assert file.section("PACKED_DOCUMENTS")[-8:] == bytes(8)


def test_vectors(vectors: Path) -> None:
    """Stored vectors are w'·v in int8, within half a step."""
    file, random = segment(vectors), np.random.default_rng(5)
    given: dict[int, list[np.ndarray]] = {2: [], 9: []}
    for n in range(300):
        keys = [9] * (n % 7 != 0) + [2, 2] * (n % 3 == 0)
        for key, row in zip(keys, random.normal(size=(len(keys), 3)).round(3), strict=True):
            given[key].append(row * 0.5)
    stored, scales = np.array(stranger.int8_vectors(file, 3)), np.array(file.numbers("SCALES", "e"))
    expected = np.array(given[2] + given[9])
    assert (np.abs(stored - expected) <= 0.5001 * scales[:, None] + 1e-6).all()
    semantic = stranger.int8_vectors(file, 2, "SEMANTIC_")
    assert [round(row[0]) for row in semantic[:3]] == [0, 1, 2]


def test_ids(vectors: Path) -> None:
    file = segment(vectors)
    names = stranger.texts(file, "ID_OFFSETS", "ID_BYTES")
    assert names == [f"d{n}" for n in range(300)]
    hashes, numbers = file.numbers("ID_HASHES", "Q"), file.numbers("ID_NUMBERS", "I")
    assert list(hashes) == sorted(hashes)
    for hashed, number in zip(hashes, numbers, strict=True):
        digest = hashlib.blake2b(names[number].encode(), digest_size=8).digest()
        assert int.from_bytes(digest, "little") == hashed


def test_documents(vectors: Path) -> None:
    (path,) = vectors.glob("docs-*")
    connection = sqlite3.connect(f"file:{path}?immutable=1", uri=True)
    [row] = connection.execute("SELECT index_id, file_id, format FROM citadel")
    file = segment(vectors)
    assert row == (file.index_id, path.name[5:-7], 2)
    for number, *texts, crc in connection.execute(
        "SELECT number, id, title, text, metadata, crc FROM documents"
    ):
        assert crc == stranger.crc32c("\0".join([str(number), *texts]).encode())
    connection.close()


def test_bm25_and_tombstones(tmp_path: Path) -> None:
    with citadel.Index.create(Quick(tmp_path / "i"), analyser="plain") as index:
        index.add(
            [
                {"id": "a", "text": "bee ant bee"},
                {"id": "b", "text": "ant"},
                {"id": "c", "text": "cat bee bee bee bee"},
            ]
        )
        index.add([{"id": f"x{n}", "text": "ox"} for n in range(8)])
        index.commit().delete(["a"])
        index.commit()
    file = segment(tmp_path / "i")
    assert stranger.texts(file, "TERM_OFFSETS", "TERM_BYTES") == ["ant", "bee", "cat", "ox"]
    assert stranger.lists(file)[:3] == [[0, 1], [0, 2], [2]]
    assert stranger.counts(file)[:5] == [1, 1, 2, 4, 1]
    assert file.numbers("LENGTHS", "I") == (3, 1, 5, *[1] * 8)
    tombstones = stranger.File(next((tmp_path / "i").glob("del-*")))
    assert (tombstones.kind, tombstones.meta, tombstones.section("SEGMENTS").hex()) == (
        2,
        {"documents": 1},
        file.file_id,
    )
    assert (tombstones.numbers("DELETED_STARTS", "Q"), tombstones.numbers("DELETED_DOCUMENTS", "I")) == (
        (0, 1),
        (0,),
    )
    assert (tombstones.numbers("TERM_RANKS", "I"), tombstones.numbers("TERM_COUNTS", "I")) == ((0, 1), (1, 1))
    assert tombstones.numbers("REMOVED_LENGTHS", "Q") == (3,)


def test_sections_are_aligned_and_padded_with_zeros(vectors: Path) -> None:
    file = segment(vectors)
    extents = sorted(file.extents.values(), key=lambda extent: extent.offset)
    assert [extent.offset % 64 for extent in extents] == [0] * len(extents)
    end = 64
    for extent in extents:
        assert set(file.data[end : extent.offset]) <= {0} and extent.offset - end < 64
        end = extent.end


def test_columns(tmp_path: Path) -> None:
    """Every kind of column, dense, with gaps and sparse; `url` has too many strings for a dictionary."""
    rows: list[dict[str, Any]] = [
        {
            "year": 1900 + n,
            "price": n / 4,
            "lang": ("de", "é")[n % 2],
            "tags": ["a", "b", "a"][: n % 4],
            "url": f"x://{n}",
            "mixed": n if n % 2 else "even",
        }
        | ({"open": n % 4 == 0} if n % 2 == 0 else {})
        | ({"rare": -n, "day": "1905-06-30", "nested": {"a": 1}} if n % 9 == 4 else {})
        for n in range(40)
    ]
    with small_dictionaries(30), citadel.Index.create(Quick(tmp_path / "i"), analyser="plain") as index:
        index.add({"id": f"d{n}", "text": "ant"} | row for n, row in enumerate(rows))
        index.commit()
    file = stranger.File(next((tmp_path / "i").glob("cols-*")))
    assert (file.kind, file.version) == (4, 2)
    found = stranger.columns(file)
    for name in ("year", "price", "lang", "tags", "open", "rare", "day"):
        assert found[name] == [row.get(name) for row in rows], name
    for row, url in zip(rows, found["url"], strict=True):
        digest = hashlib.blake2b(row["url"].encode(), digest_size=8).digest()
        assert url.hashed == int.from_bytes(digest, "little")
    for name in ("mixed", "nested"):
        assert [value is None for value in found[name]] == [name not in row for row in rows]
    head = json.loads(file.section("COLUMN_FIELDS"))
    day = next(field for field in head["fields"] if field["name"] == "day")["arrays"]
    _, start, count = day["instants"]
    (instant,) = struct.unpack_from(f"<{count}q", file.section("COLUMN_DATA"), start)
    assert instant == datetime(1905, 6, 30, tzinfo=UTC).timestamp() * 1_000_000


def test_postings_of_lists(tmp_path: Path) -> None:
    tags = [["b", "a"], [], ["b", "b"], ["a"]]
    with citadel.Index.create(Quick(tmp_path / "i"), analyser="plain") as index:
        index.add({"id": f"d{n}", "text": "ant", "tags": row} for n, row in enumerate(tags))
        index.commit()
    file = stranger.File(next((tmp_path / "i").glob("cols-*")))
    arrays = json.loads(file.section("COLUMN_FIELDS"))["fields"][0]["arrays"]
    numbers = {
        role: struct.unpack_from(f"<{count}{stranger.CODES[kind]}", file.section("COLUMN_DATA"), start)
        for role, (kind, start, count) in arrays.items()
    }
    assert bytes(numbers["entries"]) == b"ab"
    assert (numbers["posting_starts"], numbers["posting_lists"]) == ((0, 2, 4), (0, 3, 0, 2))
