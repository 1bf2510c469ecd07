"""The one seam to the disk: every byte of an index is written, named, made durable and read here.

Tests put a storage in its place that loses, tears and reorders what was not synced.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
import shutil
import sqlite3
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Protocol

from citadel.errors import CorruptIndexError, LockHeldError, ResourceError

LOCK = "LOCK"
TEMPORARY = ".tmp"
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EFBIG, errno.ENOMEM, errno.EROFS}


class Output(Protocol):
    """A file being written, forward only."""

    def write(self, data: memoryview) -> None: ...
    def sync(self) -> None: ...
    def close(self) -> None: ...


class Lock(Protocol):
    """The one writer's right to write."""

    def release(self) -> None: ...


class Storage(Protocol):
    """A flat folder of files: the operations whose order makes a commit durable."""

    location: str

    def names(self) -> list[str]: ...
    def map(self, name: str) -> memoryview: ...
    def database(self, name: str) -> sqlite3.Connection: ...
    def create(self, name: str) -> Output: ...
    def rename(self, old: str, new: str) -> None: ...
    def remove(self, name: str) -> None: ...
    def sync(self) -> None: ...
    def lock(self) -> Lock: ...
    def scratch(self) -> contextlib.AbstractContextManager[Path]: ...
    def free_space(self) -> int | None: ...


class FolderStorage:
    """A folder on a real disk.

    >>> import tempfile
    >>> FolderStorage(tempfile.mkdtemp()).names()
    []
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.location = str(path)

    def names(self) -> list[str]:
        """The names of all files, sorted; a folder that is not there has none."""
        try:
            return sorted(os.listdir(self.path))
        except (FileNotFoundError, NotADirectoryError):
            return []

    def map(self, name: str) -> memoryview:
        """The file's bytes, mapped; they stay readable when the file is removed."""
        with self._regular(name) as descriptor:
            if os.fstat(descriptor).st_size == 0:
                return memoryview(b"")
            return memoryview(mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ))

    @contextlib.contextmanager
    def _regular(self, name: str) -> Iterator[int]:
        """A descriptor of a plain file in this very folder: never a link, a device or a path elsewhere."""
        if os.path.basename(name) != name or name in ("", ".", ".."):
            raise CorruptIndexError(name, "name", "a file name must not lead out of the index folder")
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        try:
            descriptor = os.open(self.path / name, flags)
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.EMLINK):
                raise CorruptIndexError(name, "file", "it is a symbolic link, which an index never holds") from error
            if error.errno in (errno.ENXIO, errno.EOPNOTSUPP):  # a socket
                raise CorruptIndexError(name, "file", "it is not a plain file") from error
            raise
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise CorruptIndexError(name, "file", "it is not a plain file")
            yield descriptor
        finally:
            os.close(descriptor)

    def database(self, name: str) -> sqlite3.Connection:
        """A read-only SQLite connection that promises SQLite that nobody writes."""
        with self._regular(name):
            uri = f"{(self.path / name).absolute().as_uri()}?mode=ro&immutable=1"
            return sqlite3.connect(uri, uri=True, check_same_thread=False)

    def create(self, name: str) -> Output:
        """A new file; its name must not be taken."""
        self.path.mkdir(parents=True, exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
        return FileOutput(os.open(self.path / name, flags, 0o644))

    def rename(self, old: str, new: str) -> None:
        os.rename(self.path / old, self.path / new)

    def remove(self, name: str) -> None:
        """Remove a file or a scratch folder; one that is gone already is no error."""
        path = self.path / name
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)

    def sync(self) -> None:
        """Make names durable: what was created, renamed and removed in this folder."""
        descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def lock(self) -> Lock:
        self.path.mkdir(parents=True, exist_ok=True)
        return FolderLock(self.path / LOCK)

    @contextlib.contextmanager
    def scratch(self) -> Iterator[Path]:
        """A folder of the writer's own for databases being built; on the same disk as the index."""
        self.path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(
            suffix=TEMPORARY, prefix="scratch-", dir=self.path, ignore_cleanup_errors=True
        ) as folder:
            yield Path(folder)

    def free_space(self) -> int | None:
        """Bytes that can still be written on this folder's disk; None where the system does not tell."""
        try:
            return shutil.disk_usage(self.path).free
        except OSError:
            return None


class FileOutput:
    """A file on a real disk, written with plain system calls so that no buffer hides an error."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def write(self, data: memoryview) -> None:
        data = data.cast("B")
        while data:
            data = data[os.write(self._descriptor, data[: 1 << 30]) :]  # one call writes at most 2 GiB

    def sync(self) -> None:
        if hasattr(fcntl, "F_FULLFSYNC"):  # macOS: fsync alone leaves data in the drive's cache
            with contextlib.suppress(OSError):
                fcntl.fcntl(self._descriptor, fcntl.F_FULLFSYNC)
                return
        os.fsync(self._descriptor)

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    __del__ = close  # a write that failed leaves nobody to close it


class FolderLock:
    """flock on LOCK: freed by the kernel when its holder dies, so a dead writer never blocks the next."""

    _descriptor = -1

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self.release()
            message = f"{path.parent}: another writer, here or in another process, has changes waiting; let it end"
            raise LockHeldError(message) from error

    def release(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    __del__ = release  # a writer that was dropped without a commit must not lock others out


class resource_errors(contextlib.AbstractContextManager[None]):  # noqa: N801 - reads as a statement
    """Turn the system's "no space", "no memory" and "device failed" into one ResourceError.

    >>> with resource_errors("idx"):
    ...     raise MemoryError
    Traceback (most recent call last):
    citadel.errors.ResourceError: idx: out of memory; what was committed before is intact; give it room
    """

    def __init__(self, location: str) -> None:
        self._location = location

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        problem = _resource_problem(error)
        if problem:
            advice = "what was committed before is intact; give it room"
            raise ResourceError(f"{self._location}: {problem}; {advice}") from error


def _resource_problem(error: BaseException | None) -> str | None:
    if isinstance(error, MemoryError):
        return "out of memory"
    if isinstance(error, OSError) and error.errno in _FULL:
        return os.strerror(error.errno).lower()
    if isinstance(error, sqlite3.OperationalError) and ("full" in str(error) or "I/O" in str(error)):
        return str(error)
    return None
