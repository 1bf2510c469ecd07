"""The lock of an index folder, held by its writer."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import weakref
from typing import TYPE_CHECKING

from citadel.errors import CitadelError, LockHeldError, OwnershipError, ResourceError
from citadel.forks import no_fork

if TYPE_CHECKING:
    from citadel.index.storage import FolderStorage

LOCK = "LOCK"


class FolderLock:
    """flock on LOCK; the kernel frees it when its holder dies."""

    _descriptor = -1

    def __init__(self, storage: FolderStorage) -> None:
        self._storage, self._process = storage, os.getpid()
        _LOCKS.add(self)
        while not self._acquire():
            pass  # LOCK was deleted meanwhile: lock the new file

    def _acquire(self) -> bool:
        """Lock the file; False if it is no longer the folder's LOCK."""
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        with no_fork:  # so that a forked child knows the descriptor and closes it
            self._descriptor = os.open(LOCK, flags, 0o644, dir_fd=self._storage.folder())
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
            named = os.stat(LOCK, dir_fd=self._storage.folder(), follow_symlinks=False)
        except FileNotFoundError:
            return False
        return os.path.samestat(named, os.fstat(self._descriptor))

    def check(self) -> None:
        """Raise OwnershipError if this process no longer owns the folder or the lock."""
        if os.getpid() != self._process or self._descriptor < 0:
            raise OwnershipError(fork_message(self._storage.location))
        self._storage.require_in_place()
        if not self._is_current():
            raise OwnershipError(
                f"{self._storage.location}: LOCK was deleted before the commit, so another writer may have "
                "started; nothing was written: add the changes again, and do not delete LOCK"
            )

    def release(self) -> None:
        if self._descriptor >= 0:
            if os.getpid() == self._process:  # closing frees nothing while a forked child has a copy
                with contextlib.suppress(OSError):
                    fcntl.flock(self._descriptor, fcntl.LOCK_UN)
            os.close(self._descriptor)
            self._descriptor = -1

    __del__ = release  # a writer that is dropped must not block others


def fork_message(location: str) -> str:
    """The message for a writer used in a forked process."""
    problem = "this Index was opened before the process forked"
    return f"{location}: {problem}; open it again in this process to change it"


def _lock_error(location: str, error: OSError) -> CitadelError:
    if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
        return LockHeldError(
            f"{location}: another writer, in this or another process, has uncommitted changes; "
            "wait until it has committed or closed the index"
        )
    reason = os.strerror(error.errno or 0).lower()
    return ResourceError(
        f"{location}: its file system cannot lock files ({reason}); "
        "move the index to a local disk to change it"
    )


_LOCKS: weakref.WeakSet[FolderLock] = weakref.WeakSet()


def _after_fork() -> None:
    for lock in list(_LOCKS):
        lock.release()  # a child must not keep its parent's lock


os.register_at_fork(after_in_child=_after_fork)
