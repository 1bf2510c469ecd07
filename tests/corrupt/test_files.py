"""Truncated, missing, swapped, linked or special files raise a typed error that names the file."""

from __future__ import annotations

import itertools
import os
import shutil
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import citadel
from tests.corrupt import indexes
from tests.corrupt.seeds import generator, often

Whole = Callable[[str], Path]


def read(folder: Path, kind: str) -> None:
    indexes.ask(folder, kind)
    citadel.Index.open(folder).check(deep=True)


def refused(folder: Path, kind: str, file: str) -> citadel.CorruptIndexError:
    with pytest.raises(citadel.CorruptIndexError) as caught:
        read(folder, kind)
    assert caught.value.file == file, str(caught.value)
    assert caught.value.section and caught.value.problem
    return caught.value


def files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.name != "LOCK")


@pytest.fixture
def pair(whole: Whole, tmp_path: Path) -> Callable[[str], Path]:
    """A copy of an index that a test may damage."""
    return lambda kind: indexes.copy(whole(kind), tmp_path / kind)


@pytest.mark.parametrize("kind", indexes.KINDS)
def test_file_of_wrong_length_is_refused(kind: str, pair: Callable[[str], Path], whole: Whole) -> None:
    random, folder, done = generator("truncate", kind), pair(kind), 0
    for path in files(folder):
        data = path.read_bytes()
        edges = [0, 1, 8, 63, 64, 65, 96, len(data) // 2, len(data) - 33, len(data) - 32, len(data) - 1]
        lengths = {*edges, *(random.randrange(len(data)) for _ in range(often(40, 100)))}
        for length in sorted(lengths):
            path.write_bytes(data[:length])
            refused(folder, kind, path.name)
        path.write_bytes(data + b"\0")
        refused(folder, kind, path.name)
        path.write_bytes(data)
        done += len(lengths)
    read(folder, kind)
    assert done >= 5 * 40


@pytest.mark.parametrize("kind", indexes.KINDS)
def test_missing_file_is_refused(kind: str, pair: Callable[[str], Path]) -> None:
    folder = pair(kind)
    for path in files(folder):
        data = path.read_bytes()
        path.unlink()
        error = refused(folder, kind, str(folder) if path.name.startswith("gen.") else path.name)
        assert "missing" in error.problem or "no manifest" in error.problem
        path.write_bytes(data)
    read(folder, kind)


@pytest.mark.parametrize(
    ("kind", "prefix"),
    [
        *itertools.product(indexes.KINDS, ("seg-", "docs-")),
        *itertools.product(indexes.HAS_COLUMNS, ("cols-",)),
    ],
)
def test_swapped_segments_are_refused(kind: str, prefix: str, pair: Callable[[str], Path]) -> None:
    folder = pair(kind)
    first, second = folder.glob(f"{prefix}*")
    one, other = first.read_bytes(), second.read_bytes()
    first.write_bytes(other)
    second.write_bytes(one)
    with pytest.raises(citadel.CorruptIndexError) as caught:
        read(folder, kind)
    assert caught.value.file in (first.name, second.name)


@pytest.mark.parametrize("kind", indexes.KINDS)
def test_file_of_another_index_is_refused(kind: str, pair: Callable[[str], Path], tmp_path: Path) -> None:
    """The twin has the same documents and settings; only the ids of index and files differ."""
    folder, twin = pair(kind), indexes.build(tmp_path / "twin", kind)
    for path in files(folder):
        data, prefix = path.read_bytes(), path.name.partition("-")[0].partition(".")[0]
        path.write_bytes(min(twin.glob(f"{prefix}*")).read_bytes())
        with pytest.raises(citadel.CorruptIndexError):
            read(folder, kind)
        path.write_bytes(data)


def test_older_file_under_a_newer_name_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "bm25"
    with indexes.create(folder, "bm25") as index:
        indexes.add(index, "bm25", range(12))
        index.commit().delete(["d1"])
        index.commit()
        (old,) = folder.glob("del-*")
        before, older_manifest = old.read_bytes(), indexes.manifest_path(folder).read_bytes()
        index.delete(["d2"])
        index.commit()
    name = indexes.manifest(folder)["deletions"]["name"]
    after = (folder / name).read_bytes()
    (folder / name).write_bytes(before)
    refused(folder, "bm25", name)
    (folder / name).write_bytes(after)
    newest = indexes.manifest_path(folder)
    newest.write_bytes(older_manifest)
    refused(folder, "bm25", newest.name)


def replacements(path: Path, outside: Path) -> dict[str, Callable[[], Any]]:
    return {
        "symlink to its own copy": lambda: path.symlink_to(
            shutil.copy(path.with_name("kept"), outside / path.name)
        ),
        "symlink to nothing": lambda: path.symlink_to(outside / "nothing"),
        "symlink to itself": lambda: path.symlink_to(path.name),
        "hard link to a foreign file": lambda: os.link(outside / "foreign", path),
        "pipe": lambda: os.mkfifo(path),
        "folder": path.mkdir,
        "socket": lambda: socket.socket(socket.AF_UNIX).bind(str(path)),
    }


@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
@pytest.mark.parametrize(
    ("kind", "prefix"),
    [*(("pq2", prefix) for prefix in ("gen.", "seg-", "docs-", "del-", "codebook-")), ("int8", "cols-")],
)
def test_special_file_is_refused(
    kind: str, prefix: str, pair: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, outside = pair(kind), tmp_path / "outside"
    outside.mkdir()
    (outside / "foreign").write_text("another user's secret")
    monkeypatch.chdir(folder)  # a socket's path must be short
    for case in replacements(folder, outside):
        path = min(Path().glob(f"{prefix}*"))
        path.rename("kept")
        replacements(path, outside)[case]()
        error = refused(folder, kind, path.name)
        assert "secret" not in str(error), case
        path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()
        Path("kept").rename(path)
    read(folder, kind)


def test_index_in_a_linked_folder_opens(pair: Callable[[str], Path], tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(pair("bm25"))
    read(tmp_path / "link", "bm25")


def test_manifest_with_a_noncanonical_name_is_ignored(pair: Callable[[str], Path]) -> None:
    folder = pair("bm25")
    newest = indexes.manifest_path(folder)
    for name in ("gen.000000099", "gen.99", "gen.0000009a", "gen.00000099.tmp", "gen.-0000009"):
        shutil.copy(newest, folder / name)
    read(folder, "bm25")


def test_folder_without_index(tmp_path: Path) -> None:
    with pytest.raises(citadel.IndexNotFoundError, match="there is no index"):
        citadel.Index.open(tmp_path / "nowhere")
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(citadel.IndexNotFoundError):
        citadel.Index.open(tmp_path / "file")


def test_manifest_of_a_gigabyte_is_refused(pair: Callable[[str], Path]) -> None:
    folder = pair("bm25")
    newest = indexes.manifest_path(folder)
    os.truncate(newest, 1 << 30)  # sparse
    error = refused(folder, "bm25", newest.name)
    assert "1073741824 bytes" in error.problem
