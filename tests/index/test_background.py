"""Segments written by several threads equal those of one, and leave nothing behind when they fail."""

from __future__ import annotations

import gc
import itertools
import random
import signal
import threading
import time
import uuid
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from citadel import Index
from citadel.index import columns_file, commit, segment_writer
from citadel.index.background import Background, Stopped
from citadel.index.buffer import MemoryContents
from citadel.index.centroids import PROBE_FLOOR
from citadel.index.documents import Row, build_database
from tests.support.threads import write_with_threads

FIELDS = {"lexical": {"dimension": 4}, "semantic": {"dimension": 2}}


def documents(count: int) -> list[dict[str, Any]]:
    """Documents with two postings, a semantic vector, a text and metadata."""
    generator = np.random.default_rng(0)
    keys = generator.integers(50, size=(count, 2)).astype(np.uint32)
    vectors, semantic = (generator.standard_normal((count, *shape), np.float32) for shape in ((2, 4), (2,)))
    weights = np.ones(2, np.float32)
    return [
        {
            "id": f"d{number}",
            "text": f"text {number}",
            "year": 1900 + number % 7,
            "keys": keys[number],
            "weights": weights,
            "vectors": vectors[number],
            "semantic": semantic[number],
        }
        for number in range(count)
    ]


def running_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "citadel-write"]


