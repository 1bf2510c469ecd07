"""Arrays that grow at their end, in place: what waits for a segment is held once, not once more while it is joined."""

from __future__ import annotations

import contextlib
import math
import mmap
from typing import Any

import numpy as np
from numpy.typing import NDArray

_GROWTH = 8  # a full column grows by one part in so many


class Column:
    """One value or one row a posting, appended in pieces.

    The rows stand in pages of their own: the system moves those by its tables when a column grows, and has them back
    when it is dropped. malloc would copy them, and keep what they leave, once a few columns have come and gone.

    >>> column = Column()
    >>> column.append(np.array([1, 2], np.uint32))
    >>> column.append(np.array([3], np.uint32))
    >>> column.values().tolist()
    [1, 2, 3]
    """

    def __init__(self) -> None:
        self._rows: NDArray[Any] = np.zeros(0)
        self._pages: mmap.mmap | None = None
        self._size = 0

    def append(self, values: NDArray[Any]) -> None:
        """Add rows of the type and width that all before had."""
        if not self._size:
            self._rows = np.empty((0, *values.shape[1:]), values.dtype)
        stop = self._size + len(values)
        if stop > len(self._rows):
            self._grow(stop + stop // _GROWTH)
        self._rows[self._size : stop] = values
        self._size = stop

    def _grow(self, rows: int) -> None:
        shape, dtype = (rows, *self._rows.shape[1:]), self._rows.dtype
        self._rows = np.zeros(0)  # pages that an array looks at cannot be moved
        self._pages = _enlarged(self._pages, max(math.prod(shape) * dtype.itemsize, 1))
        self._rows = np.frombuffer(self._pages, dtype, math.prod(shape)).reshape(shape)

    def values(self) -> NDArray[Any]:
        """All rows, as a view: nothing may be appended while it is used."""
        return self._rows[: self._size]


def _enlarged(pages: mmap.mmap | None, size: int) -> mmap.mmap:
    """The same pages and more of them."""
    if pages is not None:
        with contextlib.suppress(SystemError):  # where the system cannot move pages they are copied
            pages.resize(size)
            return pages
    larger = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if pages is not None:
        larger.write(memoryview(pages))
    return larger
