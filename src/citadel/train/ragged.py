"""Ragged arrays: rows of unequal length in two flat arrays, in memory or on disk."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from citadel.train.spill import DiskArray

Rows = NDArray[np.int64]
PART = 512  # rows per part: arithmetic on a part takes a few megabytes


@dataclass(frozen=True, slots=True)
class Ragged:
    """Row i is values[offsets[i]:offsets[i + 1]].

    >>> table = Ragged.of([[1, 2], [], [3]])
    >>> len(table), table[0].tolist(), table[1].tolist()
    (3, [1, 2], [])
    """

    values: NDArray[Any] | DiskArray  # [N]
    offsets: Rows  # [rows + 1]

    @classmethod
    def of(cls, rows: Iterable[Sequence[Any]], dtype: Any = np.int64) -> Self:
        """Build a table from rows in memory."""
        kept = [np.asarray(row, dtype) for row in rows]
        values = np.concatenate([np.empty(0, dtype), *kept])
        return cls(values, offsets_of([len(row) for row in kept]))

    @classmethod
    def grouped(cls, rows: NDArray[Any], values: NDArray[Any], count: int) -> Self:
        """Group (row, value) pairs into a table of `count` rows; values of a row keep their order.

        >>> Ragged.grouped(np.array([1, 0, 1]), np.array([7, 8, 9]), 2)[1].tolist()
        [7, 9]
        """
        order = np.argsort(rows, kind="stable")
        return cls(values[order], offsets_of(np.bincount(rows, minlength=count)))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, row: int) -> NDArray[Any]:
        values: NDArray[Any] = self.values[int(self.offsets[row]) : int(self.offsets[row + 1])]
        return values

    def part(self, start: int, end: int) -> Ragged:
        """Load rows `start` up to `end` into memory.

        >>> Ragged.of([[1, 2], [], [3]]).part(1, 3)[1].tolist()
        [3]
        """
        offsets = self.offsets[start : end + 1]
        return Ragged(self.values[int(offsets[0]) : int(offsets[-1])], offsets - offsets[0])

    def parts(self, size: int = PART) -> Iterator[Ragged]:
        """Yield all rows in order, `size` at a time in memory."""
        return (self.part(start, min(start + size, len(self))) for start in range(0, len(self), size))

    @property
    def lengths(self) -> Rows:
        return np.diff(self.offsets)


class RaggedBuilder:
    """Builds a ragged array on disk, row by row.

    >>> growing = RaggedBuilder(np.uint16)
    >>> growing.add([1, 2])
    >>> growing.extend(np.array([3, 4, 5]), [1, 2])
    >>> growing.done()[2].tolist()
    [4, 5]
    """

    def __init__(self, dtype: Any) -> None:
        self._values, self._ends = DiskArray(dtype), array("q", [0])

    def add(self, row: Sequence[int] | NDArray[Any]) -> None:
        """Append a row."""
        self.extend(np.asarray(row), [len(row)])

    def extend(self, values: NDArray[Any], lengths: Iterable[int]) -> None:
        """Append concatenated rows."""
        self._values.append(values)
        for length in lengths:
            self._ends.append(self._ends[-1] + length)

    def done(self) -> Ragged:
        """Return the table of all rows."""
        return Ragged(self._values, np.array(self._ends, np.int64))


def offsets_of(lengths: Sequence[int] | NDArray[Any]) -> Rows:
    """Offsets of rows of these lengths.

    >>> offsets_of([2, 0, 1]).tolist()
    [0, 2, 2, 3]
    """
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(np.asarray(lengths, np.int64))])