def wait_until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def built(folder: Path, count: int, monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    """The files of an index whose random names are the same at every call."""
    draw = random.Random(1)
    monkeypatch.setattr(uuid, "uuid4", lambda: uuid.UUID(int=draw.getrandbits(128), version=4))
    with Index.create(folder, fields=FIELDS, fingerprint="m", router="dynamic", tau=0.5) as index:
        index.add_vectors(documents(count))
        index.commit(graph=False)
    return {file.name: file.read_bytes() for file in folder.iterdir()}


@pytest.mark.parametrize("count", [3, PROBE_FLOOR + 1])
def test_files_equal_those_of_one_thread(count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    threads = set[str]()

    def watched(*given: Any) -> None:
        threads.add(threading.current_thread().name)
        build_database(*given)

    monkeypatch.setattr(columns_file, "build_database", watched)
    monkeypatch.setattr(commit, "THREADED_DOCUMENTS", 1 << 60)
    one = built(tmp_path / "one", count, monkeypatch)
    assert threads == {threading.current_thread().name}
    write_with_threads(monkeypatch)
    assert built(tmp_path / "several", count, monkeypatch) == one
    assert any(name.startswith("citadel-write") for name in threads)
    assert {name.partition("-")[0] for name in one} >= {"seg", "docs", "cols"}


@pytest.mark.parametrize("failing", ["rows", "lists"])
def test_failed_write_ends_its_threads_and_keeps_nothing(
    failing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_with_threads(monkeypatch)
    index = Index.create(tmp_path / "idx", fields=FIELDS, fingerprint="m", router="dynamic", tau=0.5)
    before = {file.name for file in (tmp_path / "idx").iterdir()}

    def fail(*_: object) -> Iterator[Any]:
        raise ZeroDivisionError(failing)

    index.add_vectors(documents(9))
    with monkeypatch.context() as patched:
        if failing == "rows":
            patched.setattr(columns_file, "build_database", fail)
        else:
            patched.setattr(segment_writer, "_write_lists", fail)
        with pytest.raises(ZeroDivisionError, match=failing):
            index.commit()
    assert not running_threads()
    index.add_vectors(documents(9))
    index.commit()
    after = {file.name.partition("-")[0] for file in (tmp_path / "idx").iterdir()}
    assert after == {name.partition("-")[0] for name in before} | {"seg", "docs", "cols", "gen.00000002"}
    assert len(index) == 9


@pytest.mark.parametrize("threads", [1, 2])
def test_work_waits_for_its_result_without_threads(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", fail)
    done: list[int] = []
    with Background(threads) as background:
        result = background.start(lambda: done.append(1))
        assert not done
        result()
    assert done == [1]


def test_work_beyond_the_free_threads_waits_and_errors_are_raised() -> None:
    names: list[str] = []

    def work() -> None:
        names.append(threading.current_thread().name)
        raise ZeroDivisionError

    with Background(threads=2) as background:
        results = [background.start(work), background.start(work)]
        wait_until(lambda: names)
        for result in results:
            with pytest.raises(ZeroDivisionError):
                result()
    assert names == ["citadel-write", threading.current_thread().name]


def test_repeated_interrupts_leave_no_thread() -> None:
    main, ended = threading.get_ident(), threading.Event()

    def work() -> None:
        for _ in range(3):
            time.sleep(0.05)
            signal.pthread_kill(main, signal.SIGINT)
        time.sleep(0.1)
        ended.set()

    def write() -> None:
        with Background(threads=2) as background:
            background.start(work)
            time.sleep(10)

    with pytest.raises(KeyboardInterrupt):
        write()
    assert ended.is_set()
    assert not running_threads()


def test_interrupt_while_the_block_is_left_is_raised() -> None:
    main, begun, ended = threading.get_ident(), threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        time.sleep(0.05)
        signal.pthread_kill(main, signal.SIGINT)
        time.sleep(0.1)
        ended.set()

    def write() -> None:
        with Background(threads=2) as background:
            background.start(work)
            begun.wait()

    with pytest.raises(KeyboardInterrupt):
        write()
    assert ended.is_set()


@pytest.mark.parametrize("is_started", [False, True])
def test_interrupted_start_leaves_no_thread(is_started: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    start, begun, ended = threading.Thread.start, threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        time.sleep(0.1)
        ended.set()

    def interrupted(thread: threading.Thread) -> None:
        if is_started:
            start(thread)
            begun.wait()
        raise KeyboardInterrupt

    monkeypatch.setattr(threading.Thread, "start", interrupted)
    with pytest.raises(KeyboardInterrupt), Background(threads=2) as background:
        background.start(work)
    assert ended.is_set() == is_started
    assert not running_threads()


def test_error_stops_the_work_of_other_threads() -> None:
    def endless() -> None:
        for _ in background.stoppable(itertools.count()):
            time.sleep(0.001)

    def fail() -> None:
        raise OverflowError

    with Background(threads=3) as background:
        result = background.start(endless)
        background.start(fail)
        with pytest.raises(Stopped):
            result()
        with pytest.raises(OverflowError):  # the first error
            background.check()


def test_leaving_the_block_stops_work() -> None:
    def endless() -> None:
        for _ in background.stoppable(itertools.count()):
            begun.set()

    begun = threading.Event()
    with Background(threads=2) as background:
        background.start(endless)
        begun.wait()
    assert not running_threads()


def slow_rows(monkeypatch: pytest.MonkeyPatch) -> list[Row]:
    """The rows that were read of a document database; each takes 10 ms."""
    read, rows = [], MemoryContents.document_rows

    def slow(contents: MemoryContents) -> Iterator[Row]:
        for row in rows(contents):
            time.sleep(0.01)
            read.append(row)
            yield row

    monkeypatch.setattr(MemoryContents, "document_rows", slow)
    return read


def test_failed_lists_stop_the_documents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_with_threads(monkeypatch)
    read = slow_rows(monkeypatch)

    def fail(*_: object) -> None:
        wait_until(lambda: read)
        raise ZeroDivisionError

    monkeypatch.setattr(segment_writer, "_write_lists", fail)
    with Index.create(tmp_path / "idx", fields=FIELDS, fingerprint="m", router="dynamic", tau=0.5) as index:
        index.add_vectors(documents(200))
        with pytest.raises(ZeroDivisionError):
            index.commit()
    assert 0 < len(read) < 200


def test_failed_documents_stop_the_lists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_with_threads(monkeypatch)
    write_ids, packed = segment_writer._write_ids, list[object]()

    def fail(*_: object) -> None:
        raise ZeroDivisionError

    def write_ids_late(*given: Any) -> None:
        wait_until(lambda: not running_threads())
        write_ids(*given)

    monkeypatch.setattr(columns_file, "build_database", fail)
    monkeypatch.setattr(segment_writer, "_write_ids", write_ids_late)
    monkeypatch.setattr(segment_writer, "_write_lists", lambda *_: packed.append(None))
    with Index.create(tmp_path / "idx", fields=FIELDS, fingerprint="m", router="dynamic", tau=0.5) as index:
        index.add_vectors(documents(9))
        with pytest.raises(ZeroDivisionError):
            index.commit()
    assert not packed


class Contents:
    pass


@pytest.mark.parametrize("is_taken", [False, True])
def test_failed_work_frees_its_objects_without_a_collection(is_taken: bool) -> None:
    kept: list[weakref.ref[Contents]] = []

    def work() -> None:
        contents = Contents()
        kept.append(weakref.ref(contents))
        raise ZeroDivisionError

    def write() -> None:
        with Background(threads=2) as background:
            result = background.start(work)
            wait_until(lambda: not running_threads())
            if is_taken:
                result()
            raise ZeroDivisionError

    gc.disable()
    try:
        with pytest.raises(ZeroDivisionError) as raised:
            write()
        del raised
        assert kept[0]() is None
    finally:
        gc.enable()
