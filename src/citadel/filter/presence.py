"""Which rows of a column have a value: all of them, a bitmap, or a list of row numbers where they are few."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

Mask = NDArray[np.bool_]
Scalar = TypeVar("Scalar", bound=np.generic)
_SPARSE = 4  # a column with a value in one of so many rows or fewer stores only those


@dataclass(frozen=True, slots=True)
class Presence:
    """Where the values of a column belong; a sparse column has `positions`, a dense one with gaps has `bits`.

    >>> Presence.of(8, np.array([2, 5], np.uint32)).mask().astype(int).tolist()
    [0, 0, 1, 0, 0, 1, 0, 0]
    """

    rows: int
    positions: NDArray[np.uint32] | None = None  # ascending; one value is stored for each
    bits: NDArray[np.uint8] | None = None  # lowest first; one value is stored for each row

    @classmethod
    def of(cls, rows: int, positions: NDArray[np.uint32] | None) -> Presence:
        """The smaller form for these rows; None: all rows."""
        if positions is None or len(positions) == rows:
            return cls(rows)
        if len(positions) * _SPARSE <= rows:
            return cls(rows, positions=positions)
        mask = np.zeros(rows, bool)
        mask[positions] = True
        return cls(rows, bits=np.packbits(mask, bitorder="little"))

    @property
    def size(self) -> int:
        """How many values are stored."""
        return self.rows if self.positions is None else len(self.positions)

    def mask(self) -> Mask:
        """Whether each row has a value [rows]; a new array."""
        if self.bits is not None:
            return np.unpackbits(self.bits, count=self.rows, bitorder="little").view(bool)
        return self.spread(np.ones(self.size, bool))

    def spread(self, hits: Mask) -> Mask:
        """What holds for stored values [size] as a mask of rows [rows]; it may reuse `hits`."""
        if self.positions is not None:
            mask = np.zeros(self.rows, bool)
            mask[self.positions] = hits
            return mask
        if self.bits is not None:
            np.logical_and(hits, self.mask(), out=hits)
        return hits

    def gather(self, mask: Mask) -> Mask:
        """A mask of rows [rows] as one of stored values [size]; rows without a value are left out."""
        if self.positions is not None:
            return mask[self.positions]
        return mask & self.mask() if self.bits is not None else mask

    def dense(self, values: NDArray[Scalar], positions: NDArray[np.uint32] | None) -> NDArray[Scalar]:
        """Values of the rows `positions` as they are stored: with zeros in the gaps unless this is sparse."""
        if positions is None or len(values) == self.size:
            return values
        wide = np.zeros(self.rows, values.dtype)
        wide[positions] = values
        return wide
