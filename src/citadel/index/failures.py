"""A disk that fails is not a damaged index: which errors say the one, and which the other."""

from __future__ import annotations

import errno
import os
import sqlite3

from citadel.errors import ResourceError


def read_failure(location: str, error: BaseException | None) -> ResourceError | None:
    """The error of a disk that failed to read or write, which says nothing of the bytes on it; else None.

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
    """The error of a disk that failed.

    >>> disk_failure("idx", "disk I/O error").exit_code
    6
    """
    advice = "check the disk and its cables, then run it again"
    return ResourceError(f"{location}: the disk failed ({reason}); {advice}")


def _is_disk_failure(error: sqlite3.OperationalError) -> bool:
    """Whether SQLite could not open, read or write a file, as opposed to reading wrong bytes."""
    code = getattr(error, "sqlite_errorcode", None)
    if code is None:  # raised by hand
        return "I/O" in str(error)
    return code & 0xFF in (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN) and code != sqlite3.SQLITE_IOERR_SHORT_READ
