"""Readers in threads and processes see whole generations while a writer commits and merges."""

from __future__ import annotations

import contextlib
import itertools
import json
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from citadel import Index
from citadel.index.garbage import PREFIXES
from citadel.index.storage import FolderStorage
from tests.concurrency.reader import observe
from tests.support.children import start
from tests.support.contents import ranking_of
from tests.support.seeds import NIGHT, fast_folder
from tests.support.workload import CREATE, MEMORY, document, endless

THREADS, PROCESSES = 4, 2
COMMITS = 100
SECONDS = 60 if NIGHT else 0  # how long to commit in a night run


class Expected(FolderStorage):
    """A storage that records the ranking of each generation before its manifest is renamed."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.writer: Index | None = None
        self.rankings: dict[int, Any] = {}

    def rename(self, old: str, new: str) -> None:
        if new.startswith("gen."):
            self.rankings[int(new[4:])] = self._ranking(old)
        super().rename(old, new)

    def _ranking(self, manifest: str) -> Any:
        """The ranking of an unpublished generation, read through a folder of links."""
        with tempfile.TemporaryDirectory(dir=self.path.parent) as path:
            for name in self.names():
                if name.startswith(PREFIXES) and not name.endswith(".tmp"):
                    (Path(path) / name).hardlink_to(self.path / name)
            (Path(path) / manifest.removesuffix(".tmp")).hardlink_to(self.path / manifest)
            return json.loads(observe(Index.open(path)))


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=fast_folder()) as path:
        yield Path(path) / "index"


def read(folder: Path, stop: threading.Event, rankings: set[str], errors: list[BaseException]) -> None:
    """Read the index until stopped, opened again or refreshed."""
    try:
        index = Index.open(folder)
        for turn in itertools.count():
            if stop.is_set():
                return
            if turn % 3 == 0:
                index = Index.open(folder)
            rankings.add(observe(index.refresh()))
    except BaseException as error:
        errors.append(error)


@contextlib.contextmanager
def threads(folder: Path) -> Iterator[set[str]]:
    stop, rankings, errors = threading.Event(), set[str](), list[BaseException]()
    readers = [threading.Thread(target=read, args=(folder, stop, rankings, errors)) for _ in range(THREADS)]
    for reader in readers:
        reader.start()
    try:
        yield rankings
    finally:
        stop.set()
        for reader in readers:
            reader.join()
    assert errors == []


@contextlib.contextmanager
def processes(folder: Path) -> Iterator[set[str]]:
    readers = [start("tests.concurrency.reader", str(folder)) for _ in range(PROCESSES)]
    rankings: set[str] = set()
    try:
        yield rankings
    finally:
        outputs = [reader.communicate()[0].splitlines() for reader in readers]
    assert [reader.returncode for reader in readers] == [0] * PROCESSES
    for lines in outputs:
        assert int(lines[0]) > 0
        rankings.update(lines[1:])


def write(storage: Expected) -> int:
    """Commit and merge; return the number of commits."""
    index, end, commits = Index.open(storage, memory=MEMORY), time.monotonic() + SECONDS, 0
    for commits, step in enumerate(endless(), 1):
        step.apply(index)
        if commits >= COMMITS and time.monotonic() >= end:
            break
    return commits


def test_every_ranking_is_that_of_one_generation(folder: Path) -> None:
    storage = Expected(folder)
    index = CREATE["text"](storage)
    index.add([{"id": id, "text": text} for id, text in (document(0), document(1))])
    index.commit()
    with processes(folder) as far, threads(folder) as near:
        commits = write(storage)
    assert commits >= 100
    results = [json.loads(line) for line in near | far]
    generations = {generation for generation, *_ in results}
    print(f"{commits} commits, {len(storage.rankings)} generations, {len(generations)} of them read")
    for generation, *ranking in results:
        assert [generation, *ranking] == storage.rankings[generation]
    assert len(generations) > 20


def test_searcher_keeps_its_generation(folder: Path) -> None:
    """Removed files stay readable for a searcher that has them open."""
    index = CREATE["text"](str(folder))
    index.add([{"id": id, "text": text} for id, text in map(document, range(5))])
    index.commit()
    old = Index.open(folder)
    before = ranking_of(old), [hit.text for hit in old.searcher().search("rome")]
    for step in itertools.islice(endless(), 30):
        step.apply(index)
    assert (ranking_of(old), [hit.text for hit in old.searcher().search("rome")]) == before


def test_many_threads_share_one_searcher(folder: Path) -> None:
    index = CREATE["text"](str(folder))
    for step in itertools.islice(endless(), 20):
        step.apply(index)
    searcher = index.searcher(threads=2)

    def answers() -> list[tuple[str, float, str]]:
        return [(hit.id, hit.score, hit.text) for hit in searcher.search("rome apple w1", k=50)]

    expected, results = answers(), list[bool]()
    workers = [
        threading.Thread(target=lambda: results.extend(answers() == expected for _ in range(50)))
        for _ in range(8)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert results == [True] * 400
