"""What waits for the workers: first come, first served, and no worker is woken that has nothing to do.

`queue.SimpleQueue` wakes a second sleeper whenever one takes something; it finds nothing and sleeps again, and for a
search of microseconds that turn of Python's lock costs as much as the search.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import Generic, TypeVar

T = TypeVar("T")


class WorkQueue(Generic[T]):
    """Things for some threads; whoever fell asleep last is woken first, for its memory is the warmest.

    >>> queue = WorkQueue[str](threads=1)
    >>> woken = queue.put("a")
    >>> queue.get(), queue.get_at_once(), len(queue)
    ('a', None, 0)
    """

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._waiting: deque[T] = deque()
        self._sleepers: list[threading.Lock] = []  # each is held; its release is what wakes
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, thing: T, help: bool = True) -> bool:
        """Hand one in. Without `help` nobody is woken while a thread is awake that will come for it: False then."""
        with self._lock:
            self._waiting.append(thing)
            wake = help or len(self._sleepers) == self._threads
            sleeper = self._sleepers.pop() if wake and self._sleepers else None
        if sleeper is not None:
            sleeper.release()
        return wake

    def wake(self) -> bool:
        """Wake one more thread if something waits; whether something did."""
        with self._lock:
            waits = bool(self._waiting)
            sleeper = self._sleepers.pop() if waits and self._sleepers else None
        if sleeper is not None:
            sleeper.release()
        return waits

    def get(self) -> T:
        """The first that waits, as soon as there is one."""
        mine = threading.Lock()
        mine.acquire()
        while True:
            with self._lock:
                if self._waiting:
                    return self._waiting.popleft()
                self._sleepers.append(mine)
            mine.acquire()

    def get_at_once(self) -> T | None:
        """The first that waits, or None."""
        with self._lock:
            return self._waiting.popleft() if self._waiting else None
