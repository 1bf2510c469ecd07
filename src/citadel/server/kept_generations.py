"""Generations that a listing still reads, kept for a while so that its cursor survives commits."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable

from citadel.errors import ServerError
from citadel.index.snapshot import Snapshot

MAX_KEPT = 4  # generations; an old one holds its files, also those that a merge removed
KEEP_SECONDS = 60.0  # since the last page of a listing
CURSOR_PATTERN = r"^[0-9a-f]{8}-[0-9]{1,15}-[0-9]{1,15}$"


def cursor_of(snapshot: Snapshot, number: int) -> str:
    """The cursor of a listing whose next page begins with this document number."""
    return f"{_key(snapshot)}-{number}"


def _key(snapshot: Snapshot) -> str:
    return f"{snapshot.manifest.index_id[:8]}-{snapshot.manifest.generation}"


class KeptGenerations:
    """The generations of recent listings, the least recently used first; threads may share it."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._kept: OrderedDict[str, tuple[float, Snapshot]] = OrderedDict()
        self._lock, self._clock = threading.Lock(), clock

    def __len__(self) -> int:
        return len(self._kept)

    def keep(self, snapshot: Snapshot) -> None:
        """Keep a generation for the next page."""
        with self._lock:
            self._kept[_key(snapshot)] = (self._clock() + KEEP_SECONDS, snapshot)
            self._kept.move_to_end(_key(snapshot))
            while len(self._kept) > MAX_KEPT:
                self._kept.popitem(last=False)

    def prune(self) -> None:
        """Drop generations that were not used for a while."""
        with self._lock:
            while self._kept and next(iter(self._kept.values()))[0] < self._clock():
                self._kept.popitem(last=False)

    def open(self, cursor: str, current: Snapshot) -> tuple[Snapshot, int]:
        """The generation and the document number of a cursor; 410 when the generation is not kept."""
        key, _, number = cursor.rpartition("-")
        if key == _key(current):
            return current, int(number)
        self.prune()
        with self._lock:
            kept = self._kept.get(key)
        if kept is None:
            raise ServerError(
                410,
                "cursor",
                "the generation of this cursor is no longer kept: start the listing again without a cursor",
            )
        return kept[1], int(number)
