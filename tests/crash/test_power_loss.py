"""A commit that returned is there after a power cut, and nobody ever sees half of one."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from citadel import Index
from citadel.errors import CitadelError, IndexNotFoundError
from tests.support.broken import BROKEN
from tests.support.contents import Contents, contents_of, orphans
from tests.support.crashes import Crash, Crashes, Piece, State
from tests.support.disk import MemoryDisk
from tests.support.seeds import NIGHT, seeded
from tests.support.workload import CREATE, MEMORY, Step, everything

STATES = 1_000_000 if NIGHT else 25_000  # for each of two workloads
WRITERS = 20_000 if NIGHT else 1_100  # states, of each, from which the next writer goes on
AUDIT = 0.05  # share of states that are opened although one with the same readable files was opened before

Outcome = Contents | str | None  # what opening found, what it raised, or None where there is no index


def recorded(disk: MemoryDisk, kind: str) -> list[Contents | None]:
    """Run the workload; what the index holds after each acknowledgement, the first being "there is none yet"."""
    index, documents = CREATE[kind](disk), dict[str, str]()
    disk.acknowledge()
    found: list[Contents | None] = [None, contents_of(index)]
    for step in everything():
        step.apply(index)
        disk.acknowledge()
        documents = step.after(documents)
        found.append(contents_of(index))
        assert found[-1] is not None
        assert dict(found[-1].documents) == documents
    return found


class Harness:
    """Opens crash states and says which generation they are."""

    def __init__(self, disk: MemoryDisk, kind: str, expected: list[Contents | None], seed: str) -> None:
        self.kind, self.expected = kind, expected
        self.random = seeded(seed)
        self.crashes = Crashes(disk.log, self.random)
        self._known: dict[object, Outcome] = {}
        self.opened = self.writers = self.states = 0

    def failures(self, states: int, writers: int = 0) -> Iterator[str]:
        """Every state that is lost, mixed, or leaves the next writer dead."""
        for crash in self.crashes.states(states):
            self.states += 1
            outcome = self._outcome(crash.state)
            problem = self._problem(outcome, crash)
            if not problem and self.random.random() < 1.2 * writers / states:
                problem = self._next_writer(crash, outcome)
            if problem:
                operation = self.crashes.log[crash.operation]
                yield f"after operation {crash.operation} ({operation.kind} {operation.name}): {problem}"

    def _outcome(self, state: State) -> Outcome:
        """What opening finds. States whose newest generation has the same files are opened once, and some again."""
        key = self._readable(state)
        if key in self._known and self.random.random() > AUDIT:
            return self._known[key]
        found = self._open(MemoryDisk(self.crashes.data(state)))
        assert found == self._known.setdefault(key, found), f"files that nobody should read made a difference: {state}"
        return found

    def _readable(self, state: State) -> object:
        """The newest manifest and the files it names; without one, whether there are files at all."""
        files = dict(state)
        manifests = [name for name in files if name.startswith("gen.") and not name.endswith(".tmp")]
        if not manifests:
            return any(name.startswith(("seg-", "docs-", "del-")) for name in files)
        newest = files[max(manifests)]
        return newest, *((name, files.get(name)) for name in self._named(newest))

    def _named(self, manifest: Piece) -> list[str]:
        if not self.crashes.whole(manifest):
            return []
        data = json.loads(self.crashes.contents[manifest.file].partition(b"\n")[0])
        files = [segment[part]["name"] for segment in data["segments"] for part in ("file", "documents_file")]
        return files + ([data["deletions"]["name"]] if data["deletions"] else [])

    def _open(self, disk: MemoryDisk) -> Outcome:
        self.opened += 1
        try:
            index = Index.open(disk)
            index.check(deep=True)
            return contents_of(index)
        except IndexNotFoundError:
            return None
        except CitadelError as error:
            return f"{type(error).__name__}: {error}"

    def _problem(self, outcome: Outcome, crash: Crash) -> str | None:
        """A crash may leave the acknowledged generation or the one being committed, and no other."""
        allowed = self.expected[crash.acknowledged : crash.acknowledged + 2]
        if isinstance(outcome, str):
            return f"lost: {outcome}"
        if any(_same(outcome, one) for one in allowed):
            return None
        return "lost" if any(_same(outcome, one) for one in self.expected) else "mixed"

    def _next_writer(self, crash: Crash, before: Outcome) -> str | None:
        """The next writer opens, adds, commits, survives a power cut of its own, and leaves no orphan."""
        self.writers += 1
        disk = MemoryDisk(self.crashes.data(crash.state))
        try:
            index = CREATE[self.kind](disk) if before is None else Index.open(disk, memory=MEMORY)
            added = ("next", "rome apple next")
            _add(index, added)
            index.commit()
            after = contents_of(Index.open(disk.synced_only()))
        except (CitadelError, OSError) as error:
            return f"the next writer failed: {type(error).__name__}: {error}"
        old = before.documents if isinstance(before, Contents) else ()
        if after.documents != tuple(sorted({*old, added})) or "next" not in dict(after.ranking):
            return "the next writer's document was lost"
        return f"orphans {orphans(disk)}" if orphans(disk) else None


def _same(outcome: Outcome, expected: Contents | None) -> bool:
    if outcome is None or expected is None:
        return outcome is expected
    return isinstance(outcome, Contents) and outcome.same(expected)


def _add(index: Index, added: tuple[str, str]) -> None:
    Step(add=(added,)).apply(index)


@pytest.mark.parametrize("kind", ["text", "vectors"])
def test_no_power_cut_loses_or_mixes_a_commit(kind: str) -> None:
    disk = MemoryDisk()
    expected = recorded(disk, kind)
    harness = Harness(disk, kind, expected, f"power loss, {kind}")
    failures = list(harness.failures(STATES, WRITERS))
    print(
        f"{harness.states} states, {harness.opened} opened, {harness.writers} next writers, {len(disk.log)} operations"
    )
    assert failures == []
    assert harness.states >= STATES
    assert harness.writers >= 0.9 * WRITERS


@pytest.mark.parametrize("protocol", BROKEN, ids=lambda protocol: protocol.__name__)
def test_a_broken_protocol_is_caught(protocol: type[MemoryDisk]) -> None:
    disk = protocol()
    expected = recorded(disk, "text")
    harness = Harness(disk, "text", expected, protocol.__name__)
    assert any(failure for failure in harness.failures(5_000))


def test_a_crash_while_the_index_is_created_does_not_stand_in_the_way() -> None:
    disk = MemoryDisk({"gen.00000001.tmp": b"{"})
    index = CREATE["text"](disk)
    index.add([{"id": "d1", "text": "rome"}])
    index.commit()
    assert len(Index.open(disk.synced_only())) == 1
    assert orphans(disk) == set()
