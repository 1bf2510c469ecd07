"""Mapped index files. One that is cut short, or that the disk cannot read, is an error, not the end of the process."""

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
except ImportError:  # a machine on which nothing was compiled: such a file ends the process there
    _native = None  # type: ignore[assignment]

_SHORTER, _UNREADABLE = 1, 2


class MappedFile(mmap.mmap):
    """A file's bytes, read-only. Where they cannot be read any more they are zeros, and `require_whole` says so."""

    _slot = -1

    def __new__(cls, descriptor: int) -> Self:
        mapped = super().__new__(cls, descriptor, 0, access=mmap.ACCESS_READ)
        if _native is not None:
            with no_fork:  # its table of mappings has a mutex
                mapped._slot = _native.watch_mapping(mapped, descriptor)
        return mapped

    def require_whole(self, name: str, exact: bool = True) -> None:
        """Raise the error of a file that was cut short or could not be read since it was mapped.

        Unless `exact`, the file's length is looked at every 10 ms only: for queries, which a system call would slow.
        """
        state = 0 if self._slot < 0 else _native.mapping_state(self._slot, exact)
        if state == _SHORTER:
            raise CorruptIndexError(name, "file", "it became shorter while it was in use")
        if state == _UNREADABLE:
            raise disk_failure(name, os.strerror(errno.EIO).lower())

    def __del__(self) -> None:
        if self._slot >= 0 and _native is not None:  # it is None while the interpreter ends
            with no_fork:
                _native.unwatch_mapping(self._slot)


def require_whole(view: memoryview | None, name: str, exact: bool = True) -> None:
    """The same for a view of a mapped file; other bytes are always whole."""
    mapped = None if view is None else view.obj
    if isinstance(mapped, MappedFile):
        mapped.require_whole(name, exact)


@contextlib.contextmanager
def whole_files(files: Iterable[Any]) -> Iterator[None]:
    """What is computed within is thrown away when one of the files was not whole to its end.

    Zeros in place of numbers can end in any error, so those are told as what they are.
    """
    try:
        yield
    except Exception:
        for file in files:
            file.require_whole()
        raise
    for file in files:
        file.require_whole()
