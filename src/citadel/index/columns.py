"""Arrays that grow at their end, in place: what waits for a segment is held once, not once more while it is joined."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

_GROWTH = 8  # a full column grows by one part in so many


class Column:
    """One value or one row a posting, appended in pieces.

    >>> column = Column()
    >>> column.append(np.array([1, 2], np.uint32))
    >>> column.append(np.array([3], np.uint32))
    >>> column.values().tolist()
    [1, 2, 3]
    """

    def __init__(self) -> None:
        self._rows: NDArray[Any] = np.zeros(0)
        self._size = 0

    def append(self, values: NDArray[Any]) -> None:
        """Add rows of the type and width that all before had."""
        if not self._size:
            self._rows = np.empty((0, *values.shape[1:]), values.dtype)
        stop = self._size + len(values)
        if stop > len(self._rows):  # large blocks are moved by the system's tables, not copied
            shape = (stop + stop // _GROWTH, *values.shape[1:])
            self._rows.resize(shape, refcheck=False)
        self._rows[self._size : stop] = values
        self._size = stop

    def values(self) -> NDArray[Any]:
        """All rows, as a view: nothing may be appended while it is used."""
        return self._rows[: self._size]
