"""Every disk that a power cut could leave behind: what was not synced is lost, torn, zeroed or reordered."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from tests.support.disk import Operation


class Piece(NamedTuple):
    """What is left of a file: its first `length` bytes, those from `zero` to `end` read as zeros."""

    file: int
    length: int
    zero: int = 0
    end: int = 0


State = tuple[tuple[str, Piece], ...]  # (name, piece), sorted
Effect = dict[str, int | None]  # what an operation on the folder does: name → file, or None where the name goes


class Crash(NamedTuple):
    """A disk after a power cut, and how many acknowledgements had been given before it."""

    state: State
    acknowledged: int
    operation: int


class Crashes:
    """Walks through a log of operations and crashes after each."""

    def __init__(self, log: Sequence[Operation], generator: random.Random) -> None:
        self.log, self._random = log, generator
        self.contents = _contents(log)
        self._seen: set[int] = set()
        self._rewind()

    def _rewind(self) -> None:
        self._written: dict[int, int] = {}
        self._synced: dict[int, int] = {}
        self._names: dict[str, int] = {}  # durable
        self._pending: list[Effect] = []  # not yet

    def states(self, wanted: int) -> Iterator[Crash]:
        """At least `wanted` states, each of them once, in as many walks as they take."""
        while len(self._seen) < wanted:
            before = len(self._seen)
            yield from self._walk(max((wanted - before) // len(self.log), 1))
            if len(self._seen) == before:
                return  # there are no more

    def _walk(self, share: int) -> Iterator[Crash]:
        """Crash after each operation; more often after those on names, where order matters."""
        self._rewind()
        acknowledged = 0
        for place, operation in enumerate(self.log):
            acknowledged += operation.kind == "acknowledge"
            self._apply(operation)
            for state in self._some(share if operation.kind == "write" else 5 * share):
                yield Crash(state, acknowledged, place)

    def data(self, state: State) -> dict[str, bytes]:
        """The bytes of a state's files."""
        return {name: self._bytes(piece) for name, piece in state}

    def _bytes(self, piece: Piece) -> bytes:
        data = self.contents[piece.file][: piece.length]
        return data[: piece.zero] + bytes(piece.end - piece.zero) + data[piece.end :] if piece.end else data

    def whole(self, piece: Piece) -> bool:
        """Whether nothing of a file is missing."""
        return piece == Piece(piece.file, len(self.contents[piece.file]))

    # -- the walk ----------------------------------------------------------------------------------------------------

    def _apply(self, operation: Operation) -> None:
        kind, file = operation.kind, operation.file
        if kind == "write":
            self._written[file] += len(operation.data)
        elif kind == "fsync":
            self._synced[file] = self._written[file]
        elif kind == "sync":
            self._names = self._named(self._pending)
            self._pending = []
        elif kind == "create":
            self._written[file] = self._synced[file] = 0
            self._pending.append({operation.name: file})
        elif kind == "rename":
            self._pending.append({operation.name: None, operation.new: file})
        elif kind == "remove":
            self._pending.append({operation.name: None})

    def _named(self, effects: Sequence[Effect]) -> dict[str, int]:
        names: dict[str, int | None] = dict(self._names)
        for effect in effects:
            names |= effect
        return {name: file for name, file in names.items() if file is not None}

    # -- states ------------------------------------------------------------------------------------------------------

    def _some(self, wanted: int) -> Iterator[State]:
        """Up to `wanted` states that were not seen before."""
        for chosen in self._choices(4 * wanted):
            names = self._named([effect for effect, keep in zip(self._pending, chosen, strict=True) if keep])
            state = tuple(sorted((name, self._piece(file)) for name, file in names.items()))
            if hash(state) not in self._seen:
                self._seen.add(hash(state))
                yield state
                wanted -= 1
                if not wanted:
                    return

    def _choices(self, tries: int) -> Iterator[Sequence[bool]]:
        """Which of the pending effects reached the disk: all, none, in order, all but one, one alone, then any."""
        count = len(self._pending)
        plain = [[place < kept for place in range(count)] for kept in range(count + 1)]
        plain += [[place != lost for place in range(count)] for lost in range(count)]
        plain += [[place == kept for place in range(count)] for kept in range(count)]
        self._random.shuffle(plain)
        yield [True] * count
        yield from plain[: tries // 2]
        for _ in range(tries // 2):
            yield [self._random.random() < 0.5 for _ in range(count)]

    def _piece(self, file: int) -> Piece:
        synced, written = self._synced[file], self._written[file]
        if synced == written:
            return Piece(file, synced)
        length = self._random.choice((synced, written, written, self._random.randint(synced, written)))
        zero, end = self._random.choice(
            ((0, 0), (synced, length), tuple(sorted(self._random.choices(range(synced, length + 1), k=2))))
        )
        return Piece(file, length, zero, end) if zero < end else Piece(file, length)


def _contents(log: Sequence[Operation]) -> dict[int, bytes]:
    """All bytes that each file ever had."""
    found: dict[int, bytearray] = {}
    for operation in log:
        if operation.kind == "create":
            found[operation.file] = bytearray()
        elif operation.kind == "write":
            found[operation.file] += operation.data
    return {file: bytes(data) for file, data in found.items()}
