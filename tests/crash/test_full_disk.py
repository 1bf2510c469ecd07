"""A full or failing disk is exit code 6, the old generation stays, and the same folder works again later."""

from __future__ import annotations

import errno
import gc
import logging
import os
import sqlite3
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from citadel import Index
from citadel.errors import IndexNotFoundError, ResourceError
from citadel.index import documents
from citadel.index.storage import FolderStorage
from tests.support.contents import Contents, contents_of, orphans
from tests.support.seeds import NIGHT, fast_folder
from tests.support.watched import READING, WRITING, Count, Fail, WatchedStorage
from tests.support.workload import MEMORY, brief, create_text

ALLOCATING = ("lock", "scratch", "create", "write", "fsync", "sync")  # a full disk still renames and removes

STEPS = brief()


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=fast_folder()) as path:
        yield Path(path) / "index"


@pytest.fixture(scope="module")
def expected() -> list[Contents | None]:
    """What the index holds after each step of a build that never fails; None before there is one."""
    with tempfile.TemporaryDirectory(dir=fast_folder()) as path:
        index = create_text(path)
        found: list[Contents | None] = [None, contents_of(index)]
        for step in STEPS:
            step.apply(index)
            found.append(contents_of(index))
    return found


def state(folder: Path) -> Contents | None:
    try:
        index = Index.open(folder)
        index.check(deep=True)
        return contents_of(index)
    except IndexNotFoundError:
        return None


def same(left: Contents | None, right: Contents | None) -> bool:
    return left is right if left is None or right is None else left.same(right)


def run(storage: WatchedStorage | FolderStorage, done: int, expected: list[Contents | None]) -> int:
    """Do the steps that are left; how many are done (the first creates the index)."""
    if done == 0:
        create_text(storage)
        done = 1
    index = Index.open(storage, memory=MEMORY)
    for step in STEPS[done - 1 :]:
        step.apply(index)
        done += 1
    return done


class Progress:
    """Runs the steps one by one and remembers how many of them were acknowledged."""

    def __init__(self, folder: Path, watcher: Fail) -> None:
        self.storage, self.done = WatchedStorage(FolderStorage(folder), watcher), 0

    def go(self) -> None:
        create_text(self.storage)
        self.done = 1
        index = Index.open(self.storage, memory=MEMORY)
        for step in STEPS:
            step.apply(index)
            self.done += 1

    def fails(self) -> bool:
        """Whether the steps end with the one error that a full disk may cause, which is exit code 6."""
        try:
            self.go()
        except ResourceError as error:
            return error.exit_code == 6
        return False


def one_failure(folder: Path, fail: Fail, expected: list[Contents | None], quiet: pytest.LogCaptureFixture) -> bool:
    """One run with a fault; whether the fault came. What it leaves behind must be whole, and the next run succeeds."""
    progress = Progress(folder, fail)
    raised = progress.fails()
    assert raised or not fail.failed or "merging has to wait" in quiet.text, "a failure was passed over in silence"
    quiet.clear()
    found = state(folder)
    allowed = expected[progress.done : progress.done + 2]
    assert any(same(found, one) for one in allowed), f"after {progress.done} steps the index holds something else"
    if fail.number % 4 == 0 or NIGHT:
        finish(folder, progress.done, found, expected)
    else:
        go_on(folder, found)
    return bool(fail.failed)


def go_on(folder: Path, found: Contents | None) -> None:
    """The disk has room again: the next commit in the same folder succeeds."""
    index = create_text(FolderStorage(folder)) if found is None else Index.open(folder)
    index.add([{"id": "late", "text": "rome"}])
    index.commit()
    assert "late" in dict(contents_of(Index.open(folder)).ranking)
    assert orphans(FolderStorage(folder)) == set()


def finish(folder: Path, done: int, found: Contents | None, expected: list[Contents | None]) -> None:
    """The disk has room again: what was left to do succeeds in the same folder."""
    plain = FolderStorage(folder)
    if found is not None:
        done = max(done, 1)
    run(plain, done, expected)
    assert same(state(folder), expected[-1])
    assert orphans(plain) == set()


CASES = [
    pytest.param(errno.ENOSPC, ALLOCATING, True, id="full from then on"),
    pytest.param(errno.EIO, WRITING, False, id="one write error"),
    pytest.param(errno.EIO, READING, False, id="one read error"),
]


@pytest.mark.parametrize(("code", "kinds", "forever"), CASES)
def test_every_call_may_fail(
    code: int, kinds: tuple[str, ...], forever: bool, expected: list[Contents | None], caplog: pytest.LogCaptureFixture
) -> None:
    number = 1
    while True:
        with tempfile.TemporaryDirectory(dir=fast_folder()) as path, caplog.at_level(logging.WARNING, "citadel"):
            if not one_failure(Path(path) / "index", Fail(number, code, kinds, forever), expected, caplog):
                break
        number += 1
    print(f"{number - 1} failing calls")
    assert number > 50


