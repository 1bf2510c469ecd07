"""Threads share an Index: commits are durable, and every ranking is of one generation."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from citadel import CitadelError, Index, InputError
from citadel.index.storage import FolderStorage
from tests.support.contents import orphans
from tests.support.seeds import NIGHT

THREADS = 8
ROUNDS = 80 if NIGHT else 25
FIELDS: dict[str, Any] = {"lexical": 4}
Add = Callable[[Index, list[str]], int]


def add_text(index: Index, ids: list[str]) -> int:
    return index.add({"id": id, "text": f"rome {id} {'x' * 200}"} for id in ids)


def add_vectors(index: Index, ids: list[str]) -> int:
    given = (
        {"id": id, "keys": [1, 2], "weights": [1.0, 1.0], "vectors": [[1.0] * 4] * 2, "text": id}
        for id in ids
    )
    return index.add_vectors(list(given))


class Worker(threading.Thread):
    """Adds, deletes, commits, refreshes and searches; tracks the expected documents."""

    def __init__(self, index: Index, name: str, add: Add, seed: int) -> None:
        super().__init__(name=name)
        self._index, self._add, self._random = index, add, random.Random(f"{seed}-{name}")
        self.waiting: dict[str, bool] = {}  # id → whether it exists after the commit
        self.durable: dict[str, bool] = {}
        self.errors: list[BaseException] = []

    def run(self) -> None:
        try:
            for turn in range(ROUNDS):
                self._round(turn)
            self._commit()
        except BaseException as error:
            self.errors.append(error)

    def _round(self, turn: int) -> None:
        ids = [f"{self.name}-{turn}-{n}" for n in range(self._random.randrange(1, 12))]
        assert self._add(self._index, ids) == len(ids)
        self.waiting |= dict.fromkeys(ids, True)
        if self._random.random() < 0.4 and self.durable:
            deleted = self._random.sample(sorted(self.durable), 1)
            self._index.delete(deleted)
            self.waiting |= dict.fromkeys(deleted, False)
        if self._random.random() < 0.5:
            self._commit()
        if self._random.random() < 0.3:
            self._index.refresh()
        self._search()

    def _commit(self) -> None:
        self._index.commit()
        self.durable |= self.waiting
        self.waiting = {}
        for id in self._random.sample(sorted(self.durable), min(5, len(self.durable))):
            assert (id in self._index) == self.durable[id], id

    def _search(self) -> None:
        searcher = self._index.searcher()
        if self._index.settings.router == "bm25":
            hits = searcher.search("rome", k=20)
        else:
            hits = searcher.search_vectors([1], [1.0], [[1.0] * 4], k=20)
        assert [hit.text for hit in hits] == [hit.text for hit in hits]
        assert len(hits) == min(20, len(searcher))


@pytest.mark.parametrize("memory", [100_000, 1 << 30])
@pytest.mark.parametrize("kind", ["text", "vectors"])
def test_eight_threads_share_an_index(tmp_path: Path, kind: str, memory: int, seed: int) -> None:
    options: dict[str, Any] = {} if kind == "text" else {"fields": FIELDS, "fingerprint": "f"}
    index = Index.create(tmp_path, memory=memory, **options)
    add = add_text if kind == "text" else add_vectors
    workers = [Worker(index, f"t{n}", add, seed) for n in range(THREADS)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [error for worker in workers for error in worker.errors] == []
    expected = {id for worker in workers for id, present in worker.durable.items() if present}
    fresh = Index.open(tmp_path)
    assert {id for id in expected if id not in fresh} == set()
    assert len(fresh) == len(expected)
    fresh.check(deep=True)
    assert not index.has_changes
    assert orphans(FolderStorage(tmp_path)) == set()


def test_commit_does_not_wait_for_a_running_add(tmp_path: Path) -> None:
    index = Index.create(tmp_path)
    started, committed = threading.Event(), threading.Event()

    def stream() -> Iterator[dict[str, Any]]:
        yield {"id": "slow", "text": "rome"}
        started.set()
        assert committed.wait(60)
        yield {"id": "slower", "text": "rome"}

    adding = threading.Thread(target=lambda: index.add(stream()))
    adding.start()
    assert started.wait(60)
    index.add([{"id": "quick", "text": "rome"}])
    assert len(index.commit()) == 1  # without the documents of the running call
    committed.set()
    adding.join()
    assert len(index.commit()) == 3


def test_failing_add_drops_only_its_own_documents(tmp_path: Path) -> None:
    index = Index.create(tmp_path, memory=100_000)
    failures: list[BaseException] = []

    def broken(name: int) -> Iterator[dict[str, Any]]:
        for number in range(300):
            yield {"id": f"broken-{name}-{number}", "text": f"rome {'x' * 300} {number}"}
        raise OSError("connection lost")

    def fail(name: int) -> None:
        try:
            index.add(broken(name))
        except OSError as error:
            failures.append(error)

    threads = [threading.Thread(target=fail, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for number in range(200):
        index.add([{"id": f"whole-{number}", "text": f"rome {number}"}])
        if number % 20 == 0:
            index.commit()
    for thread in threads:
        thread.join()
    assert len(failures) == 4
    assert len(index.commit()) == 200
    index.check(deep=True)
    assert orphans(FolderStorage(tmp_path)) == set()


def test_invalid_document_does_not_affect_other_threads(tmp_path: Path) -> None:
    index = Index.create(tmp_path)

    def add(name: int) -> None:
        with pytest.raises(InputError):
            index.add([{"id": f"{name}-first", "text": "rome"}, {"id": "", "text": "no id"}])

    threads = [threading.Thread(target=add, args=(n,)) for n in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(index.commit()) == THREADS


def test_rollback_and_close_while_other_threads_write(tmp_path: Path) -> None:
    index = Index.create(tmp_path)
    stop, errors = time.monotonic() + 1, list[BaseException]()

    def write(name: int) -> None:
        number = 0
        try:
            while time.monotonic() < stop:
                number += 1
                index.add([{"id": f"{name}-{number}", "text": "rome"}])
                index.rollback() if name == 0 else index.commit()
        except CitadelError as error:
            errors.append(error)

    threads = [threading.Thread(target=write, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    index.close()
    assert errors == []
    Index.open(tmp_path).check(deep=True)
    assert orphans(FolderStorage(tmp_path)) == set()
