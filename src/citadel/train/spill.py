"""Append-only bytes and arrays in anonymous temporary files."""

from __future__ import annotations

import os
import tempfile
import weakref
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citadel.errors import ResourceError

BLOCK = 1 << 20  # bytes held in memory before they are written


class Spill:
    """Append-only bytes: the last mebibyte in memory, the rest in an anonymous temporary file.

    The file is read, not mapped: mapped pages count as memory of the process, and writing to a map on a full
    disk would kill it.

    >>> spill = Spill()
    >>> spill.append(b"heart"), spill.append(b"beat")
    (5, 9)
    >>> spill.read(3, 7)
    b'rtbe'
    """

    def __init__(self, block: int = BLOCK) -> None:
        self._tail, self._block = bytearray(), block
        self._file = -1
        self._written = 0

    def __len__(self) -> int:
        return self._written + len(self._tail)

    def append(self, data: bytes) -> int:
        """Append bytes; return the total length."""
        self._tail += data
        if len(self._tail) >= self._block:
            self._write()
        return len(self)

    def read(self, start: int, end: int) -> bytes:
        """Return the bytes from `start` up to `end`; several threads may read at once."""
        tail = self._tail[max(0, start - self._written) : max(0, end - self._written)]
        return self._read(start, min(end, self._written)) + tail if start < self._written else bytes(tail)

    def _write(self) -> None:
        try:
            if self._file < 0:
                self._open()
            while self._tail:
                count = os.pwrite(self._file, self._tail, self._written)
                del self._tail[:count]
                self._written += count
        except OSError as error:
            advice = "make room there, or name another folder in TMPDIR"
            where = tempfile.gettempdir()
            raise ResourceError(f"{where}: cannot be written ({error.strerror}): {advice}") from None

    def _open(self) -> None:
        with tempfile.TemporaryFile(prefix="citadel-") as file:
            self._file = os.dup(file.fileno())
        weakref.finalize(self, os.close, self._file)

    def _read(self, start: int, end: int) -> bytes:
        data = bytearray()
        while start + len(data) < end:  # one call returns at most 2 GiB
            piece = os.pread(self._file, end - start - len(data), start + len(data))
            if not piece:
                raise ResourceError(f"{tempfile.gettempdir()}: a temporary file was truncated: start again")
            data += piece
        return bytes(data)


class DiskArray:
    """Append-only array on disk; a slice is an array in memory.

    >>> numbers = DiskArray(np.uint16)
    >>> numbers.append(np.array([7, 8, 9]))
    >>> len(numbers), numbers[1:].tolist()
    (3, [8, 9])
    """

    def __init__(self, dtype: Any) -> None:
        self._dtype = np.dtype(dtype)
        self._size = int(self._dtype.itemsize)
        self._bytes = Spill()

    def append(self, values: NDArray[Any]) -> None:
        self._bytes.append(np.ascontiguousarray(values, self._dtype).tobytes())

    def __len__(self) -> int:
        return len(self._bytes) // self._size

    def __getitem__(self, part: slice) -> NDArray[Any]:
        start, end, step = part.indices(len(self))
        data = self._bytes.read(start * self._size, max(start, end) * self._size)
        return np.frombuffer(data, self._dtype)[::step]
