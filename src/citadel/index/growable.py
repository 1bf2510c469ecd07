"""Growable arrays, a `Column` in memory and a `Spool` on disk, and large arrays of a fixed size."""

from __future__ import annotations

import contextlib
import math
import mmap
import os
import tempfile
from typing import IO, Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from citadel.index.storage import Storage

_GROWTH = 8  # a full column grows by 1/8
_SPOOL_BYTES = 1 << 18  # kept in memory before a spool uses a file
_ARRAY_SHARE = 4  # of the memory bound that an array may take before it moves to a file


class Column:
    """One value or row per posting, appended in pieces.

    The rows lie in an anonymous mapping, which grows by moving pages and is returned to the system when
    dropped. malloc would copy the rows and fragment the heap.

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
        """Append rows of the same type and width as before."""
        if not self._size:
            self._rows = np.empty((0, *values.shape[1:]), values.dtype)
        stop = self._size + len(values)
        if stop > len(self._rows):
            self._grow(stop + stop // _GROWTH)
        self._rows[self._size : stop] = values
        self._size = stop

    def _grow(self, rows: int) -> None:
        shape, dtype = (rows, *self._rows.shape[1:]), self._rows.dtype
        self._rows = np.zeros(0)  # a mapping in use by an array cannot be resized
        self._pages = _enlarged(self._pages, max(math.prod(shape) * dtype.itemsize, 1))
        self._rows = np.frombuffer(self._pages, dtype, math.prod(shape)).reshape(shape)

    def values(self) -> NDArray[Any]:
        """All rows as a view; append nothing while it is in use."""
        return self._rows[: self._size]


def _enlarged(pages: mmap.mmap | None, size: int) -> mmap.mmap:
    """Grow a mapping, without copying if the system can."""
    if pages is not None:
        with contextlib.suppress(SystemError):  # no mremap: copy the pages
            pages.resize(size)
            return pages
    larger = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if pages is not None:
        larger.write(memoryview(pages))
    return larger


class Spool:
    """A growing array that moves from memory to an anonymous temporary file when it becomes long.

    For arrays of one number per list or document, which would otherwise grow in memory with the index. The
    file is on the disk of the index and read through a mapping.

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
        """Append values."""
        octets = np.ascontiguousarray(values, self._dtype).view(np.uint8).data
        if len(self._waiting) + len(octets) <= _SPOOL_BYTES:
            self._waiting += octets
            return
        self._write(self._waiting)
        self._write(octets)
        self._waiting = bytearray()

    def _write(self, octets: bytearray | memoryview) -> None:
        """Write to the file; on a full disk a write to a mapping would kill the process."""
        if self._file is None:
            with self._storage.scratch() as folder:
                self._file = tempfile.TemporaryFile(buffering=0, dir=folder)  # noqa: SIM115 - see __del__
        view = memoryview(octets)
        while view:
            view = view[self._file.write(view) :]

    def values(self) -> NDArray[Any]:
        """All values, read-only; ends appending."""
        if self._file is None:
            return np.frombuffer(bytes(self._waiting), self._dtype)
        self._write(self._waiting)
        self._waiting = bytearray()
        return np.frombuffer(mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ), self._dtype)

    def __del__(self) -> None:
        """Close the file; mappings stay readable."""
        if self._file is not None:
            self._file.close()


class ScratchArrays:
    """Makes arrays in memory or, beyond a share of the memory bound, in anonymous temporary files.

    >>> import tempfile
    >>> from citadel.index.storage import FolderStorage
    >>> ScratchArrays(FolderStorage(tempfile.mkdtemp()), memory=1 << 20).zeros((2, 3), np.uint8).sum()
    np.uint64(0)
    """

    def __init__(self, storage: Storage, memory: int) -> None:
        self._storage, self._limit = storage, memory // _ARRAY_SHARE

    def zeros(self, shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
        """A new, writable array."""
        count = math.prod(shape)
        size = count * np.dtype(dtype).itemsize
        if size <= self._limit:
            return np.zeros(shape, dtype)
        with self._storage.scratch() as folder, tempfile.TemporaryFile(buffering=0, dir=folder) as file:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fileno(), 0, size)  # a write to a mapping cannot report a full disk
            else:
                file.truncate(size)
            return np.frombuffer(mmap.mmap(file.fileno(), size), dtype, count).reshape(shape)
