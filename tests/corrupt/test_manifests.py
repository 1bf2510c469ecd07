"""Hostile manifests with valid checksums are refused, or the index is read as usual."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import citadel
from tests.corrupt import indexes
from tests.corrupt.visitor import complaint, visit

Whole = Callable[[str], Path]
JUNK: list[Any] = [None, True, False, 0, -1, 1 << 62, 1 << 64, 1e308, "", "x", [], [1], {}, {"name": 1}]


def paths(data: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of every value in a JSON document."""
    if at:
        yield at
    items = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for name, value in items:
        yield from paths(value, (*at, name))


def put(data: Any, at: tuple[Any, ...], value: Any) -> Any:
    changed = copy.deepcopy(data)
    parent = changed
    for name in at[:-1]:
        parent = parent[name]
    parent[at[-1]] = value
    return changed


def without(data: Any, at: tuple[Any, ...]) -> Any:
    changed = copy.deepcopy(data)
    parent = changed
    for name in at[:-1]:
        parent = parent[name]
    del parent[at[-1]]
    return changed


def cheap_copy(source: Path, target: Path) -> Path:
    """A folder with hard links to another's files and its own manifest."""
    target.mkdir()
    for path in source.iterdir():
        if not path.name.startswith("gen."):
            (target / path.name).hardlink_to(path)
    (target / indexes.manifest_path(source).name).touch()
    return target


@pytest.mark.parametrize("kind", ["bm25", "int8", "pq2", "sparse", "none"])
def test_every_field_replaced_by_junk(kind: str, whole: Whole, tmp_path: Path) -> None:
    good = indexes.manifest(whole(kind))
    cases = {f"{at} = {junk!r}": put(good, at, junk) for at in paths(good) for junk in JUNK}
    cases |= {f"without {at}": without(good, at) for at in paths(good)}
    folders = {}
    for number, (case, data) in enumerate(cases.items()):
        folder = cheap_copy(whole(kind), tmp_path / str(number))
        indexes.write_manifest(folder, data)
        folders[str(folder)] = case
    visits = visit(map(Path, folders), kind, "native", whole(kind))
    assert len(visits) == len(folders) > 400
    assert {folders[result.folder]: complaint(result) for result in visits if complaint(result)} == {}


def refused(folder: Path, kind: str) -> citadel.CorruptIndexError:
    with pytest.raises(citadel.CorruptIndexError) as caught:
        indexes.ask(folder, kind)
    return caught.value


@pytest.mark.parametrize(
    "name",
    ["../x", "/etc/passwd", "seg-" + "0" * 32 + ".cit/../../x", "..", ".", "", "seg-\0.cit",
     "SEG-" + "0" * 32 + ".cit", "seg-" + "0" * 31 + "٣.cit", "seg-" + "0" * 32 + ".cit\n", "LOCK",
     "gen.00000004", "x" * 100_000],
)  # fmt: skip
@pytest.mark.parametrize("which", ["file", "documents_file"])
def test_file_names_that_leave_the_folder_are_refused(
    name: str, which: str, whole: Whole, tmp_path: Path
) -> None:
    folder = cheap_copy(whole("bm25"), tmp_path / "copy")
    indexes.write_manifest(folder, put(indexes.manifest(whole("bm25")), ("segments", 0, which, "name"), name))
    error = refused(folder, "bm25")
    assert (error.file, error.section) == (indexes.manifest_path(folder).name, "manifest")
    assert len(str(error)) < 400


@pytest.mark.parametrize("documents", [1 << 30, (1 << 32) - 1, 1 << 32, 1 << 62, (1 << 64) + 1])
def test_excessive_document_counts_are_refused(documents: int, whole: Whole, tmp_path: Path) -> None:
    folder = cheap_copy(whole("int8"), tmp_path / "copy")
    good = indexes.manifest(whole("int8"))
    for name in ("documents", "postings"):
        indexes.write_manifest(folder, put(good, ("segments", 0, name), documents))
        refused(folder, "int8")


@pytest.mark.parametrize(
    "line",
    [b"", b"[]", b"null", b"{}", b"7", b"\xff\xfe", b"{" * 100_000, b"[" * 100_000, b"1" * 5000,
     b'{"format": 1', b'{"format": NaN}', json.dumps({"format": "1"}).encode()],
)  # fmt: skip
def test_invalid_manifest_lines_are_refused(line: bytes, whole: Whole, tmp_path: Path) -> None:
    folder = cheap_copy(whole("bm25"), tmp_path / "copy")
    indexes.manifest_path(folder).write_bytes(indexes.sealed(line))
    assert refused(folder, "bm25").section == "manifest"


def test_duplicate_segment_is_refused(whole: Whole, tmp_path: Path) -> None:
    folder = cheap_copy(whole("int8"), tmp_path / "copy")
    good = indexes.manifest(whole("int8"))
    indexes.write_manifest(folder, put(good, ("segments", 1), good["segments"][0]))
    assert refused(folder, "int8").section


def test_mixed_files_of_two_segments_are_refused(whole: Whole, tmp_path: Path) -> None:
    """A segment and its documents repeat their ids, so at least a deep check detects a mixed pair."""
    folder = cheap_copy(whole("bm25"), tmp_path / "copy")
    good = indexes.manifest(whole("bm25"))
    indexes.write_manifest(
        folder, put(good, ("segments", 0, "documents_file"), good["segments"][1]["documents_file"])
    )
    with pytest.raises(citadel.CorruptIndexError):
        citadel.Index.open(folder).check(deep=True)