def test_short_writes_are_gone_on_with(
    folder: Path, expected: list[Contents | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: real(descriptor, data[: len(data) // 2 + 1]))
    run(FolderStorage(folder), 0, expected)
    monkeypatch.undo()
    assert same(state(folder), expected[-1])


def test_a_short_write_before_the_disk_is_full_leaves_the_old_generation(
    expected: list[Contents | None], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    real, number = os.write, 0
    while True:
        number += 1 if NIGHT else 11
        calls = iter(range(1 << 60))

        def write(descriptor: int, data: memoryview, last: int = number, calls: Iterator[int] = calls) -> int:
            call = next(calls)
            if call >= last:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return real(descriptor, data[: len(data) // 2] if call == last - 1 and len(data) > 1 else data)

        with tempfile.TemporaryDirectory(dir=fast_folder()) as path:
            progress = Progress(Path(path), Fail(0, 0, ()))
            with monkeypatch.context() as patched:
                patched.setattr(os, "write", write)
                progress.fails()
            found = state(Path(path))
            assert any(same(found, one) for one in expected[progress.done : progress.done + 1])
            if next(calls) < number:
                break
            finish(Path(path), progress.done, found, expected)


def test_a_failed_add_cannot_be_committed_by_half(folder: Path) -> None:
    """A spill that failed has used its buffer up: what it held must not be committed without its postings."""
    fail = Fail(1 << 60, errno.ENOSPC, ("create",))
    index = create_text(WatchedStorage(FolderStorage(folder), fail))
    index.add([{"id": "old", "text": "rome"}])
    index.commit()
    fail.number = fail.total + 1
    with pytest.raises(ResourceError):
        index.add({"id": f"d{number}", "text": "rome apple"} for number in range(10))
    index.commit()
    assert [hit.id for hit in Index.open(folder).searcher().search("rome")] == ["old"]
    index.add({"id": f"d{number}", "text": "rome apple"} for number in range(10))
    index.commit()
    assert len(Index.open(folder).searcher().search("rome", k=20)) == 11


@pytest.mark.parametrize("message", ["database or disk is full", "disk I/O error"])
def test_sqlite_says_that_the_disk_is_full(folder: Path, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    index = create_text(FolderStorage(folder))
    index.add([{"id": "old", "text": "rome"}])
    index.commit()

    def full(*_: object) -> None:
        raise sqlite3.OperationalError(message)

    with monkeypatch.context() as patched:
        patched.setattr(documents, "_build", full)
        index.add([{"id": "new", "text": "rome"}])
        with pytest.raises(ResourceError, match=message) as caught:
            index.commit()
    assert caught.value.exit_code == 6
    assert [hit.id for hit in Index.open(folder).searcher().search("rome")] == ["old"]
    assert orphans(FolderStorage(folder)) == set()


def test_a_failure_leaves_no_descriptor_open(folder: Path) -> None:
    if not Path("/proc/self/fd").is_dir():
        pytest.skip("/proc/self/fd shows open descriptors on Linux only")
    count = Count()
    index = create_text(WatchedStorage(FolderStorage(folder), count))
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    for number in range(1, 4):
        fail = Fail(number, errno.ENOSPC, ("fsync",))
        index = Index.open(WatchedStorage(FolderStorage(folder), fail))
        index.add([{"id": "d1", "text": "rome"}])
        with pytest.raises(ResourceError):
            index.commit()
    del index
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) <= before


@pytest.fixture
def mount() -> Iterator[Path]:
    """A folder to mount small disks on."""
    with tempfile.TemporaryDirectory() as path:
        yield Path(path)


@pytest.mark.parametrize("kib", range(24, 264, 6) if NIGHT else (32, 64, 96, 160))
def test_a_real_disk_that_is_full(mount: Path, kib: int, expected: list[Contents | None]) -> None:
    command = ["mount", "-t", "tmpfs", "-o", f"size={kib}k", "tmpfs", str(mount)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("mounting a small disk needs root and the right to mount")
    try:
        progress = Progress(mount / "index", Fail(0, 0, ()))
        with pytest.raises(ResourceError) as caught:
            fill(progress)
        assert caught.value.exit_code == 6
        found = state(mount / "index")
        assert found is None or dict(found.documents).keys() >= {f"f{number}" for number in range(progress.done)}
        subprocess.run(["mount", "-o", "remount,size=64m", str(mount)], check=True)
        index = create_text(str(mount / "index")) if found is None else Index.open(mount / "index")
        index.add([{"id": "late", "text": "rome"}])
        index.commit()
        assert "late" in Index.open(mount / "index")
        assert orphans(FolderStorage(mount / "index")) == set()
    finally:
        subprocess.run(["umount", "--lazy", str(mount)], check=True)


def fill(progress: Progress) -> None:
    """Commit documents until there is no room."""
    index = create_text(progress.storage)
    while True:
        index.add([{"id": f"f{progress.done}", "text": f"rome {progress.done} " * 50}])
        index.commit()
        progress.done += 1
