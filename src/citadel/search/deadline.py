"""When the search of this thread must end: an engine that waits for other machines reads it."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator

_local = threading.local()


@contextlib.contextmanager
def deadline(end: float | None) -> Iterator[None]:
    """Set the end of the searches in this context, a time of `time.perf_counter()`.

    >>> with deadline(time.perf_counter() + 5):
    ...     0 < remaining_seconds(60) <= 5
    True
    """
    before, _local.end = getattr(_local, "end", None), end
    try:
        yield
    finally:
        _local.end = before


def remaining_seconds(default: float) -> float:
    """Seconds until the deadline of this thread's search; `default` without one.

    >>> remaining_seconds(60)
    60
    """
    end: float | None = getattr(_local, "end", None)
    return default if end is None else end - time.perf_counter()
