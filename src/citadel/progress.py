"""Progress of long operations on standard error: a bar at a terminal, lines in a log."""

from __future__ import annotations

import contextlib
import importlib.util
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from rich.progress import Progress as Bar

DELAY = 0.5  # seconds before a bar appears, so that short operations show none
INTERVAL = 0.1  # seconds between two updates of a bar
LINE_INTERVAL = 10.0  # seconds between two lines in a log

# Makes a progress display from a description, the noun of the items, and their total number;
# inside the context, call it with the number of items done.
Meter = Callable[[str, str, int], AbstractContextManager[Callable[[int], Any]]]


def silent(what: str, noun: str, total: int) -> AbstractContextManager[Callable[[int], Any]]:
    """Make a display that shows nothing.

    >>> with silent("Encoding", "passages", 10) as progress:
    ...     progress(5)
    """
    del what, noun, total
    return nullcontext(lambda done: None)


def default_meter() -> Meter:
    """Choose a bar at a terminal with rich installed, lines elsewhere."""
    if sys.stderr.isatty() and importlib.util.find_spec("rich") is not None:
        return Progress
    return ProgressLines


class Progress:
    """A bar with rate and time left. No-op unless stderr is a terminal.

    Call it with the amount done, and with `items` if the rate counts something other than that amount.

    >>> with Progress("Indexing", "documents", total=100) as progress:
    ...     progress(50, items=7)
    """

    def __init__(self, what: str, noun: str = "", total: int | None = None) -> None:
        self._what, self._noun, self.total = what, noun, total
        self._first = self._done = self._items = 0
        self._start = 0.0
        self._next = float("inf")
        self._bar: Bar | None = None
        self._lock = threading.Lock()
        self._timer: threading.Timer | None = None

    def __enter__(self) -> Self:
        self._start = time.monotonic()
        if sys.stderr.isatty():
            self._next = self._start + DELAY
            # A timer, because a single long step calls us only at its end.
            self._timer = threading.Timer(DELAY, self._show)
            self._timer.daemon = True
            self._timer.start()
        return self

    def resume(self, done: int) -> None:
        """Start the bar at the amount done by an earlier run; rate and time left count from here."""
        self._first = self._done = done

    def __call__(self, done: int, items: int | None = None, what: str = "") -> None:
        self._done, self._what = done, what or self._what
        self._items = done - self._first if items is None else items
        if (now := time.monotonic()) >= self._next:
            self._next = now + INTERVAL
            self._update(now)

    def advance(self, count: int) -> None:
        """Add `count` to the amount done."""
        self(self._done + count)

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
        from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

        text = TextColumn("{task.description}", markup=False)
        columns = (BarColumn(), TaskProgressColumn(), TextColumn("{task.fields[pace]}"), TimeElapsedColumn())
        with self._lock:
            if self._next == float("inf"):
                return  # already closed
            self._bar = Progress(text, *columns, console=Console(stderr=True), transient=True)
            self._bar.add_task(self._what, total=self.total, completed=self._done, pace="")
            self._bar.start()
        self._update(time.monotonic())

    def _update(self, now: float) -> None:
        with self._lock:
            if self._bar is None:
                return
            [task] = self._bar.task_ids
            pace = self._pace(now - self._start)
            self._bar.update(task, completed=self._done, total=self.total, description=self._what, pace=pace)

    def _pace(self, seconds: float) -> str:
        """Rate and time left, from the mean since the start."""
        parts = []
        if self._items and self._noun and seconds > 0:
            parts.append(f"{_rate(self._items / seconds)} {self._noun}/s")
        if self.total and self._done > self._first:
            left = max(self.total - self._done, 0) * seconds / (self._done - self._first)
            parts.append(f"ETA {_clock(left)}")
        return "  ".join(parts)


class ProgressLines:
    """Progress as lines on standard error, for a log file or a machine without rich.

    >>> with ProgressLines("Encoding", "passages", 10) as progress:
    ...     progress(5)
    """

    def __init__(self, what: str, noun: str, total: int) -> None:
        self._what, self._noun, self._total = what, noun, total
        self._start = self._last = time.monotonic()

    def __enter__(self) -> Callable[[int], Any]:
        return self._print

    def __exit__(self, *_: object) -> None:
        return None

    def _print(self, done: int) -> None:
        now = time.monotonic()
        if now - self._last < LINE_INTERVAL:
            return
        self._last = now
        rate = done / (now - self._start)
        left = f", ETA {_clock((self._total - done) / rate)}" if rate > 0 and self._total >= done else ""
        line = f"{self._what}: {done:,} of {self._total:,} {self._noun}, {_rate(rate)}/s{left}"
        print(line, file=sys.stderr, flush=True)


def _rate(per_second: float) -> str:
    """Format a rate, with a decimal below ten.

    >>> _rate(3.26), _rate(51234.0)
    ('3.3', '51,234')
    """
    return f"{per_second:.1f}" if per_second < 10 else f"{per_second:,.0f}"


def _clock(seconds: float) -> str:
    """Format a duration as hours, minutes and seconds.

    >>> _clock(59.6), _clock(3725)
    ('0:01:00', '1:02:05')
    """
    whole = round(seconds)
    return f"{whole // 3600}:{whole // 60 % 60:02}:{whole % 60:02}"


@contextlib.contextmanager
def document_progress(
    progress: bool | Callable[[int], None], what: str, total: int | None
) -> Iterator[Callable[[int], None] | None]:
    """Yield a function to call with the number of further documents, or None if progress is off.

    >>> with document_progress(print, "Adding", total=2) as advance:
    ...     advance(1)
    ...     advance(1)
    1
    2
    """
    if callable(progress):
        yield _running_total(progress)
    elif progress:
        with Progress(what, "documents", total) as bar:
            yield _running_total(bar)
    else:
        yield None


def _running_total(report: Callable[[int], None]) -> Callable[[int], None]:
    done = 0

    def advance(count: int) -> None:
        nonlocal done
        done += count
        report(done)

    return advance
