"""After a fork the child can search, but cannot write with the inherited index."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from citadel import Index, OwnershipError
from citadel.index.storage import FolderStorage
from tests.support.contents import orphans
from tests.support.seeds import NIGHT

FORKS = 60 if NIGHT else 25
SECONDS = 60  # timeout of a child


def in_child(work: Callable[[], None]) -> None:
    """Run in a forked child and fail if it fails or hangs."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns about forks with threads
        child = os.fork()
    if child == 0:
        status = 1
        try:
            work()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(status)
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            assert status == 0, "the child failed"
            return
        time.sleep(0.005)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    pytest.fail("the child hangs")


@contextlib.contextmanager
def busy(work: Callable[[], object], threads: int = 4) -> Iterator[None]:
    """Repeat an action in threads while the body runs."""
    stop, errors = threading.Event(), list[BaseException]()

    def loop() -> None:
        try:
            while not stop.is_set():
                work()
        except BaseException as error:
            errors.append(error)

    running = [threading.Thread(target=loop) for _ in range(threads)]
    for thread in running:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in running:
            thread.join()
    assert errors == []


def build(folder: Path, documents: int = 50, **options: object) -> Index:
    index = Index.create(folder, **options)  # type: ignore[arg-type]
    index.add({"id": f"d{n}", "text": f"rome word{n} {'filler ' * 20}"} for n in range(documents))
    return index.commit()


def test_child_searches_while_parent_threads_search(tmp_path: Path) -> None:
    index = build(tmp_path / "index", 300)
    searcher = index.searcher()

    def search() -> None:
        assert next(hit.text for hit in searcher.search("rome word7", k=20)).startswith("rome word7")
        assert index.get("d3") is not None

    with busy(search):
        for _ in range(FORKS):
            in_child(search)


def test_child_searches_with_model_while_parent_threads_encode(
    tmp_path: Path, tiny_model: Callable[..., Path]
) -> None:
    index = build(tmp_path / "index", 60, model=tiny_model(), threads=2)
    searcher = index.searcher()

    def search() -> None:
        assert len(searcher.search_batch({"q1": "rome word7", "q2": "word9"}, k=5).hits[0]) == 5

    with busy(search, 2):
        for _ in range(FORKS // 2):
            in_child(search)


def test_child_writes_its_own_index_while_parent_commits(tmp_path: Path) -> None:
    parent = build(tmp_path / "parent")
    numbers = iter(range(1 << 30))

    def commit() -> None:
        parent.add([{"id": f"new{next(numbers)}", "text": "rome"}])
        parent.commit()

    def child() -> None:
        own = build(tmp_path / f"child-{os.getpid()}", 5)
        assert len(own.searcher().search("rome", k=10)) == 5
        assert len(Index.open(tmp_path / "parent").searcher().search("rome", k=10)) == 10

    with busy(commit, 1):
        for _ in range(FORKS // 2):
            in_child(child)
    parent.check(deep=True)


@pytest.mark.parametrize("state", ["clean", "waiting", "spilled", "deleted", "during a call"])
def test_inherited_writer_is_refused_and_parent_commits(tmp_path: Path, state: str) -> None:
    index = build(tmp_path, memory=100_000)
    many = ({"id": f"new{n}", "text": f"rome {'x' * 300} {n}"} for n in range(400))

    def child() -> None:
        for change in (
            lambda: index.add([{"id": "theirs", "text": "rome"}]),
            lambda: index.delete(["d1"]),
            index.merge,
        ):
            with pytest.raises(OwnershipError, match="forked"):
                change()
        assert index.searcher().search("word7", k=1).ids == ["d7"]
        index.rollback()
        index.close()

    def stream() -> Iterator[dict[str, str]]:
        for count, document in enumerate(many):
            if count == 350:
                in_child(child)
            yield document

    if state == "waiting":
        index.add([{"id": "new0", "text": "rome"}])
    if state == "spilled":
        index.add(many)
    if state == "deleted":
        index.delete(["d0"])
    if state == "during a call":
        index.add(stream())
    else:
        in_child(child)
    expected = {"clean": 50, "waiting": 51, "spilled": 450, "deleted": 49, "during a call": 450}[state]
    assert len(index.commit()) == expected
    index.check(deep=True)
    assert orphans(FolderStorage(tmp_path)) == set()


def test_exiting_child_removes_none_of_its_parents_files(tmp_path: Path) -> None:
    index = build(tmp_path, memory=100_000)
    index.add({"id": f"new{n}", "text": f"rome {'x' * 300} {n}"} for n in range(400))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        try:
            index.close()
            del index
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert len(index.commit()) == 450
    index.check(deep=True)


def test_child_does_not_keep_its_parents_lock(tmp_path: Path) -> None:
    index = build(tmp_path)
    index.add([{"id": "new", "text": "rome"}])
    read, write = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        os.close(write)
        os.read(read, 1)  # wait for the parent
        os._exit(0)
    os.close(read)
    try:
        index.commit()
        other = Index.open(tmp_path)
        other.add([{"id": "newer", "text": "rome"}])
        assert len(other.commit()) == 52
    finally:
        os.close(write)
        os.waitpid(child, 0)


def test_second_writer_is_refused_during_and_after_a_fork(tmp_path: Path) -> None:
    from citadel import LockHeldError

    index = build(tmp_path)
    index.add([{"id": "new", "text": "rome"}])
    in_child(lambda: None)
    with pytest.raises(LockHeldError):
        Index.open(tmp_path).add([{"id": "newer", "text": "rome"}])
    assert len(index.commit()) == 51
