"""A writer killed at any moment loses no acknowledged commit, and the next one can write."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from citadel import Index
from citadel.index.storage import FolderStorage
from tests.support.children import Nursery
from tests.support.contents import Contents, checked_contents, contents_of, orphans
from tests.support.disk import MemoryDisk
from tests.support.seeds import NIGHT, fast_folder, seeded
from tests.support.watched import READING, WRITING
from tests.support.workload import CREATE, MEMORY, Step, brief, endless

CYCLES = 300 if NIGHT else 100
REFERENCE = 150  # steps of the build without kills


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    nursery = Nursery()
    yield nursery
    nursery.close()


def never_killed(kind: str, steps: Iterable[Step]) -> Iterator[Contents | None]:
    """The contents after 0, 1, 2 … steps; the first creates the index."""
    yield None
    index, documents = CREATE[kind](MemoryDisk()), dict[str, str]()
    yield contents_of(index)
    for step in steps:
        step.apply(index)
        documents = step.after(documents)
        contents = contents_of(index)
        assert dict(contents.documents) == documents
        yield contents


def steps_done(contents: Contents | None, done: int, expected: list[Contents | None]) -> int:
    """The number of steps in the index: those acknowledged, and perhaps the one in progress."""
    for steps in (done, done + 1):
        one = expected[steps]
        if (contents is None) is (one is None) and (contents is None or one is None or contents.same(one)):
            return steps
    raise AssertionError(f"{done} steps were acknowledged, the index holds something else")


def next_writer(folder: Path, kind: str, contents: Contents | None) -> None:
    """Add a document, commit, search for it, check for orphans, and delete it again."""
    index = CREATE[kind](str(folder)) if contents is None else Index.open(folder, memory=MEMORY)
    Step(add=(("next", "rome apple next"),)).apply(index)
    after = contents_of(Index.open(folder))
    assert dict(after.documents) == dict(contents.documents if contents else ()) | {"next": "rome apple next"}
    assert "next" in dict(after.ranking)
    assert orphans(FolderStorage(folder)) == set()
    Step(delete=("next",)).apply(index)


@pytest.mark.parametrize("kind", ["text", "graphs", pytest.param("vectors", marks=pytest.mark.night)])
def test_kill_at_every_storage_call(kind: str, nursery: Nursery) -> None:
    expected = list(never_killed(kind, brief()))
    order = {"kind": kind, "brief": True, "first": 0, "last": len(expected) - 1}
    with tempfile.TemporaryDirectory(dir=fast_folder()) as path:
        calls = nursery.run(folder=f"{path}/index", **order)["calls"]
    points = [(call, number) for call in (*WRITING, *READING) for number in range(1, calls.get(call, 0) + 1)]
    assert {call for call, _ in points} == {*WRITING, *READING}
    print(f"{len(points)} kill points")
    for point in points:
        with tempfile.TemporaryDirectory(dir=fast_folder()) as path:
            answer = nursery.run(folder=f"{path}/index", kill=point, **order)
            assert answer["status"] == -9
            contents = checked_contents(Path(path) / "index")
            steps_done(contents, len(answer["acknowledged"]), expected)
            next_writer(Path(path) / "index", kind, contents)


@pytest.mark.parametrize(
    ("kind", "threads"), [("text", False), ("vectors", False), ("graphs", False), ("vectors", True)]
)
def test_repeated_kills_in_one_folder(kind: str, threads: bool, nursery: Nursery) -> None:
    expected = list(never_killed(kind, itertools.islice(endless(), REFERENCE)))
    generator, cycles = seeded(f"process death, {kind}"), CYCLES // 2
    while cycles:
        with tempfile.TemporaryDirectory(dir=fast_folder()) as path:
            folder, done = Path(path) / "index", 0
            while cycles and done < REFERENCE - 1:
                order = {"first": done, "last": REFERENCE, "milliseconds": generator.randint(5, 300)}
                answer = nursery.run(folder=str(folder), kind=kind, threads=threads, **order)
                assert answer["status"] in (-9, 0)
                done += len(answer["acknowledged"])
                done = steps_done(checked_contents(folder), done, expected)
                cycles -= 1
            next_writer(folder, kind, checked_contents(folder))


def test_lock_of_a_killed_writer_is_free(nursery: Nursery) -> None:
    """The kernel frees it at once."""
    with tempfile.TemporaryDirectory(dir=fast_folder()) as path:
        answer = nursery.run(folder=path, kind="text", first=0, last=9, kill=("rename", 4))
        assert answer["status"] == -9
        index = Index.open(path)
        index.add([{"id": "next", "text": "rome"}])
        index.commit()
        assert "next" in Index.open(path)
