"""Disk states after a power loss: unsynced changes are lost, torn, zeroed or reordered."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from tests.support.disk import Operation, folder_of


class Piece(NamedTuple):
    """What remains of a file: its first `length` bytes, of which `zero` … `end` − 1 are zeros."""

    file: int
    length: int
    zero: int = 0
    end: int = 0


State = tuple[tuple[str, Piece], ...]  # (name, piece), sorted
Effect = dict[str, int | None]  # of an operation on the folder: name → file, or None if it is removed


class Crash(NamedTuple):
    """A disk after a power loss, and the number of acknowledgements before it."""

    state: State
    acknowledged: int
    operation: int


class Crashes:
    """Replays a log of operations and crashes after each."""

    def __init__(self, log: Sequence[Operation], generator: random.Random) -> None:
        self.log, self._random = log, generator
        self.contents = _contents(log)
        self._seen: set[int] = set()
        self._rewind()

    def _rewind(self) -> None:
        self._written: dict[int, int] = {}
        self._synced: dict[int, int] = {}
        self._names: dict[str, int] = {}  # durable
        self._pending: list[Effect] = []  # not yet durable

    def states(self, wanted: int) -> Iterator[Crash]:
        """Yield at least `wanted` distinct states, over as many walks as needed."""
        while len(self._seen) < wanted:
            before = len(self._seen)
            yield from self._walk(max((wanted - before) // len(self.log), 1))
            if len(self._seen) == before:
                return  # all states were seen

    def _walk(self, share: int) -> Iterator[Crash]:
        """Crash after each operation, more often after those on names, where order matters."""
        self._rewind()
        acknowledged = 0
        for number, operation in enumerate(self.log):
            acknowledged += operation.kind == "acknowledge"
            self._apply(operation)
            for state in self._some(share if operation.kind == "write" else 5 * share):
                yield Crash(state, acknowledged, number)

    def data(self, state: State) -> dict[str, bytes]:
        """Contents of a state's files."""
        return {name: self._bytes(piece) for name, piece in state}

    def _bytes(self, piece: Piece) -> bytes:
        data = self.contents[piece.file][: piece.length]
        return data[: piece.zero] + bytes(piece.end - piece.zero) + data[piece.end :] if piece.end else data

    def whole(self, piece: Piece) -> bool:
        """Whether a file is complete."""
        return piece == Piece(piece.file, len(self.contents[piece.file]))

    def _apply(self, operation: Operation) -> None:
        kind, file = operation.kind, operation.file
        if kind == "write":
            self._written[file] += len(operation.data)
        elif kind == "fsync":
            self._synced[file] = self._written[file]
        elif kind == "sync":
            mine = [folder_of(next(iter(effect))) == operation.name for effect in self._pending]
            self._names = self._named(list(itertools.compress(self._pending, mine)))
            self._pending = list(itertools.compress(self._pending, [not is_synced for is_synced in mine]))
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

    def _some(self, wanted: int) -> Iterator[State]:
        """Yield up to `wanted` states that were not seen before."""
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
        """Masks of the pending effects on disk: all, prefixes, all but one, one, then random."""
        count = len(self._pending)
        plain = [[i < kept for i in range(count)] for kept in range(count + 1)]
        plain += [[i != lost for i in range(count)] for lost in range(count)]
        plain += [[i == kept for i in range(count)] for kept in range(count)]
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
    """All bytes written to each file."""
    contents: dict[int, bytearray] = {}
    for operation in log:
        if operation.kind == "create":
            contents[operation.file] = bytearray()
        elif operation.kind == "write":
            contents[operation.file] += operation.data
    return {file: bytes(data) for file, data in contents.items()}
