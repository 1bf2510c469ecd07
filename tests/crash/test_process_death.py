"""A writer killed at any moment loses nothing that it acknowledged, and the next one goes on."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from citadel import Index
from citadel.errors import IndexNotFoundError
from citadel.index.storage import FolderStorage
from tests.support.children import Nursery
from tests.support.contents import Contents, contents_of, orphans
from tests.support.disk import MemoryDisk
from tests.support.seeds import NIGHT, fast_folder, seeded
from tests.support.watched import READING, WRITING
from tests.support.workload import CREATE, MEMORY, Step, brief, endless

CYCLES = 5_000 if NIGHT else 100
REFERENCE = 150  # steps of the build that is never killed


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    nursery = Nursery()
    yield nursery
    nursery.close()


def never_killed(kind: str, steps: Iterable[Step]) -> Iterator[Contents | None]:
    """What an index holds after 0, 1, 2 … steps, the first of which creates it."""
    yield None
    index, documents = CREATE[kind](MemoryDisk()), dict[str, str]()
    yield contents_of(index)
    for step in steps:
        step.apply(index)
        documents = step.after(documents)
        found = contents_of(index)
        assert dict(found.documents) == documents
        yield found


def state(folder: Path) -> Contents | None:
    try:
        index = Index.open(folder)
        index.check(deep=True)
        return contents_of(index)
    except IndexNotFoundError:
        return None


def steps_done(found: Contents | None, done: int, expected: list[Contents | None]) -> int:
    """How many steps are in the index: those acknowledged, or the one that was under way as well."""
    for steps in (done, done + 1):
        one = expected[steps]
        if (found is None) is (one is None) and (found is None or one is None or found.same(one)):
            return steps
    raise AssertionError(f"{done} steps were acknowledged, the index holds something else")


def next_writer(folder: Path, kind: str, found: Contents | None) -> None:
    """It opens, adds, commits, finds its document, and leaves no orphan; then it takes the document out again."""
    index = CREATE[kind](str(folder)) if found is None else Index.open(folder, memory=MEMORY)
    Step(add=(("next", "rome apple next"),)).apply(index)
    after = contents_of(Index.open(folder))
    assert dict(after.documents) == dict(found.documents if found else ()) | {"next": "rome apple next"}
    assert "next" in dict(after.ranking)
    assert orphans(FolderStorage(folder)) == set()
    Step(delete=("next",)).apply(index)


@pytest.mark.parametrize("kind", ["text", pytest.param("vectors", marks=pytest.mark.night)])
def test_killed_at_every_storage_call(kind: str, nursery: Nursery) -> None:
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
            found = state(Path(path) / "index")
            steps_done(found, len(answer["acknowledged"]), expected)
            next_writer(Path(path) / "index", kind, found)


@pytest.mark.parametrize("kind", ["text", "vectors"])
def test_killed_again_and_again(kind: str, nursery: Nursery) -> None:
    """One folder lives through many deaths."""
    expected = list(never_killed(kind, itertools.islice(endless(), REFERENCE)))
    generator, cycles = seeded(f"process death, {kind}"), CYCLES // 2
    while cycles:
        with tempfile.TemporaryDirectory(dir=fast_folder()) as path:
            folder, done = Path(path) / "index", 0
            while cycles and done < REFERENCE - 1:
                order = {"first": done, "last": REFERENCE, "milliseconds": generator.randint(5, 300)}
                answer = nursery.run(folder=str(folder), kind=kind, **order)
                assert answer["status"] in (-9, 0)
                done += len(answer["acknowledged"])
                done = steps_done(state(folder), done, expected)
                cycles -= 1
            next_writer(folder, kind, state(folder))


def test_the_next_writer_waits_for_nobody(nursery: Nursery) -> None:
    """A killed holder's lock is free at once."""
    with tempfile.TemporaryDirectory(dir=fast_folder()) as path:
        answer = nursery.run(folder=path, kind="text", first=0, last=9, kill=("rename", 4))
        assert answer["status"] == -9
        index = Index.open(path)
        index.add([{"id": "next", "text": "rome"}])
        index.commit()
        assert "next" in Index.open(path)
