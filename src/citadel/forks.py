"""Delay forks while a library with its own locks runs: a child would inherit a held lock and deadlock."""

from __future__ import annotations

import os
import threading
from types import TracebackType


class ForkGate:
    """Guard calls into such a library; a fork waits until no thread is inside.

    Locks that are acquired only inside the gate are free in every child.

    >>> gate = ForkGate()
    >>> with gate, gate:  # may be nested
    ...     "select"
    'select'
    """

    def __init__(self) -> None:
        self._depth = threading.local()
        self._reset()
        os.register_at_fork(before=self._close, after_in_parent=self._open, after_in_child=self._start_child)

    def _reset(self) -> None:
        """Set the state of a process with one thread: only that thread can be inside."""
        self._changed = threading.Condition(threading.RLock())  # a finaliser may enter while we hold it
        self._inside = int(self._own_depth() > 0)
        self._forks = 0

    def _own_depth(self) -> int:
        return getattr(self._depth, "value", 0)

    def __enter__(self) -> None:
        depth = self._own_depth()
        if depth == 0:
            with self._changed:
                while self._forks:
                    self._changed.wait()
                self._inside += 1
        self._depth.value = depth + 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._depth.value = depth = self._own_depth() - 1
        if depth == 0:
            with self._changed:
                self._inside -= 1
                if self._forks:
                    self._changed.notify_all()

    def _close(self) -> None:
        """Wait for the threads inside and admit no others; the forking thread itself may still enter."""
        depth = self._own_depth()
        self._depth.value = depth + 1
        with self._changed:
            self._forks += 1
            while self._inside > int(depth > 0):
                self._changed.wait()

    def _open(self) -> None:
        self._depth.value = self._own_depth() - 1
        with self._changed:
            self._forks -= 1
            self._changed.notify_all()

    def _start_child(self) -> None:
        self._depth.value = self._own_depth() - 1
        self._reset()


no_fork = ForkGate()
