"""All access of an index to the disk: create, sync, rename, map and remove files.

Tests replace it by a storage that loses, tears and reorders what was not synced.
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
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

from citadel.errors import CorruptIndexError, IndexNotFoundError, OwnershipError, UsageError
from citadel.index.folder_lock import FolderLock
from citadel.index.mapping import MappedFile

AnyPath = str | os.PathLike[str]
TEMPORARY = ".tmp"
NO_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}  # file systems without hard links
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


class Output(Protocol):
    """A file that is written sequentially."""

    def write(self, data: memoryview) -> None: ...
    def sync(self) -> None: ...
    def close(self) -> None: ...


class Lock(Protocol):
    """The exclusive right to write."""

    def check(self) -> None:
        """Raise OwnershipError when another writer may hold the lock."""
        ...

    def release(self) -> None: ...


class Storage(Protocol):
    """A flat folder of files, with the operations that make a commit durable."""

    location: str

    def make(self) -> None: ...
    def reopen(self) -> None: ...
    def inside(self, name: str) -> Storage:
        """The storage of a folder in this one, such as a shard of a sharded index."""
        ...

    def names(self) -> list[str]: ...
    def map(self, name: str) -> memoryview: ...
    def database(self, name: str) -> sqlite3.Connection: ...
    def create(self, name: str) -> Output: ...
    def rename(self, old: str, new: str) -> None:
        """Rename a file; raises FileExistsError if the new name exists."""
        ...

    def remove(self, name: str) -> None: ...
    def sync(self) -> None: ...
    def lock(self) -> Lock: ...
    def scratch(self) -> contextlib.AbstractContextManager[Path]: ...
    def free_space(self) -> int | None: ...


class FolderStorage:
    """A folder on disk, held by a descriptor: moving or replacing it does not change the files in use.

    >>> import tempfile
    >>> FolderStorage(tempfile.mkdtemp()).names()
    []
    """

    def __init__(self, path: AnyPath) -> None:
        self.path = Path(os.path.abspath(path))  # independent of a later chdir
        self.location = os.fspath(path)
        self._descriptor = -1
        self._opening = threading.Lock()
        _STORAGES.add(self)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self.path),)

    def folder(self) -> int:
        """The folder's descriptor, opened on first use."""
        if self._descriptor < 0:
            with self._opening:
                if self._descriptor < 0:
                    self._descriptor = self._open()
        return self._descriptor

    def _open(self) -> int:
        return os.open(self.path, _DIRECTORY)

    def inside(self, name: str) -> FolderStorage:
        """The storage of a folder in this one; a link in its place raises."""
        return InnerFolder(self, name)

    def make(self) -> None:
        """Create the folder and its missing parents, durably."""
        missing = [folder for folder in (self.path, *self.path.parents) if not folder.exists()]
        for folder in reversed(missing):
            folder.mkdir(exist_ok=True)
            sync_folder(folder.parent)
        self.folder()

    def reopen(self) -> None:
        """Open the folder that is at the path now, if it was replaced."""
        if self._descriptor >= 0 and not self._is_in_place():
            try:
                fresh = self._open()
            except (FileNotFoundError, NotADirectoryError):
                raise IndexNotFoundError(f"{self.location}: the folder was moved or removed") from None
            try:
                os.dup2(fresh, self._descriptor, inheritable=False)  # atomic: other threads may be reading
            finally:
                os.close(fresh)

    def _is_in_place(self) -> bool:
        """Whether the opened folder is still at its path."""
        try:
            return os.path.samestat(os.stat(self.path), os.fstat(self.folder()))
        except (FileNotFoundError, NotADirectoryError):
            return False

    def require_in_place(self) -> None:
        """Raise OwnershipError when the folder was moved, removed or replaced."""
        if not self._is_in_place():
            raise OwnershipError(
                f"{self.location}: the folder was moved, removed or replaced since it was opened, "
                "so nothing was written; open the index again where it is now"
            )

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        # Bound as a default, because globals may be None while the interpreter shuts down.
        if getattr(self, "_descriptor", -1) >= 0:
            close(self._descriptor)
            self._descriptor = -1

    def names(self) -> list[str]:
        """The sorted names of all files; empty if the folder does not exist."""
        try:
            # A new descriptor, because concurrent listings of one share a position.
            descriptor = os.open(".", _DIRECTORY, dir_fd=self.folder())
        except (FileNotFoundError, NotADirectoryError):
            return []
        try:
            return sorted(os.listdir(descriptor))
        finally:
            os.close(descriptor)

    def map(self, name: str) -> memoryview:
        """Map a file; the bytes stay readable after the file is removed."""
        with self._regular(name) as descriptor:
            if os.fstat(descriptor).st_size == 0:
                return memoryview(b"")
            return memoryview(MappedFile(descriptor))

    @contextlib.contextmanager
    def _regular(self, name: str) -> Iterator[int]:
        """Open a regular file of this folder; links, devices and paths raise."""
        if os.path.basename(name) != name or name in ("", ".", ".."):
            raise CorruptIndexError(name, "name", "a file name must not lead out of the index folder")
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        try:
            descriptor = os.open(name, flags, dir_fd=self.folder())
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.EMLINK):
                raise CorruptIndexError(
                    name, "file", "it is a symbolic link, which an index never holds"
                ) from error
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
        """A read-only SQLite connection to an immutable file."""
        with self._regular(name):
            uri = f"{(self._reachable() / name).as_uri()}?mode=ro&immutable=1"
            return sqlite3.connect(uri, uri=True, check_same_thread=False)

    def _reachable(self) -> Path:
        """A path to the opened folder, for libraries that need one."""
        held = Path(f"/proc/self/fd/{self.folder()}")
        return held if held.exists() else self.path

    def create(self, name: str) -> Output:
        """Create a file; raises FileExistsError if it exists."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
        return FileOutput(os.open(name, flags, 0o644, dir_fd=self.folder()))

    def rename(self, old: str, new: str) -> None:
        """Rename a file; raises FileExistsError if the new name exists."""
        folder = self.folder()
        try:
            os.link(old, new, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
        except OSError as error:
            if error.errno not in NO_LINKS or new in self.names():
                raise
            os.rename(old, new, src_dir_fd=folder, dst_dir_fd=folder)
        else:
            os.unlink(old, dir_fd=folder)

    def remove(self, name: str) -> None:
        """Remove a file or a scratch folder, if it exists."""
        try:
            os.unlink(name, dir_fd=self.folder())
        except FileNotFoundError:
            pass
        except (IsADirectoryError, PermissionError):  # macOS raises the second for a folder
            shutil.rmtree(name, ignore_errors=True, dir_fd=self.folder())

    def free_space(self) -> int | None:
        """Free bytes on this disk, or None if unknown."""
        try:
            disk = os.fstatvfs(self.folder())
        except OSError:
            return None
        return disk.f_bavail * disk.f_frsize

    def sync(self) -> None:
        """Sync the folder: make created, renamed and removed names durable."""
        os.fsync(self.folder())

    def lock(self) -> Lock:
        self.require_in_place()
        return FolderLock(self)

    @contextlib.contextmanager
    def scratch(self) -> Iterator[Path]:
        """A temporary folder on the disk of the index."""
        process, name = os.getpid(), f"scratch-{uuid.uuid4().hex}{TEMPORARY}"
        os.mkdir(name, 0o700, dir_fd=self.folder())
        try:
            yield self._reachable() / name
        finally:
            if os.getpid() == process:  # the parent removes it, not a forked child
                shutil.rmtree(name, ignore_errors=True, dir_fd=self.folder())


class InnerFolder(FolderStorage):
    """A folder in the folder of an index. Links are not followed, so nothing outside is opened."""

    def __init__(self, parent: FolderStorage, name: str) -> None:
        super().__init__(parent.path / name)
        self._parent, self._name = parent, name
        self.location = f"{parent.location}/{name}"

    def __reduce__(self) -> tuple[Any, ...]:
        return InnerFolder, (self._parent, self._name)

    def _open(self) -> int:
        try:
            return os.open(self._name, _DIRECTORY | os.O_NOFOLLOW, dir_fd=self._parent.folder())
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENOTDIR):
                raise CorruptIndexError(self._name, "folder", "it is not a plain folder") from error
            raise


def as_storage(path: AnyPath | Storage) -> Storage:
    """The storage of an index, given by itself or by its path."""
    if path is None or isinstance(path, (int, bytes)) or path == "":
        raise UsageError(f"an index is a folder: give its path, not {path!r}")
    if isinstance(path, str) and "://" in path:
        from citadel.index.object_store import ObjectStorage

        return ObjectStorage(path)
    return FolderStorage(path) if isinstance(path, (str, os.PathLike)) else path


def absolute(path: str) -> str:
    """A path that another process understands: absolute, or the address of an object store.

    >>> absolute("s3://bucket/index")
    's3://bucket/index'
    """
    return path if "://" in path else os.path.abspath(path)


def sync_folder(path: Path) -> None:
    """Make created, renamed and removed names of a folder durable."""
    descriptor = os.open(path, _DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class FileOutput:
    """A file on disk, written without buffering so that every error is raised at once."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def write(self, data: memoryview) -> None:
        data = data.cast("B")
        while data:
            data = data[os.write(self._descriptor, data[: 1 << 30]) :]  # one call writes at most 2 GiB

    def sync(self) -> None:
        if hasattr(fcntl, "F_FULLFSYNC"):  # macOS: fsync leaves data in the drive's cache
            with contextlib.suppress(OSError):
                fcntl.fcntl(self._descriptor, fcntl.F_FULLFSYNC)
                return
        os.fsync(self._descriptor)

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    __del__ = close  # after a failed write nobody else closes it


_STORAGES: weakref.WeakSet[FolderStorage] = weakref.WeakSet()


def _after_fork() -> None:
    for storage in list(_STORAGES):
        storage._opening = threading.Lock()  # a thread of the parent may hold it


os.register_at_fork(after_in_child=_after_fork)
