"""A storage that reports each call to a watcher, which may fail the call or kill the process."""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from citadel.index.storage import Lock, Output, Storage

Watcher = Callable[[str], None]
WRITING = ("make", "lock", "scratch", "create", "write", "fsync", "rename", "remove", "sync")
READING = ("names", "map", "database")


class WatchedStorage:
    """Calls the watcher, then the wrapped storage."""

    def __init__(self, inner: Storage, watcher: Watcher) -> None:
        self._inner, self._watcher, self.location = inner, watcher, inner.location

    def make(self) -> None:
        self._watcher("make")
        self._inner.make()

    def reopen(self) -> None:
        self._inner.reopen()

    def inside(self, name: str) -> Storage:
        return WatchedStorage(self._inner.inside(name), self._watcher)

    def names(self) -> list[str]:
        self._watcher("names")
        return self._inner.names()

    def map(self, name: str) -> memoryview:
        self._watcher("map")
        return self._inner.map(name)

    def database(self, name: str) -> sqlite3.Connection:
        self._watcher("database")
        return self._inner.database(name)

    def create(self, name: str) -> Output:
        self._watcher("create")
        return WatchedOutput(self._inner.create(name), self._watcher)

    def rename(self, old: str, new: str) -> None:
        self._watcher("rename")
        self._inner.rename(old, new)

    def remove(self, name: str) -> None:
        self._watcher("remove")
        self._inner.remove(name)

    def sync(self) -> None:
        self._watcher("sync")
        self._inner.sync()

    def lock(self) -> Lock:
        self._watcher("lock")
        return self._inner.lock()

    @contextlib.contextmanager
    def scratch(self) -> Iterator[Path]:
        self._watcher("scratch")
        with self._inner.scratch() as folder:
            yield folder

    def free_space(self) -> int | None:
        return self._inner.free_space()


class WatchedOutput:
    """An output of a watched storage."""

    def __init__(self, inner: Output, watcher: Watcher) -> None:
        self._inner, self._watcher = inner, watcher
        self.close = inner.close

    def write(self, data: memoryview) -> None:
        try:
            self._watcher("write")
        except OSError:
            self._inner.write(data[: len(data) // 2])  # the disk fills up during the write
            raise
        self._inner.write(data)

    def sync(self) -> None:
        self._watcher("fsync")
        self._inner.sync()


class Count:
    """Counts the calls of each kind."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()

    def __call__(self, kind: str) -> None:
        self.calls[kind] += 1


class Fail(Count):
    """Fails the n-th call of some kinds, once or from then on; `failed` counts the failures."""

    def __init__(self, number: int, code: int, kinds: tuple[str, ...], forever: bool = False) -> None:
        super().__init__()
        self.number, self._code, self._kinds, self._forever = number, code, kinds, forever
        self.failed = 0
        self.total = 0

    def __call__(self, kind: str) -> None:
        super().__call__(kind)
        if kind not in self._kinds:
            return
        self.total += 1
        if self.total == self.number or (self._forever and self.total > self.number):
            self.failed += 1
            raise OSError(self._code, os.strerror(self._code))


class Kill(Count):
    """Kills the process at the n-th call of a kind; no handler runs and no buffer is flushed."""

    def __init__(self, kind: str, number: int) -> None:
        super().__init__()
        self._kind, self._number = kind, number

    def __call__(self, kind: str) -> None:
        super().__call__(kind)
        if kind == self._kind and self.calls[kind] == self._number:
            os.kill(os.getpid(), signal.SIGKILL)
