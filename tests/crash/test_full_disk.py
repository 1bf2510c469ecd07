"""A full or failing disk gives exit code 6, keeps the old generation, and can be recovered from."""

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
from citadel.errors import ResourceError
from citadel.index import columns_file
from citadel.index.storage import FolderStorage
from tests.support.contents import Contents, checked_contents, contents_of, orphans
from tests.support.seeds import NIGHT, fast_folder
from tests.support.threads import write_with_threads
from tests.support.watched import READING, WRITING, Count, Fail, WatchedStorage
from tests.support.workload import MEMORY, brief, create_text

ALLOCATING = (
    "lock",
    "scratch",
    "create",
    "write",
    "fsync",
    "sync",
)  # a full disk can still rename and remove

STEPS = brief()


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=fast_folder()) as path:
        yield Path(path) / "index"


@pytest.fixture(scope="module")
def expected() -> list[Contents | None]:
    """The contents after each step of a build without faults; None before the index exists."""
    with tempfile.TemporaryDirectory(dir=fast_folder()) as path:
        index = create_text(path)
        states: list[Contents | None] = [None, contents_of(index)]
        for step in STEPS:
            step.apply(index)
            states.append(contents_of(index))
    return states


def same(left: Contents | None, right: Contents | None) -> bool:
    return left is right if left is None or right is None else left.same(right)


def run(storage: WatchedStorage | FolderStorage, done: int, expected: list[Contents | None]) -> int:
    """Run the remaining steps and return the number done; the first creates the index."""
    if done == 0:
        create_text(storage)
        done = 1
    index = Index.open(storage, memory=MEMORY)
    for step in STEPS[done - 1 :]:
        step.apply(index)
        done += 1
    return done


class Progress:
    """Runs the steps and counts those that were acknowledged."""

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
        """Whether the steps raise the ResourceError (exit code 6) of a full disk."""
        try:
            self.go()
        except ResourceError as error:
            return error.exit_code == 6
        return False


def one_failure(
    folder: Path, fail: Fail, expected: list[Contents | None], quiet: pytest.LogCaptureFixture
) -> bool:
    """Run with a fault and return whether it occurred.

    The index must be intact afterwards, and the next run must succeed."""
    progress = Progress(folder, fail)
    raised = progress.fails()
    assert raised or not fail.failed or "merging is postponed" in quiet.text, (
        "a failure was passed over in silence"
    )
    quiet.clear()
    contents = checked_contents(folder)
    allowed = expected[progress.done : progress.done + 2]
    assert any(same(contents, one) for one in allowed), (
        f"after {progress.done} steps the index holds something else"
    )
    if fail.number % (2 if NIGHT else 4) == 0:
        finish(folder, progress.done, contents, expected)
    else:
        commit_again(folder, contents)
    return bool(fail.failed)


def commit_again(folder: Path, contents: Contents | None) -> None:
    """After space is freed, the next commit in the same folder succeeds."""
    index = create_text(FolderStorage(folder)) if contents is None else Index.open(folder)
    index.add([{"id": "late", "text": "rome"}])
    index.commit()
    assert "late" in dict(contents_of(Index.open(folder)).ranking)
    assert orphans(FolderStorage(folder)) == set()


def finish(folder: Path, done: int, contents: Contents | None, expected: list[Contents | None]) -> None:
    """After space is freed, the remaining steps succeed in the same folder."""
    plain = FolderStorage(folder)
    if contents is not None:
        done = max(done, 1)
    run(plain, done, expected)
    assert same(checked_contents(folder), expected[-1])
    assert orphans(plain) == set()


CASES = [
    pytest.param(errno.ENOSPC, ALLOCATING, True, False, id="full from then on"),
    pytest.param(errno.EIO, WRITING, False, False, id="one write error"),
    pytest.param(errno.EIO, READING, False, False, id="one read error"),
    pytest.param(errno.EIO, WRITING, False, True, id="one write error, several threads"),
]


