"""Merge-join of the list names (keys or terms) of several segments, a window at a time."""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citadel.index.segment import Segment

Names = list[bytes] | NDArray[np.uint32]  # terms of bm25, else keys
NAMES_PER_WINDOW = 8192  # per segment


@dataclass(frozen=True)
class Part:
    """Lists first … stop − 1 of a segment and the position of each name in the window."""

    first: int
    stop: int
    positions: NDArray[np.int64]


Joined = tuple[Names, list[Part]]


class NameReader:
    """Reads the sorted names of one segment's lists, a window at a time."""

    def __init__(self, segment: Segment, window: int = NAMES_PER_WINDOW) -> None:
        self._segment, self._window = segment, window
        self._is_text = segment.meta.kind == "bm25"
        self._read = self.taken = 0  # numbers of lists read and handed out
        self.names: Names = []

    @property
    def is_complete(self) -> bool:
        """Whether the names of all lists have been read."""
        return self._read == self._segment.lists

    def fill(self) -> None:
        """Read the next window when all names of the last one are taken."""
        if len(self.names) or self.is_complete:
            return
        first, self._read = self._read, min(self._read + self._window, self._segment.lists)
        self.names = self._between(max(first - 1, 0), self._read)[min(first, 1) :]

    def _between(self, first: int, stop: int) -> Names:
        """The names of lists first … stop − 1; raises unless they ascend."""
        if self._is_text:
            names: Names = self._segment.terms_between(first, stop)
            is_sorted = all(left < right for left, right in itertools.pairwise(names))
        else:
            names = self._segment.keys[first:stop]
            is_sorted = bool((names[1:] > names[:-1]).all())
        if not is_sorted:
            section = "TERM_BYTES" if self._is_text else "KEYS"
            raise self._segment.file[section].corrupt("the keys are not sorted")
        return names

    def take(self, last: Any) -> tuple[int, Names]:
        """Take the names up to `last` (None: all) and return the first list and the names."""
        count = len(self.names) if last is None else bisect_right(self.names, last)
        taken, self.names = self.names[:count], self.names[count:]
        self.taken += count
        return self.taken - count, taken


def join_names(segments: Sequence[Segment], window: int = NAMES_PER_WINDOW) -> Iterator[Joined]:
    """Yield windows of all distinct names in order, with the matching lists of each segment."""
    readers = [NameReader(segment, window) for segment in segments]
    while True:
        for reader in readers:
            reader.fill()
        if not any(len(reader.names) for reader in readers):
            return
        ends = [reader.names[-1] for reader in readers if not reader.is_complete]
        taken = [reader.take(min(ends) if ends else None) for reader in readers]
        union, positions = _union([names for _, names in taken])
        yield (
            union,
            [Part(first, first + len(own), own) for (first, _), own in zip(taken, positions, strict=True)],
        )


def _union(parts: Sequence[Names]) -> tuple[Names, list[NDArray[np.int64]]]:
    """The sorted union of all parts, and the positions of each part's names in it."""
    if any(isinstance(part, np.ndarray) for part in parts):
        keys = [np.asarray(part, np.uint32) for part in parts]
        union = np.unique(np.concatenate(keys))
        return union, [np.searchsorted(union, own) for own in keys]
    terms = sorted(set[bytes]().union(*parts))
    positions = {term: position for position, term in enumerate(terms)}
    return terms, [np.fromiter((positions[term] for term in part), np.int64, len(part)) for part in parts]
