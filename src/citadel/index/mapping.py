"""Memory-mapped index files; truncation and read errors raise instead of killing the process."""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
from collections.abc import Iterable, Iterator
from typing import Any, Self

from citadel.errors import CorruptIndexError
from citadel.forks import no_fork
from citadel.index.failures import disk_failure

try:
    from citadel import _native
except ImportError:  # without the native module, such a fault kills the process
    _native = None  # type: ignore[assignment]

_SHORTER, _UNREADABLE = 1, 2


class MappedFile(mmap.mmap):
    """A read-only mapping. Unreadable pages become zeros, and `require_whole` raises."""

    _slot = -1

    def __new__(cls, descriptor: int) -> Self:
        mapped = super().__new__(cls, descriptor, 0, access=mmap.ACCESS_READ)
        if _native is not None:
            with no_fork:  # its table of mappings has a mutex
                mapped._slot = _native.watch_mapping(mapped, descriptor)
        return mapped

    def require_whole(self, name: str, exact: bool = True) -> None:
        """Raise when the file was truncated or became unreadable since it was mapped.

        Unless `exact`, the length is checked every 10 ms only, because a system call would slow queries.
        """
        state = 0 if self._slot < 0 else _native.mapping_state(self._slot, exact)
        if state == _SHORTER:
            raise CorruptIndexError(name, "file", "it became shorter while it was in use")
        if state == _UNREADABLE:
            raise disk_failure(name, os.strerror(errno.EIO).lower())

    def __del__(self) -> None:
        unwatch = getattr(_native, "unwatch_mapping", None)  # None during interpreter shutdown
        if self._slot >= 0 and unwatch is not None:
            with no_fork:
                unwatch(self._slot)


def require_whole(view: memoryview | None, name: str, exact: bool = True) -> None:
    """Like `MappedFile.require_whole`, for a view; bytes that are not mapped always pass."""
    mapped = None if view is None else view.obj
    if isinstance(mapped, MappedFile):
        mapped.require_whole(name, exact)


@contextlib.contextmanager
def whole_files(files: Iterable[Any]) -> Iterator[None]:
    """Raise at the end of the block when one of the files was truncated or unreadable.

    Zeros in place of data can cause any exception, so such an exception is replaced too.
    """
    try:
        yield
    except Exception:
        for file in files:
            file.require_whole()
        raise
    for file in files:
        file.require_whole()