@pytest.mark.parametrize(("code", "kinds", "forever", "threads"), CASES)
def test_any_storage_call_may_fail(
    code: int,
    kinds: tuple[str, ...],
    forever: bool,
    threads: bool,
    expected: list[Contents | None],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if threads:
        write_with_threads(monkeypatch)
    number = 1
    while True:
        with (
            tempfile.TemporaryDirectory(dir=fast_folder()) as path,
            caplog.at_level(logging.WARNING, "citadel"),
        ):
            if not one_failure(Path(path) / "index", Fail(number, code, kinds, forever), expected, caplog):
                break
        number += 1
    print(f"{number - 1} failing calls")
    assert number > 50


def test_short_writes_are_completed(
    folder: Path, expected: list[Contents | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: real(descriptor, data[: len(data) // 2 + 1]))
    run(FolderStorage(folder), 0, expected)
    monkeypatch.undo()
    assert same(checked_contents(folder), expected[-1])


def test_short_write_on_full_disk_keeps_the_old_generation(
    expected: list[Contents | None], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    real, number = os.write, 0
    while True:
        number += 3 if NIGHT else 11
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
            contents = checked_contents(Path(path))
            assert any(same(contents, one) for one in expected[progress.done : progress.done + 1])
            if next(calls) < number:
                break
            finish(Path(path), progress.done, contents, expected)


def test_failed_add_cannot_be_partially_committed(folder: Path) -> None:
    """Documents of a failed spill must not be committed without their postings."""
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


@pytest.mark.parametrize("threads", [False, True])
@pytest.mark.parametrize("message", ["database or disk is full", "disk I/O error"])
def test_sqlite_error_on_full_disk(
    folder: Path, message: str, threads: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if threads:
        write_with_threads(monkeypatch)
    index = create_text(FolderStorage(folder))
    index.add([{"id": "old", "text": "rome"}])
    index.commit()

    def full(*_: object) -> None:
        raise sqlite3.OperationalError(message)

    with monkeypatch.context() as patched:
        patched.setattr(columns_file, "build_database", full)
        index.add([{"id": "new", "text": "rome"}])
        with pytest.raises(ResourceError, match=message) as caught:
            index.commit()
    assert caught.value.exit_code == 6
    assert [hit.id for hit in Index.open(folder).searcher().search("rome")] == ["old"]
    assert orphans(FolderStorage(folder)) == set()


def test_failure_leaves_no_descriptor_open(folder: Path) -> None:
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
    """A mount point for a small disk."""
    with tempfile.TemporaryDirectory() as path:
        yield Path(path)


@pytest.mark.parametrize("kib", range(24, 264, 24) if NIGHT else (32, 64, 96, 160))
def test_full_mounted_disk(mount: Path, kib: int, expected: list[Contents | None]) -> None:
    command = ["mount", "-t", "tmpfs", "-o", f"size={kib}k", "tmpfs", str(mount)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("mounting a small disk needs root and the right to mount")
    try:
        progress = Progress(mount / "index", Fail(0, 0, ()))
        with pytest.raises(ResourceError) as caught:
            fill(progress)
        assert caught.value.exit_code == 6
        contents = checked_contents(mount / "index")
        assert contents is None or dict(contents.documents).keys() >= {
            f"f{number}" for number in range(progress.done)
        }
        subprocess.run(["mount", "-o", "remount,size=64m", str(mount)], check=True)
        index = create_text(str(mount / "index")) if contents is None else Index.open(mount / "index")
        index.add([{"id": "late", "text": "rome"}])
        index.commit()
        assert "late" in Index.open(mount / "index")
        assert orphans(FolderStorage(mount / "index")) == set()
    finally:
        subprocess.run(["umount", "--lazy", str(mount)], check=True)


def fill(progress: Progress) -> None:
    """Commit documents until the disk is full."""
    index = create_text(progress.storage)
    while True:
        index.add([{"id": f"f{progress.done}", "text": f"rome {progress.done} " * 50}])
        index.commit()
        progress.done += 1
