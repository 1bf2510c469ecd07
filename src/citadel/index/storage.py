"""The one seam to the disk: every byte of an index is written, named, made durable and read here.

Tests put a storage in its place that loses, tears and reorders what was not synced.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import sqlite3
import stat
import threading
import uuid
import weakref
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Protocol

from citadel.errors import (
    CitadelError,
    CorruptIndexError,
    IndexNotFoundError,
    LockHeldError,
    OwnershipError,
    ResourceError,
)
from citadel.forks import no_fork
from citadel.index.failures import read_failure
from citadel.index.mapping import MappedFile

LOCK = "LOCK"
TEMPORARY = ".tmp"
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EFBIG, errno.ENOMEM, errno.EROFS}
_ADVICE = {
    errno.EROFS: "mount it for writing, or choose another folder",
    errno.EIO: "check the disk, then run it again",
}
_NO_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}  # file systems without hard links
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


class Output(Protocol):
    """A file being written, forward only."""

    def write(self, data: memoryview) -> None: ...
    def sync(self) -> None: ...
    def close(self) -> None: ...


class Lock(Protocol):
    """The one writer's right to write."""

    def check(self) -> None:
        """Raise OwnershipError when somebody else may write by now."""
        ...

    def release(self) -> None: ...


class Storage(Protocol):
    """A flat folder of files: the operations whose order makes a commit durable."""

    location: str

    def make(self) -> None: ...
    def reopen(self) -> None: ...
    def names(self) -> list[str]: ...
    def map(self, name: str) -> memoryview: ...
    def database(self, name: str) -> sqlite3.Connection: ...
    def create(self, name: str) -> Output: ...
    def rename(self, old: str, new: str) -> None:
        """Give a file its final name; FileExistsError where that name is taken."""
        ...

    def remove(self, name: str) -> None: ...
    def sync(self) -> None: ...
    def lock(self) -> Lock: ...
    def scratch(self) -> contextlib.AbstractContextManager[Path]: ...
    def free_space(self) -> int | None: ...


class FolderStorage:
    """A folder on a real disk, held by a descriptor: when its path leads elsewhere later, its files stay in reach
    and the files of others out of reach.

    >>> import tempfile
    >>> FolderStorage(tempfile.mkdtemp()).names()
    []
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(os.path.abspath(path))  # a later chdir must not change what is meant
        self.location = os.fspath(path)
        self._descriptor = -1
        self._opening = threading.Lock()
        _STORAGES.add(self)

    def __reduce__(self) -> tuple[type[FolderStorage], tuple[str]]:
        return type(self), (str(self.path),)

    def _folder(self) -> int:
        """The descriptor of the folder, opened on first use."""
        if self._descriptor < 0:
            with self._opening:
                if self._descriptor < 0:
                    self._descriptor = os.open(self.path, _DIRECTORY)
        return self._descriptor

    def make(self) -> None:
        """Create the folder and its missing parents, each with a durable entry in its own parent."""
        missing = [folder for folder in (self.path, *self.path.parents) if not folder.exists()]
        for folder in reversed(missing):
            folder.mkdir(exist_ok=True)
            _sync_folder(folder.parent)
        self._folder()

    def reopen(self) -> None:
        """Follow the path again: another folder may have taken the place of the one that was opened."""
        if self._descriptor >= 0 and not self._is_in_place():
            try:
                fresh = os.open(self.path, _DIRECTORY)
            except (FileNotFoundError, NotADirectoryError):
                raise IndexNotFoundError(f"{self.location}: the folder was moved or removed") from None
            try:
                os.dup2(fresh, self._descriptor, inheritable=False)  # one step: other threads read meanwhile
            finally:
                os.close(fresh)

    def _is_in_place(self) -> bool:
        """Whether the path still leads to the folder that was opened."""
        try:
            return os.path.samestat(os.stat(self.path), os.fstat(self._folder()))
        except (FileNotFoundError, NotADirectoryError):
            return False

    def require_in_place(self) -> None:
        """Raise OwnershipError when the folder was moved, removed or replaced."""
        if not self._is_in_place():
            raise OwnershipError(
                f"{self.location}: the folder was moved, removed or replaced since it was opened, so nothing was "
                "written; open the index again where it is now"
            )

    def __del__(self) -> None:
        if getattr(self, "_descriptor", -1) >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def names(self) -> list[str]:
        """The names of all files, sorted; a folder that does not exist has none."""
        try:
            own = os.open(".", _DIRECTORY, dir_fd=self._folder())  # listings of one descriptor share a position
        except (FileNotFoundError, NotADirectoryError):
            return []
        try:
            return sorted(os.listdir(own))
        finally:
            os.close(own)

    def map(self, name: str) -> memoryview:
        """The file's bytes, mapped; they stay readable when the file is removed."""
        with self._regular(name) as descriptor:
            if os.fstat(descriptor).st_size == 0:
                return memoryview(b"")
            return memoryview(MappedFile(descriptor))

    @contextlib.contextmanager
    def _regular(self, name: str) -> Iterator[int]:
        """A descriptor of a plain file in this very folder: never a link, a device or a path elsewhere."""
        if os.path.basename(name) != name or name in ("", ".", ".."):
            raise CorruptIndexError(name, "name", "a file name must not lead out of the index folder")
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        try:
            descriptor = os.open(name, flags, dir_fd=self._folder())
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
            uri = f"{(self._reachable() / name).as_uri()}?mode=ro&immutable=1"
            return sqlite3.connect(uri, uri=True, check_same_thread=False)

    def _reachable(self) -> Path:
        """A path of the folder that was opened, for libraries that take paths only."""
        held = Path(f"/proc/self/fd/{self._folder()}")
        return held if held.exists() else self.path

    def create(self, name: str) -> Output:
        """A new file; its name must not be taken."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
        return FileOutput(os.open(name, flags, 0o644, dir_fd=self._folder()))

    def rename(self, old: str, new: str) -> None:
        """Give a file its final name; FileExistsError where that name is taken."""
        folder = self._folder()
        try:
            os.link(old, new, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
        except OSError as error:
            if error.errno not in _NO_LINKS or new in self.names():
                raise
            os.rename(old, new, src_dir_fd=folder, dst_dir_fd=folder)
        else:
            os.unlink(old, dir_fd=folder)

    def remove(self, name: str) -> None:
        """Remove a file or a scratch folder; one that is gone already is no error."""
        try:
            os.unlink(name, dir_fd=self._folder())
        except FileNotFoundError:
            pass
        except (IsADirectoryError, PermissionError):  # macOS says the second of a folder
            shutil.rmtree(name, ignore_errors=True, dir_fd=self._folder())

    def free_space(self) -> int | None:
        """Bytes that may still be written to this disk, or None where the system does not say."""
        try:
            disk = os.fstatvfs(self._folder())
        except OSError:
            return None
        return disk.f_bavail * disk.f_frsize

    def sync(self) -> None:
        """Make names durable: what was created, renamed and removed in this folder."""
        os.fsync(self._folder())

    def lock(self) -> Lock:
        self.require_in_place()
        return FolderLock(self)

    @contextlib.contextmanager
    def scratch(self) -> Iterator[Path]:
        """A folder of the writer's own for databases being built; on the same disk as the index."""
        process, name = os.getpid(), f"scratch-{uuid.uuid4().hex}{TEMPORARY}"
        os.mkdir(name, 0o700, dir_fd=self._folder())
        try:
            yield self._reachable() / name
        finally:
            if os.getpid() == process:  # a forked child leaves it to its parent
                shutil.rmtree(name, ignore_errors=True, dir_fd=self._folder())


