"""Backups: one whole generation, verified, while a writer goes on; nothing half-written on failure."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path
from typing import Any

import pytest

import citadel
from citadel.index import backup as module
from citadel.index.backup import backup
from citadel.index.container import DurableFile
from citadel.index.storage import FolderStorage
from tests.support.disk import MemoryDisk


def small(folder: Path, documents: int = 20) -> citadel.Index:
    index = citadel.Index.create(folder, model="bm25")
    index.add({"id": f"d{n}", "text": f"theory number {n}", "n": n} for n in range(documents))
    return index.commit()


@pytest.mark.parametrize("links", [True, False])
def test_a_backup_is_an_index_with_the_same_rankings(tmp_path: Path, links: bool) -> None:
    index = small(tmp_path / "idx")
    index.delete(["d3"])
    index.commit()
    generation = index.backup(tmp_path / "backup", links=links)
    restored = citadel.Index.restore(tmp_path / "backup", tmp_path / "restored", links=links)
    assert generation == index.generation == restored.generation
    restored.check(deep=True)
    for copy in (citadel.Index.open(tmp_path / "backup"), restored):
        assert copy.search("theory", 30).to_dicts() == index.search("theory", 30).to_dicts()
    segment = next((tmp_path / "idx").glob("seg-*"))
    assert os.path.samefile(segment, tmp_path / "backup" / segment.name) is links


def test_changes_of_index_and_restored_copy_do_not_reach_the_backup(tmp_path: Path) -> None:
    index = small(tmp_path / "idx")
    index.backup(tmp_path / "backup")
    restored = citadel.Index.restore(tmp_path / "backup", tmp_path / "restored")
    for changed in (index, restored):
        changed.add([{"id": "new", "text": "a new theory"}])
        changed.delete(["d1"])
        changed.commit().merge()
    copy = citadel.Index.open(tmp_path / "backup")
    copy.check(deep=True)
    assert len(copy) == 20 and "new" not in copy and "d1" in copy


def test_uncommitted_changes_are_not_part_of_a_backup(tmp_path: Path) -> None:
    index = small(tmp_path / "idx")
    index.add([{"id": "new", "text": "a new theory"}])
    index.backup(tmp_path / "backup")
    assert "new" not in citadel.Index.open(tmp_path / "backup")
    assert "new" in index.commit()


def test_backups_while_a_writer_commits_and_merges_are_whole(tmp_path: Path) -> None:
    index, stop = small(tmp_path / "idx"), threading.Event()

    def write() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            index.add([{"id": f"w{number}", "text": f"written theory {number}"}])
            index.commit()
            if number % 3 == 0:
                index.merge()

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for turn in range(15):
            source = FolderStorage(tmp_path / "idx")
            copy = backup(source, tmp_path / f"backup{turn}", links=bool(turn % 2))
            ids = {document.id for document in citadel.Index.open(tmp_path / f"backup{turn}").documents()}
            written = copy.manifest.documents - 20
            assert ids == {f"d{n}" for n in range(20)} | {f"w{n}" for n in range(1, written + 1)}
    finally:
        stop.set()
        writer.join()


@pytest.mark.parametrize("kind", ["index", "empty folder", "file", "dangling link"])
def test_an_existing_target_is_refused_and_unchanged(tmp_path: Path, kind: str) -> None:
    index, target = small(tmp_path / "idx"), tmp_path / "target"
    if kind == "index":
        small(target, 1)
    elif kind == "empty folder":
        target.mkdir()
    elif kind == "file":
        target.write_text("mine")
    else:
        target.symlink_to(tmp_path / "nowhere")
    before = sorted(target.iterdir()) if target.is_dir() else target.is_symlink() or target.read_text()
    with pytest.raises(citadel.UsageError, match="exists already"):
        index.backup(target)
    assert before == (
        sorted(target.iterdir()) if target.is_dir() else target.is_symlink() or target.read_text()
    )


def test_a_target_that_appears_meanwhile_is_kept(tmp_path: Path, monkeypatch: Any) -> None:
    index, target, publish = small(tmp_path / "idx"), tmp_path / "target", module._publish

    def appear(*arguments: Any) -> None:
        small(target, 1)
        publish(*arguments)

    monkeypatch.setattr(module, "_publish", appear)
    with pytest.raises(citadel.UsageError, match="exists already"):
        index.backup(target)
    assert len(citadel.Index.open(target)) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["idx", "target"]


def test_a_target_inside_the_index_is_refused(tmp_path: Path) -> None:
    index = small(tmp_path / "idx")
    with pytest.raises(citadel.UsageError, match="cannot be inside it"):
        index.backup(tmp_path / "idx" / "backup")
    index.check(deep=True)


@pytest.mark.parametrize("call", range(8))
def test_a_full_disk_leaves_nothing(tmp_path: Path, monkeypatch: Any, call: int) -> None:
    index, write, calls = small(tmp_path / "idx"), DurableFile.write, [0]

    def full(file: DurableFile, data: Any) -> None:
        calls[0] += 1
        if calls[0] > call:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(file, data)

    monkeypatch.setattr(DurableFile, "write", full)
    if call < 4:  # segment, documents, columns, manifest
        with pytest.raises(citadel.ResourceError, match="no space left"):
            index.backup(tmp_path / "backup", links=False)
        assert [path.name for path in tmp_path.iterdir()] == ["idx"]
        monkeypatch.undo()
        index.backup(tmp_path / "backup", links=False)
    else:
        index.backup(tmp_path / "backup", links=False)
    citadel.Index.open(tmp_path / "backup").check(deep=True)


@pytest.mark.parametrize("links", [True, False])
def test_a_damaged_index_is_reported_and_not_copied(tmp_path: Path, links: bool) -> None:
    small(tmp_path / "idx")
    segment = next((tmp_path / "idx").glob("seg-*"))
    data = bytearray(segment.read_bytes())
    data[len(data) // 2] ^= 1
    segment.write_bytes(data)
    with pytest.raises(citadel.CorruptIndexError, match=segment.name):
        backup(FolderStorage(tmp_path / "idx"), tmp_path / "backup", links=links)
    assert [path.name for path in tmp_path.iterdir()] == ["idx"]


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    small(tmp_path / "idx")
    segment = next((tmp_path / "idx").glob("seg-*"))
    segment.unlink()
    with pytest.raises(citadel.CorruptIndexError, match=segment.name):
        backup(FolderStorage(tmp_path / "idx"), tmp_path / "backup")


@pytest.mark.parametrize("code", [errno.EXDEV, errno.EPERM, errno.ENOENT])
def test_files_are_copied_where_links_fail(tmp_path: Path, monkeypatch: Any, code: int) -> None:
    index, link = small(tmp_path / "idx"), os.link

    def refuse(name: str, new: str, **options: Any) -> None:
        if name == new:  # a link from folder to folder
            raise OSError(code, os.strerror(code))
        link(name, new, **options)

    monkeypatch.setattr(os, "link", refuse)
    index.backup(tmp_path / "elsewhere")
    citadel.Index.open(tmp_path / "elsewhere").check(deep=True)
    segment = next((tmp_path / "idx").glob("seg-*"))
    assert not os.path.samefile(segment, tmp_path / "elsewhere" / segment.name)


def test_a_storage_that_is_no_folder_is_copied(tmp_path: Path) -> None:
    index = citadel.Index.create(MemoryDisk(), model="bm25")
    index.add([{"id": "d1", "text": "relativity"}])
    index.commit().backup(tmp_path / "backup")
    assert citadel.Index.open(tmp_path / "backup").search("relativity").ids == ["d1"]


def test_no_index_no_backup(tmp_path: Path) -> None:
    with pytest.raises(citadel.IndexNotFoundError):
        citadel.Index.restore(tmp_path / "nothing", tmp_path / "target")
    assert list(tmp_path.iterdir()) == []
