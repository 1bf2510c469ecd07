"""Segments written by several threads equal those of one, and leave nothing behind when they fail."""

from __future__ import annotations

import random
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from citadel import Index
from citadel.index import columns_file, commit, segment_writer
from citadel.index.background import Background
from citadel.index.centroids import PROBE_FLOOR
from citadel.index.documents import build_database
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
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("citadel-write")]
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
        for result in [background.start(work), background.start(work)]:
            with pytest.raises(ZeroDivisionError):
                result()
    assert names == ["citadel-write", threading.current_thread().name]
