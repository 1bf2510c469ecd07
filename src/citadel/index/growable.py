"""Growable arrays: a `Column` in memory, joined without a copy; a `Spool` on disk, read through a mapping."""

from __future__ import annotations

import contextlib
import math
import mmap
import tempfile
from typing import IO, Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from citadel.index.storage import Storage

_GROWTH = 8  # a full column grows by one part in so many
_SPOOL_BYTES = 1 << 18  # what a spool keeps in memory


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


class Spool:
    """A growing array of one type: short ones stay in memory, longer ones go to an anonymous temporary file.

    A segment has arrays of one number per list or document, which would grow with the index in memory. The file
    lies on the disk of the index and is read through a mapping; the system drops its pages when memory is short.

    >>> import tempfile
    >>> from citadel.index.storage import FolderStorage
    >>> spool = Spool(FolderStorage(tempfile.mkdtemp()), np.uint32)
    >>> spool.append(np.array([1, 2]))
    >>> spool.append(np.array([3]))
    >>> spool.values().tolist()
    [1, 2, 3]
    """

    def __init__(self, storage: Storage, dtype: DTypeLike) -> None:
        self._storage, self._dtype = storage, np.dtype(dtype)
        self._waiting = bytearray()
        self._file: IO[bytes] | None = None

    def append(self, values: NDArray[Any]) -> None:
        """Add values at the end."""
        octets = np.ascontiguousarray(values, self._dtype).view(np.uint8).data
        if len(self._waiting) + len(octets) <= _SPOOL_BYTES:
            self._waiting += octets
            return
        self._write(self._waiting)
        self._write(octets)
        self._waiting = bytearray()

    def _write(self, octets: bytearray | memoryview) -> None:
        """Write to the file; never through a mapping, where a full disk would end the process."""
        if self._file is None:
            with self._storage.scratch() as folder:
                self._file = tempfile.TemporaryFile(buffering=0, dir=folder)  # noqa: SIM115 - see __del__
        view = memoryview(octets)
        while view:
            view = view[self._file.write(view) :]

    def values(self) -> NDArray[Any]:
        """All values, read-only; nothing may be appended afterwards."""
        if self._file is None:
            return np.frombuffer(bytes(self._waiting), self._dtype)
        self._write(self._waiting)
        self._waiting = bytearray()
        return np.frombuffer(mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ), self._dtype)

    def __del__(self) -> None:
        """Close the file; what was mapped stays readable."""
        if self._file is not None:
            self._file.close()
