"""Files cut short, missing, exchanged, linked or of another nature. A typed error names the file, and soon."""

from __future__ import annotations

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
    """A copy of an index that a test may spoil."""
    return lambda kind: indexes.copy(whole(kind), tmp_path / kind)


@pytest.mark.parametrize("kind", indexes.KINDS)
def test_truncated_and_lengthened(kind: str, pair: Callable[[str], Path], whole: Whole) -> None:
    random, folder, done = generator("truncate", kind), pair(kind), 0
    for path in files(folder):
        data = path.read_bytes()
        edges = [0, 1, 8, 63, 64, 65, 96, len(data) // 2, len(data) - 33, len(data) - 32, len(data) - 1]
        lengths = {*edges, *(random.randrange(len(data)) for _ in range(often(40, 400)))}
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
def test_missing(kind: str, pair: Callable[[str], Path]) -> None:
    folder = pair(kind)
    for path in files(folder):
        data = path.read_bytes()
        path.unlink()
        error = refused(folder, kind, str(folder) if path.name.startswith("gen.") else path.name)
        assert "missing" in error.problem or "no manifest" in error.problem
        path.write_bytes(data)
    read(folder, kind)


@pytest.mark.parametrize("kind", indexes.KINDS)
@pytest.mark.parametrize("prefix", ["seg-", "docs-"])
def test_two_segments_exchanged(kind: str, prefix: str, pair: Callable[[str], Path]) -> None:
    folder = pair(kind)
    first, second = folder.glob(f"{prefix}*")
    one, other = first.read_bytes(), second.read_bytes()
    first.write_bytes(other)
    second.write_bytes(one)
    with pytest.raises(citadel.CorruptIndexError) as caught:
        read(folder, kind)
    assert caught.value.file in (first.name, second.name)


@pytest.mark.parametrize("kind", indexes.KINDS)
def test_a_file_of_another_index(kind: str, pair: Callable[[str], Path], tmp_path: Path) -> None:
    """The twin has the same documents and settings; only the ids of index and files differ."""
    folder, twin = pair(kind), indexes.build(tmp_path / "twin", kind)
    for path in files(folder):
        data, prefix = path.read_bytes(), path.name.partition("-")[0].partition(".")[0]
        path.write_bytes(min(twin.glob(f"{prefix}*")).read_bytes())
        with pytest.raises(citadel.CorruptIndexError):
            read(folder, kind)
        path.write_bytes(data)


def test_an_older_file_under_a_newer_name(tmp_path: Path) -> None:
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
        "symlink to its own copy": lambda: path.symlink_to(shutil.copy(path.with_name("kept"), outside / path.name)),
        "symlink to nothing": lambda: path.symlink_to(outside / "nothing"),
        "symlink to itself": lambda: path.symlink_to(path.name),
        "hard link to a foreign file": lambda: os.link(outside / "foreign", path),
        "pipe": lambda: os.mkfifo(path),
        "folder": path.mkdir,
        "socket": lambda: socket.socket(socket.AF_UNIX).bind(str(path)),
    }


@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
@pytest.mark.parametrize("prefix", ["gen.", "seg-", "docs-", "del-", "codebook-"])
def test_something_else_in_place_of_a_file(
    prefix: str, pair: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, outside = pair("pq2"), tmp_path / "outside"
    outside.mkdir()
    (outside / "foreign").write_text("another user's secret")
    monkeypatch.chdir(folder)  # a socket's path must be short
    for case in replacements(folder, outside):
        path = min(Path().glob(f"{prefix}*"))
        path.rename("kept")
        replacements(path, outside)[case]()
        error = refused(folder, "pq2", path.name)
        assert "secret" not in str(error), case
        path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()
        Path("kept").rename(path)
    read(folder, "pq2")


def test_an_index_in_a_linked_folder_is_fine(pair: Callable[[str], Path], tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(pair("bm25"))
    read(tmp_path / "link", "bm25")


def test_a_manifest_with_a_name_nobody_writes_is_passed_over(pair: Callable[[str], Path]) -> None:
    folder = pair("bm25")
    newest = indexes.manifest_path(folder)
    for name in ("gen.000000099", "gen.99", "gen.0000009a", "gen.00000099.tmp", "gen.-0000009"):
        shutil.copy(newest, folder / name)
    read(folder, "bm25")


def test_no_index_at_all(tmp_path: Path) -> None:
    with pytest.raises(citadel.IndexNotFoundError, match="there is no index"):
        citadel.Index.open(tmp_path / "nowhere")
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(citadel.IndexNotFoundError):
        citadel.Index.open(tmp_path / "file")


def test_a_manifest_of_a_gigabyte(pair: Callable[[str], Path]) -> None:
    folder = pair("bm25")
    newest = indexes.manifest_path(folder)
    os.truncate(newest, 1 << 30)  # a hole: takes no room on disk
    error = refused(folder, "bm25", newest.name)
    assert "1073741824 bytes" in error.problem
