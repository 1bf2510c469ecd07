"""Tell a failing or full disk from a damaged index."""

from __future__ import annotations

import contextlib
import errno
import os
import sqlite3
from types import TracebackType

from citadel.errors import ResourceError

_EXHAUSTED = {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EFBIG, errno.ENOMEM, errno.EROFS}
_ADVICE = {
    errno.EROFS: "mount it for writing, or choose another folder",
    errno.EIO: "check the disk, then run it again",
}


def read_failure(location: str, error: BaseException | None) -> ResourceError | None:
    """The ResourceError for an I/O error; None for any other exception.

    >>> str(read_failure("idx", OSError(errno.EIO, "")))
    'idx: the disk failed (input/output error); check the disk and its cables, then run it again'
    """
    if isinstance(error, OSError) and error.errno == errno.EIO:
        reason = os.strerror(errno.EIO).lower()
    elif isinstance(error, sqlite3.OperationalError) and _is_disk_failure(error):
        reason = str(error)
    else:
        return None
    return disk_failure(location, reason)


def disk_failure(location: str, reason: str) -> ResourceError:
    """The ResourceError for a failing disk.

    >>> disk_failure("idx", "disk I/O error").exit_code
    6
    """
    advice = "check the disk and its cables, then run it again"
    return ResourceError(f"{location}: the disk failed ({reason}); {advice}")


def _is_disk_failure(error: sqlite3.OperationalError) -> bool:
    """Whether SQLite failed to open, read or write a file, rather than read wrong bytes."""
    code = getattr(error, "sqlite_errorcode", None)
    if code is None:  # not raised by SQLite itself
        return "I/O" in str(error)
    return (
        code & 0xFF in (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN)
        and code != sqlite3.SQLITE_IOERR_SHORT_READ
    )


class resource_errors(contextlib.AbstractContextManager[None]):  # noqa: N801 - reads as a statement
    """Turn the system's "no space", "no memory" and "device failed" into one ResourceError.

    >>> with resource_errors("idx"):
    ...     raise MemoryError
    Traceback (most recent call last):
    citadel.errors.ResourceError: idx: out of memory; what was committed before is intact; free some space
    """

    def __init__(self, location: str) -> None:
        self._location = location

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if failure := read_failure(self._location, error):
            try:
                raise failure from error
            finally:
                del failure  # breaks the cycle of error, traceback and frame, which would keep a lock held
        if problem := _resource_problem(error):
            advice = _ADVICE.get(getattr(error, "errno", None) or 0, "free some space")
            raise ResourceError(
                f"{self._location}: {problem}; what was committed before is intact; {advice}"
            ) from error


def _resource_problem(error: BaseException | None) -> str | None:
    if isinstance(error, MemoryError):
        return "out of memory"
    if isinstance(error, OSError) and error.errno in _EXHAUSTED:
        return os.strerror(error.errno).lower()
    if isinstance(error, sqlite3.OperationalError) and "full" in str(error):
        return str(error)
    return None
