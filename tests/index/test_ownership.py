"""A writer that lost its folder or lock is refused and changes nothing."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from citadel import Index, OwnershipError
from citadel.index.folder_lock import LOCK
from citadel.index.storage import FolderStorage
from tests.support.contents import orphans

Change = Callable[[Index], object]
Disturb = Callable[[Path], Path | None]

CHANGES: dict[str, Change] = {
    "add": lambda index: index.add([{"id": "mine", "text": "my words"}]),
    "delete": lambda index: index.delete(["d1"]),
    "replace": lambda index: index.add([{"id": "d1", "text": "other words"}]),
    "spill": lambda index: index.add({"id": f"s{n}", "text": f"{'x' * 400} w{n}"} for n in range(300)),
}
ENDS: dict[str, Change] = {
    "commit": Index.commit,
    "merge": Index.merge,
    "spill": lambda index: index.add({"id": f"t{n}", "text": f"{'y' * 400} w{n}"} for n in range(300)),
}


def build(folder: Path, text: str) -> None:
    index = Index.create(folder)
    index.add([{"id": "d1", "text": text}, {"id": "d2", "text": "rome"}])
    index.commit()


def moved(folder: Path) -> Path:
    folder.rename(folder.with_name("old"))
    return folder.with_name("old")


def replaced(folder: Path) -> Path:
    old = moved(folder)
    build(folder, "the new index")
    return old


def replaced_by_a_copy(folder: Path) -> Path:
    """The same index id and generation, but another folder."""
    shutil.copytree(folder, folder.with_name("copy"))
    old = moved(folder)
    folder.with_name("copy").rename(folder)
    return old


def removed(folder: Path) -> None:
    shutil.rmtree(folder)


def unlocked(folder: Path) -> Path:
    (folder / LOCK).unlink()
    return folder


def overtaken(folder: Path) -> Path:
    """LOCK was deleted, and a second writer has committed."""
    unlocked(folder)
    second = Index.open(folder)
    second.add([{"id": "theirs", "text": "their words"}])
    second.commit()
    return folder


def locked_by_another(folder: Path) -> Path:
    """LOCK was deleted, and a second writer holds the new one."""
    unlocked(folder)
    HOLDERS.append(Index.open(folder))
    HOLDERS[-1].add([{"id": "theirs", "text": "their words"}])
    return folder


HOLDERS: list[Index] = []
DISTURBANCES: tuple[Disturb, ...] = (
    moved,
    replaced,
    replaced_by_a_copy,
    removed,
    unlocked,
    overtaken,
    locked_by_another,
)


@pytest.fixture(autouse=True)
def _release_holders() -> Iterator[None]:
    yield
    HOLDERS.clear()


def contents(folder: Path) -> dict[str, bytes]:
    """The index files of a folder; empty if there is no folder."""
    names = sorted(os.listdir(folder)) if folder.is_dir() else []
    return {name: (folder / name).read_bytes() for name in names if name.startswith("gen.")}


@pytest.mark.parametrize("disturb", DISTURBANCES)
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("end", ENDS)
def test_writer_without_ownership_cannot_commit(
    tmp_path: Path, change: str, end: str, disturb: Disturb
) -> None:
    folder = tmp_path / "live"
    build(folder, "first words")
    index = Index.open(folder, memory=60_000)
    CHANGES[change](index)
    other = disturb(folder)
    before = contents(folder), contents(other or folder)
    with pytest.raises(OwnershipError):
        ENDS[end](index)
    assert (contents(folder), contents(other or folder)) == before
    if disturb is removed:
        assert not folder.exists()
    for present in {path for path in (folder, other) if path is not None and path.is_dir()}:
        Index.open(present).check(deep=True)


@pytest.mark.parametrize("disturb", [replaced, overtaken, replaced_by_a_copy])
def test_new_owner_can_write(tmp_path: Path, disturb: Disturb) -> None:
    folder = tmp_path / "live"
    build(folder, "first words")
    index = Index.open(folder)
    index.add([{"id": "mine", "text": "my words"}])
    disturb(folder)
    with pytest.raises(OwnershipError):
        index.commit()
    index.close()
    owner = Index.open(folder)
    count = len(owner)
    owner.add([{"id": "next", "text": "next words"}])
    assert len(owner.commit()) == count + 1
    owner.check(deep=True)
    assert orphans(FolderStorage(folder)) == set()


def test_second_writer_with_new_lock_can_commit(tmp_path: Path) -> None:
    folder = tmp_path / "live"
    build(folder, "first words")
    first = Index.open(folder, memory=60_000)
    CHANGES["spill"](first)
    locked_by_another(folder)
    with pytest.raises(OwnershipError):
        first.commit()
    first.close()
    assert len(HOLDERS[-1].commit()) == 3
    Index.open(folder).check(deep=True)


def test_refused_writer_drops_changes_and_can_write_again(tmp_path: Path) -> None:
    folder = tmp_path / "live"
    build(folder, "first words")
    index = Index.open(folder)
    index.add([{"id": "mine", "text": "my words"}])
    unlocked(folder)
    with pytest.raises(OwnershipError, match="LOCK"):
        index.commit()
    assert not index.has_changes
    index.add([{"id": "again", "text": "again"}])
    assert len(index.commit()) == 3


def test_commit_after_folder_is_moved_back(tmp_path: Path) -> None:
    folder = tmp_path / "live"
    build(folder, "first words")
    index = Index.open(folder)
    index.add([{"id": "mine", "text": "my words"}])
    old = moved(folder)
    with pytest.raises(OwnershipError, match="moved"):
        index.commit()
    with pytest.raises(OwnershipError, match="moved"):
        index.add([{"id": "mine", "text": "my words"}])
    old.rename(folder)
    index.add([{"id": "mine", "text": "my words"}])
    assert len(index.commit()) == 3


def test_relative_path_survives_chdir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("here", "there"):
        build(tmp_path / name / "idx", name)
    monkeypatch.chdir(tmp_path / "here")
    index = Index.open("idx")
    index.add([{"id": "mine", "text": "my words"}])
    monkeypatch.chdir(tmp_path / "there")
    assert len(index.commit()) == 3
    assert len(Index.open("idx")) == 2
    assert index.searcher().search("here", k=1).ids == ["d1"]
    assert index.get("mine") is not None


def test_refresh_follows_the_path(tmp_path: Path) -> None:
    folder = tmp_path / "live"
    build(folder, "first words")
    index = Index.open(folder)
    searcher = index.searcher()
    replaced(folder)
    assert searcher.search("first", k=1)[0].text == "first words"
    assert index.refresh().searcher().search("new", k=1)[0].text == "the new index"
    index.add([{"id": "mine", "text": "my words"}])
    assert len(index.commit()) == 3


def test_existing_generation_is_never_replaced(tmp_path: Path) -> None:
    storage = FolderStorage(tmp_path)
    for name, data in (("old", b"1"), ("new", b"2")):
        output = storage.create(name)
        output.write(memoryview(data))
        output.close()
    with pytest.raises(FileExistsError):
        storage.rename("new", "old")
    assert (tmp_path / "old").read_bytes() == b"1"
    assert (tmp_path / "new").read_bytes() == b"2"


def test_existing_name_is_refused_without_hard_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unsupported(*args: object, **options: object) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(os, "link", unsupported)
    build(tmp_path / "index", "first words")
    assert len(Index.open(tmp_path / "index")) == 2
    storage = FolderStorage(tmp_path / "index")
    for name in ("a", "b"):
        storage.create(name).close()
    with pytest.raises(OSError, match="not supported"):
        storage.rename("a", "b")


def test_parents_of_new_folder_are_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[tuple[int, frozenset[str]]] = []
    fsync = os.fsync

    def record(descriptor: int) -> None:
        fsync(descriptor)
        info = os.fstat(descriptor)
        names = os.listdir(descriptor) if os.path.isdir(f"/proc/self/fd/{descriptor}") else []
        synced.append((info.st_ino, frozenset(names)))

    monkeypatch.setattr(os, "fsync", record)
    Index.create(tmp_path / "a" / "b" / "index")
    for parent, child in (("", "a"), ("a", "b"), ("a/b", "index")):
        inode = (tmp_path / parent).stat().st_ino
        assert any(number == inode and child in names for number, names in synced), f"{parent} was not synced"


def test_file_system_without_locks_raises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import errno
    import fcntl

    from citadel import ResourceError

    build(tmp_path / "index", "first words")

    def no_locks(*args: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", no_locks)
    with pytest.raises(ResourceError, match="cannot lock files"):
        Index.open(tmp_path / "index").add([{"id": "d3", "text": "rome"}])
