"""Hostile root manifests with valid checksums are refused, or the sharded index is read as usual."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import citadel
from citadel.errors import CorruptIndexError, UnknownFormatError
from citadel.index.shard import shard_index
from tests.corrupt import indexes
from tests.corrupt.test_manifests import JUNK, paths, put, without
from tests.index.quick import Quick

LIMIT = 400  # characters of a message


@pytest.fixture(params=["bm25", "pq2", "long"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    with indexes.create(tmp_path / "idx", request.param) as index:
        indexes.add(index, request.param, range(30))
        shard_index(index.commit()._snapshot, Quick(tmp_path / "root"), 2)
    return tmp_path / "root"


def read(root: Path) -> Any:
    return json.loads((root / "root.00000001").read_bytes().splitlines()[0])


def ask(root: Path, line: bytes) -> list[str]:
    (root / "root.00000001").write_bytes(indexes.sealed(line))
    index = citadel.Index.open(root)
    searcher = index.searcher()
    if index.settings.router == "bm25":
        return searcher.search("ant bee", 40).ids
    return searcher.search_vectors(semantic=[0.5] * indexes.SEMANTIC, k=40).ids


def test_every_field_replaced_by_junk(root: Path) -> None:
    good = read(root)
    expected, num_refused = ask(root, json.dumps(good).encode()), 0
    cases = [put(good, at, junk) for at in paths(good) for junk in JUNK]
    for data in [*cases, *(without(good, at) for at in paths(good))]:
        try:
            ids = ask(root, json.dumps(data).encode())
            refused, message = False, ""
        except citadel.CitadelError as error:
            refused, message = True, str(error)
            # only an analyser or a model of another name is not called damage
            is_typed = isinstance(error, CorruptIndexError) or data["settings"] != good["settings"]
        if refused:
            num_refused += 1
            assert is_typed and len(message) < LIMIT, data
        else:
            assert set(ids) <= set(expected)
    assert num_refused > 300


@pytest.mark.parametrize(
    "name",
    ["../x", "/etc", "..", ".", "", "shard-" + "0" * 32 + "/../..", "shard-" + "0" * 31 + "٣",
     "shard-" + "0" * 32 + "\n", "LOCK", "x" * 100_000],
)  # fmt: skip
def test_names_that_leave_the_folder_are_refused(name: str, root: Path) -> None:
    with pytest.raises(CorruptIndexError) as caught:
        ask(root, json.dumps(put(read(root), ("shards", 0, "name"), name)).encode())
    assert (caught.value.file, caught.value.section) == ("root.00000001", "root manifest")
    assert len(str(caught.value)) < LIMIT


@pytest.mark.parametrize(
    "line",
    [b"", b"[]", b"null", b"{}", b"7", b"\xff\xfe", b"{" * 100_000, b"[" * 100_000, b'{"format": NaN}',
     b" " * (2 << 20)],
)  # fmt: skip
def test_invalid_lines_are_refused(line: bytes, root: Path) -> None:
    with pytest.raises(CorruptIndexError):
        ask(root, line)


def test_shards_that_do_not_belong_together(root: Path) -> None:
    good = read(root)
    first, second = good["shards"]
    for shards in ([first, first], [first, {**second, "name": first["name"]}], [], [first] * 1025):
        with pytest.raises(CorruptIndexError):
            ask(root, json.dumps({**good, "shards": shards}).encode())
    swapped = [{**first, "order": second["order"]}, {**second, "order": first["order"]}]
    with pytest.raises(CorruptIndexError):
        ask(root, json.dumps({**good, "shards": swapped}).encode())
    exchanged = {**good, "shards": [second, first]}
    ask(root, json.dumps(exchanged).encode())
    with pytest.raises(CorruptIndexError, match="another shard"):
        citadel.Index.open(root).check(deep=True)


def test_a_newer_format_is_named(root: Path) -> None:
    with pytest.raises(UnknownFormatError, match="format 9"):
        ask(root, json.dumps({**read(root), "format": 9}).encode())


def test_flipped_bits_are_found(root: Path) -> None:
    good = (root / "root.00000001").read_bytes()
    for position in range(len(good)):
        (root / "root.00000001").write_bytes(
            good[:position] + bytes([good[position] ^ 1]) + good[position + 1 :]
        )
        with pytest.raises(CorruptIndexError):
            citadel.Index.open(root)
