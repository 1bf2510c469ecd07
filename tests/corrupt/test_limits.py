"""Files made to exhaust memory are refused, or read within their size plus 64 MB."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

import citadel
from citadel.errors import InputError, ResourceError
from citadel.index.checksum import crc32c
from citadel.index.container import FileRecord
from citadel.index.document_limits import MAX_METADATA_DEPTH, MAX_METADATA_VALUES, MAX_TEXT, DecodingCost
from citadel.index.manifest import MAX_BYTES, MAX_SEGMENTS
from citadel.index.storage import FolderStorage
from tests.corrupt import indexes, rewrite
from tests.corrupt.test_contents import cheap_copy
from tests.corrupt.visitor import ROOM, Visit, complaint, visit
from tests.index.quick import Quick

Whole = Callable[[str], Path]
KIND = "bm25"
FOX = "\N{FOX FACE}"


def with_row(source: Path, folder: Path, **columns: str) -> Path:
    """A copy of an index with other columns in document 5 and a valid checksum."""
    path = folder / min(source.glob("docs-*")).name
    cheap_copy(source, folder, path.name)
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode=OFF")
        names = ("number", "id", "title", "text", "metadata")
        row = connection.execute(f"SELECT {', '.join(names)} FROM documents WHERE number = 5").fetchone()
        changed = dict(zip(names, row, strict=True)) | columns
        crc = crc32c("\0".join(str(changed[name]) for name in names).encode())
        connection.execute(
            "UPDATE documents SET title = ?, text = ?, metadata = ?, crc = ? WHERE number = 5",
            (changed["title"], changed["text"], changed["metadata"], crc),
        )
    data = path.read_bytes()
    rewrite.enter(folder, FileRecord(path.name, len(data), crc32c(data)))
    if "metadata" in columns:
        without_metadata_columns(folder)
    return folder


def without_metadata_columns(folder: Path) -> None:
    """As in format 1: filters read the documents."""
    data = indexes.manifest(folder)
    for segment in data["segments"]:
        segment.update(columns_file=None, has_columns=False)
    indexes.write_manifest(folder, data)


def size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir())


def visited(folder: Path, source: Path) -> Visit:
    [result] = visit([folder], KIND, "native", source, room=size_of(folder) + ROOM)
    assert complaint(result) is None
    return result


# ---- documents ---------------------------------------------------------------------------------------------

HOSTILE_ROWS = {
    "24 MB of nested metadata": {"metadata": '{"a": [' + "[]," * 8_000_000 + "0]}"},
    "16 MB of empty objects": {"metadata": '{"a": [' + "{}," * 5_500_000 + "0]}"},
    "100,000 levels of metadata": {"metadata": '{"a": ' + "[" * 100_000 + "]" * 100_000 + "}"},
    "an emoji in 60 MB of ASCII": {"text": "a" * 60_000_000 + FOX},
    "an emoji in a title of 30 MB": {"title": "a" * 30_000_000 + FOX},
    "70 MB of ASCII": {"text": "a" * 70_000_000},
}


@pytest.mark.parametrize("case", HOSTILE_ROWS)
def test_hostile_row_is_refused_within_64_mb(case: str, whole: Whole, tmp_path: Path) -> None:
    folder = with_row(whole(KIND), tmp_path / "copy", **HOSTILE_ROWS[case])
    result = visited(folder, whole(KIND))
    assert (result.error, result.section) == ("CorruptIndexError", "documents")


LARGE_ROWS = {
    "60 MB of ASCII": {"text": "a" * 60_000_000},
    "an emoji in 7.9 MB of ASCII": {"text": "a" * 7_900_000 + FOX},
    "47 MB of Chinese": {"text": "\N{CJK UNIFIED IDEOGRAPH-6F22}" * 15_900_000},
    "120,000 values of metadata": {"metadata": '{"a": [' + '{"k":1},' * 40_000 + "0]}"},
}


@pytest.mark.parametrize("case", LARGE_ROWS)
def test_large_row_is_read_within_64_mb(case: str, whole: Whole, tmp_path: Path) -> None:
    """The limits admit all documents that a writer accepts."""
    folder = with_row(whole(KIND), tmp_path / "copy", **LARGE_ROWS[case])
    assert visited(folder, whole(KIND)).error is None


def test_long_and_short_rows_are_read_in_the_requested_order(tmp_path: Path) -> None:
    texts = {f"d{number}": f"text {number} " * (5000 if number % 50 == 7 else 1) for number in range(200)}
    with citadel.Index.create(Quick(tmp_path / "index"), analyser="plain") as index:
        index.add({"id": id, "text": text} for id, text in texts.items())
        index.commit()
        store = index.searcher().snapshot.segments[0].store
        order = [150, 7, 3, 199, 57, 0, *range(20, 180)]
        assert [document.text for document in store.get(order)] == [texts[f"d{number}"] for number in order]


def nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


REFUSED_DOCUMENTS: dict[str, tuple[Callable[[], dict[str, Any]], str]] = {
    "too many values": (lambda: {"text": "x", "tags": [0] * MAX_METADATA_VALUES}, "more than 131,072 values"),
    "too much metadata": (lambda: {"text": "x", "note": "é" * (3 << 20)}, "more than 4 MiB"),
    "too deep": (lambda: {"text": "x", "tags": nested(MAX_METADATA_DEPTH)}, "nested deeper than 64 levels"),
    "too wide a text": (lambda: {"text": "a" * (MAX_TEXT // 8) + FOX}, "takes more than 64 MB of memory"),
}


@pytest.mark.parametrize("case", REFUSED_DOCUMENTS)
def test_writer_refuses_what_could_not_be_read_back(case: str, tmp_path: Path) -> None:
    make, message = REFUSED_DOCUMENTS[case]
    with citadel.Index.create(Quick(tmp_path / "index"), analyser="plain") as index:
        with pytest.raises(InputError, match=message) as caught:
            index.add([{"id": "large", **make()}])
        assert (
            "'large'" in str(caught.value) or case == "too deep"
        )  # the corpus reader checks the depth first
        assert index.add([{"id": "small", "text": "x"}]) == 1


def test_metadata_at_the_limits_round_trip(tmp_path: Path) -> None:
    fields = {"deep": nested(MAX_METADATA_DEPTH - 1), "[": '"[{' * 100, "many": [0] * 100_000}
    with citadel.Index.create(Quick(tmp_path / "index"), analyser="plain") as index:
        index.add([{"id": "d1", "text": "x", **fields}])
        document = index.commit().get("d1")
        assert document is not None and document.metadata == fields
        index.merge().check(deep=True)


@pytest.mark.parametrize("text", ["", "abc", "é" * 9, "aé€" * 4, "漢字", "a" * 50 + FOX, "ÿ" * 3])
def test_decoding_cost_is_known_before_decoding(text: str) -> None:
    widths = [1 if letter < "\u0100" else 2 if letter < "\U00010000" else 4 for letter in text]
    expected = len(text) * max(widths, default=1) * (1 if text.isascii() else 2)
    assert DecodingCost().add(text.encode()) == expected
    cost = DecodingCost()  # in pieces that cut characters
    assert [0, *(cost.add(text.encode()[at : at + 1]) for at in range(len(text.encode())))][-1] == expected


def test_schema_of_many_tables_is_refused_unread(whole: Whole, tmp_path: Path) -> None:
    source = whole(KIND)
    path = tmp_path / "copy" / min(source.glob("docs-*")).name
    folder = cheap_copy(source, tmp_path / "copy", path.name)
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.executescript("PRAGMA journal_mode=OFF; PRAGMA synchronous=OFF; BEGIN")
        for number in range(300):
            connection.execute(f"CREATE TABLE t{number}({', '.join(f'c{n}' for n in range(1500))})")
        connection.execute("COMMIT")
    data = path.read_bytes()
    rewrite.enter(folder, FileRecord(path.name, len(data), crc32c(data)))
    opened: list[str] = []
    real = FolderStorage.database

    def database(self: FolderStorage, name: str) -> sqlite3.Connection:
        opened.append(name)
        return real(self, name)

    with (
        mock.patch.object(FolderStorage, "database", database),
        pytest.raises(citadel.CorruptIndexError) as caught,
    ):
        citadel.Index.open(folder)
    assert (caught.value.file, caught.value.section) == (path.name, "schema")
    assert path.name not in opened


# ---- manifests ---------------------------------------------------------------------------------------------


def test_manifest_full_of_unknown_fields(whole: Whole, tmp_path: Path) -> None:
    for number, size in enumerate((900_000, 15_000_000)):
        folder = cheap_copy(whole(KIND), tmp_path / str(number))
        good = indexes.manifest_path(folder).read_bytes().split(b"\n")[0]
        extra = b', "more": [' + b"[]," * (size // 3) + b"0]}"
        indexes.manifest_path(folder).write_bytes(indexes.sealed(good[:-1] + extra))
        result = visited(folder, whole(KIND))
        assert (result.error, result.section) == ("CorruptIndexError", "manifest")
        assert (
            f"at most {MAX_BYTES}" in result.message if number else "unknown field 'more'" in result.message
        )


@pytest.mark.parametrize(
    "at",
    [
        (),
        ("settings",),
        ("settings", "semantic"),
        ("segments", 0),
        ("segments", 0, "file"),
        ("deletions",),
        ("build",),
    ],
)
def test_unknown_field_is_refused_at_every_level(at: tuple[Any, ...], whole: Whole, tmp_path: Path) -> None:
    folder = cheap_copy(whole("int8"), tmp_path / "copy")
    data = indexes.manifest(whole("int8"))
    data["build"] = {"source": "", "position": 0, "crc": 0, "line": 0, "finished": True, "options": {}}
    indexes.write_manifest(folder, data)
    assert len(citadel.Index.open(folder))
    part = data
    for name in at:
        part = part[name]
    part["surprise"] = 1
    indexes.write_manifest(folder, data)
    with pytest.raises(citadel.CorruptIndexError, match="unknown field 'surprise'"):
        citadel.Index.open(folder)


def test_many_segments(whole: Whole, tmp_path: Path) -> None:
    """As many as a writer may leave open within the bound; 2,200 are refused."""
    folder = tmp_path / "many"
    with (
        mock.patch("citadel.index.commit.choose_merge", return_value=slice(0, 0)),
        citadel.Index.create(Quick(folder), analyser="plain") as index,
    ):
        for number in range(MAX_SEGMENTS):
            index.add([indexes.text_of(number)])
            index.commit()
        index.add([{"id": "one more", "text": "owl"}])
        with pytest.raises(ResourceError, match="run `citadel merge` first"):
            index.commit()
    for old in sorted(folder.glob("gen.*"))[:-1]:
        old.unlink()
    assert visited(folder, whole(KIND)).error is None
    data = indexes.manifest(folder)
    data["segments"] = data["segments"] * 11
    indexes.write_manifest(folder, data)
    result = visited(folder, whole(KIND))
    assert result.error == "CorruptIndexError" and "2200 segments, at most 200" in result.message


@pytest.mark.parametrize(("kind", "prefix"), [("bm25", "seg-"), ("pq2", "codebook-")])
def test_huge_meta_section_is_refused_unparsed(kind: str, prefix: str, whole: Whole, tmp_path: Path) -> None:
    path = min(whole(kind).glob(f"{prefix}*"))
    folder = cheap_copy(whole(kind), tmp_path / "copy", path.name)
    rewrite.tamper(folder, prefix, {"META": b'{"a": [' + b"[]," * 5_000_000 + b"0]}"})
    [result] = visit([folder], kind, "native", whole(kind), room=size_of(folder) + ROOM)
    assert (result.error, result.section) == ("CorruptIndexError", "META")
    assert "at most 65536" in result.message


def test_too_long_id_is_refused(whole: Whole, tmp_path: Path) -> None:
    path = min(whole(KIND).glob("seg-*"))
    folder = cheap_copy(whole(KIND), tmp_path / "copy", path.name)
    offsets = rewrite.sections(path)["ID_OFFSETS"]
    count, size = len(offsets) // 8 - 1, 40_000_000
    starts = b"".join(value.to_bytes(8, "little") for value in [0, *[size] * count])
    rewrite.tamper(folder, "seg-", {"ID_OFFSETS": starts, "ID_BYTES": b"a" * (size - 4) + FOX.encode()})
    result = visited(folder, whole(KIND))
    assert (result.error, result.section) == ("CorruptIndexError", "ID_OFFSETS")
