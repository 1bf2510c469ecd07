"""A progress bar on standard error, for a reader at a terminal and for work of more than two seconds."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from rich.progress import Progress as Bar

DELAY = 2.0  # seconds
INTERVAL = 0.1


class Progress:
    """Call it with how much is done and how many items that were; silent where nobody looks.

    >>> with Progress("Indexing", "documents", total=100) as progress:
    ...     progress(50, items=7)
    """

    def __init__(self, what: str, noun: str = "", total: int | None = None) -> None:
        self._what, self._noun, self.total = what, noun, total
        self._done = self._items = 0
        self._start = self._next = 0.0
        self._bar: Bar | None = None
        self._lock = threading.Lock()
        self._timer: threading.Timer | None = None

    def __enter__(self) -> Self:
        self._start = time.monotonic()
        self._next = self._start + DELAY if sys.stderr.isatty() else float("inf")
        if sys.stderr.isatty():
            # A timer, because a single long step would not call us before it is over.
            self._timer = threading.Timer(DELAY, self._show)
            self._timer.daemon = True
            self._timer.start()
        return self

    def __call__(self, done: int, items: int = 0, what: str = "") -> None:
        self._done, self._items, self._what = done, items, what or self._what
        if (now := time.monotonic()) >= self._next:
            self._next = now + INTERVAL
            self._update(now)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()
        with self._lock:
            self._next = float("inf")
            if self._bar is not None:
                self._bar.stop()
                self._bar = None

    def _show(self) -> None:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            Progress,
            TaskProgressColumn,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
        )

        rate = TextColumn("{task.fields[rate]}")
        columns = (
            BarColumn(),
            TaskProgressColumn(),
            rate,
            TimeElapsedColumn(),
            TextColumn("ETA"),
            TimeRemainingColumn(),
        )
        with self._lock:
            if self._next == float("inf"):
                return  # over in the meantime
            text = TextColumn("{task.description}", markup=False)
            self._bar = Progress(text, *columns, console=Console(stderr=True), transient=True)
            self._bar.add_task(self._what, total=self.total, rate="")
            self._bar.start()

    def _update(self, now: float) -> None:
        with self._lock:
            if self._bar is None:
                return
            rate = f"{self._items / (now - self._start):,.0f} {self._noun}/s" if self._items else ""
            task = self._bar.task_ids[0]
            self._bar.update(task, completed=self._done, total=self.total, description=self._what, rate=rate)


# A progress callback factory: called with the task, the noun of what is counted and the total. The callable it
# yields takes the number of items done so far.
Meter = Callable[[str, str, int], AbstractContextManager[Callable[[int], Any]]]


def silent(what: str, noun: str, total: int) -> AbstractContextManager[Callable[[int], Any]]:
    """Meter that shows nothing.

    >>> with silent("Encoding", "passages", 10) as progress:
    ...     progress(5)
    """
    del what, noun, total
    return nullcontext(lambda done: None)