def _sync_folder(path: Path) -> None:
    descriptor = os.open(path, _DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


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

    def __init__(self, storage: FolderStorage) -> None:
        self._storage, self._process = storage, os.getpid()
        _LOCKS.add(self)
        while not self._acquire():
            pass  # the file that was locked was deleted meanwhile: lock the new one

    def _acquire(self) -> bool:
        """Lock the file; False when it is no longer the folder's LOCK."""
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        with no_fork:  # a child must know of the descriptor to close it
            self._descriptor = os.open(LOCK, flags, 0o644, dir_fd=self._storage._folder())
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self.release()
            raise _lock_error(self._storage.location, error) from error
        if self._is_current():
            return True
        self.release()
        return False

    def _is_current(self) -> bool:
        try:
            named = os.stat(LOCK, dir_fd=self._storage._folder(), follow_symlinks=False)
        except FileNotFoundError:
            return False
        return os.path.samestat(named, os.fstat(self._descriptor))

    def check(self) -> None:
        """Raise OwnershipError when the folder or the lock is not this process's any more."""
        if os.getpid() != self._process or self._descriptor < 0:
            raise OwnershipError(forked(self._storage.location))
        self._storage.require_in_place()
        if not self._is_current():
            raise OwnershipError(
                f"{self._storage.location}: its LOCK file was deleted while changes waited, and another writer may "
                "have come since; nothing was written: add the changes again, and leave LOCK alone"
            )

    def release(self) -> None:
        if self._descriptor >= 0:
            if os.getpid() == self._process:  # closing alone frees nothing while a forked child has a copy
                with contextlib.suppress(OSError):
                    fcntl.flock(self._descriptor, fcntl.LOCK_UN)
            os.close(self._descriptor)
            self._descriptor = -1

    __del__ = release  # a writer that was dropped without a commit must not lock others out


def forked(location: str) -> str:
    """The sentence for a writer that was carried over into a forked process."""
    return f"{location}: this Index was opened before the process forked; open it again in this process to change it"


def _lock_error(location: str, error: OSError) -> CitadelError:
    if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
        return LockHeldError(f"{location}: another writer, here or in another process, has changes waiting; let it end")
    reason = os.strerror(error.errno or 0).lower()
    return ResourceError(
        f"{location}: its file system cannot lock files ({reason}); move the index to a local disk to change it"
    )


# A child process must not keep a lock alive that its parent gives back, nor wait for a thread that it does not have.
_LOCKS: weakref.WeakSet[FolderLock] = weakref.WeakSet()
_STORAGES: weakref.WeakSet[FolderStorage] = weakref.WeakSet()


def _after_fork() -> None:
    for lock in list(_LOCKS):
        lock.release()
    for storage in list(_STORAGES):
        storage._opening = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)


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
        if failure := read_failure(self._location, error):
            try:
                raise failure from error
            finally:
                del failure  # breaks the cycle of error, traceback and frame, which would keep a lock alive
        if problem := _resource_problem(error):
            advice = _ADVICE.get(getattr(error, "errno", None) or 0, "give it room")
            raise ResourceError(
                f"{self._location}: {problem}; what was committed before is intact; {advice}"
            ) from error


def _resource_problem(error: BaseException | None) -> str | None:
    if isinstance(error, MemoryError):
        return "out of memory"
    if isinstance(error, OSError) and error.errno in _FULL:
        return os.strerror(error.errno).lower()
    if isinstance(error, sqlite3.OperationalError) and "full" in str(error):
        return str(error)
    return None
