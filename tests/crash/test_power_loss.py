"""A commit that returned survives a power loss, and no reader sees a partial commit."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from citadel import Index
from citadel.errors import CitadelError
from tests.support.broken import BROKEN
from tests.support.contents import Contents, checked_contents, contents_of, orphans
from tests.support.crashes import Crash, Crashes, Piece, State
from tests.support.disk import MemoryDisk
from tests.support.seeds import NIGHT, seeded
from tests.support.threads import write_with_threads
from tests.support.workload import CREATE, MEMORY, Step, everything

STATES = 60_000 if NIGHT else 25_000  # per workload
WRITERS = 2_500 if NIGHT else 1_100  # states per workload from which the next writer continues
AUDIT = 0.05  # share of states opened again although their files are known

Outcome = Contents | str | None  # contents, error, or None without an index


def recorded(disk: MemoryDisk, kind: str) -> list[Contents | None]:
    """Run the workload and return the contents after each acknowledgement, at first None."""
    index, documents = CREATE[kind](disk), dict[str, str]()
    disk.acknowledge()
    states: list[Contents | None] = [None, contents_of(index)]
    for step in everything():
        step.apply(index)
        disk.acknowledge()
        documents = step.after(documents)
        states.append(contents_of(index))
        assert states[-1] is not None
        assert dict(states[-1].documents) == documents
    return states


class Harness:
    """Opens crash states and checks which generation they show."""

    def __init__(self, disk: MemoryDisk, kind: str, expected: list[Contents | None], seed: str) -> None:
        self.kind, self.expected = kind, expected
        self.random = seeded(seed)
        self.crashes = Crashes(disk.log, self.random)
        self._known: dict[object, Outcome] = {}
        self.opened = self.writers = self.states = 0

    def failures(self, states: int, writers: int = 0) -> Iterator[str]:
        """All states that lose or mix commits, or block the next writer."""
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
        """The outcome of opening; equal states are opened once, and a sample of them again."""
        key = self._readable(state)
        if key in self._known and self.random.random() > AUDIT:
            return self._known[key]
        outcome = self._open(MemoryDisk(self.crashes.data(state)))
        assert outcome == self._known.setdefault(key, outcome), (
            f"files that nobody should read made a difference: {state}"
        )
        return outcome

    def _readable(self, state: State) -> object:
        """The newest manifest and its files; without a manifest, whether there are files."""
        files = dict(state)
        manifests = [name for name in files if name.startswith("gen.") and not name.endswith(".tmp")]
        if not manifests:
            return any(
                name.startswith(("seg-", "docs-", "cols-", "del-", "graph-", "words-")) for name in files
            )
        newest = files[max(manifests)]
        return newest, *((name, files.get(name)) for name in self._named(newest))

    def _named(self, manifest: Piece) -> list[str]:
        if not self.crashes.whole(manifest):
            return []
        data = json.loads(self.crashes.contents[manifest.file].partition(b"\n")[0])
        parts = ("file", "documents_file", "columns_file", "graph_file")
        files = [segment[part]["name"] for segment in data["segments"] for part in parts if segment[part]]
        files += [segment["words"]["file"]["name"] for segment in data["segments"] if "words" in segment]
        return files + ([data["deletions"]["name"]] if data["deletions"] else [])

    def _open(self, disk: MemoryDisk) -> Outcome:
        self.opened += 1
        try:
            return checked_contents(disk)
        except CitadelError as error:
            return f"{type(error).__name__}: {error}"

    def _problem(self, outcome: Outcome, crash: Crash) -> str | None:
        """A crash may leave only the acknowledged generation or the one being committed."""
        allowed = self.expected[crash.acknowledged : crash.acknowledged + 2]
        if isinstance(outcome, str):
            return f"lost: {outcome}"
        if any(_same(outcome, one) for one in allowed):
            return None
        return "lost" if any(_same(outcome, one) for one in self.expected) else "mixed"

    def _next_writer(self, crash: Crash, before: Outcome) -> str | None:
        """The next writer adds, commits, survives a power loss and leaves no orphans."""
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


@pytest.mark.parametrize(
    ("kind", "share", "threads"),
    [
        ("text", 1, False),
        ("vectors", 1, False),
        ("graphs", 1, False),
        ("hybrid", 8, False),
        ("text", 8, True),
        ("vectors", 8, True),
    ],
)
def test_power_loss_never_loses_or_mixes_commits(
    kind: str, share: int, threads: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`share` is the part of the states that is opened, for workloads with many files."""
    if threads:
        write_with_threads(monkeypatch)
    states, writers = STATES // share, WRITERS // share
    disk = MemoryDisk()
    expected = recorded(disk, kind)
    harness = Harness(disk, kind, expected, f"power loss, {kind}")
    assert any("graph-" in operation.name for operation in disk.log) is (kind == "graphs")
    assert any("words-" in operation.name for operation in disk.log) is (kind == "hybrid")
    failures = list(harness.failures(states, writers))
    opened = f"{harness.states} states, {harness.opened} opened"
    print(f"{opened}, {harness.writers} next writers, {len(disk.log)} operations")
    assert failures == []
    assert harness.states >= states
    assert harness.writers >= 0.9 * writers


@pytest.mark.parametrize("threads", [False, True])
@pytest.mark.parametrize("protocol", BROKEN, ids=lambda protocol: protocol.__name__)
def test_broken_protocol_is_detected(
    protocol: type[MemoryDisk], threads: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if threads:
        write_with_threads(monkeypatch)
    disk = protocol()
    expected = recorded(disk, "text")
    harness = Harness(disk, "text", expected, protocol.__name__)
    assert any(failure for failure in harness.failures(5_000))


def test_index_can_be_created_after_a_crash_during_creation() -> None:
    disk = MemoryDisk({"gen.00000001.tmp": b"{"})
    index = CREATE["text"](disk)
    index.add([{"id": "d1", "text": "rome"}])
    index.commit()
    assert len(Index.open(disk.synced_only())) == 1
    assert orphans(disk) == set()
