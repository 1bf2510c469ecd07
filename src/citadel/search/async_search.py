"""Run a search in a worker thread without blocking the event loop; cancelling it stops the native scan."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import TYPE_CHECKING, TypeVar

from citadel.errors import Cancelled
from citadel.settings import available_threads

if TYPE_CHECKING:
    from citadel._native import Cancel

T = TypeVar("T")
_MAX_WORKERS = 32


async def run_cancellable(work: Callable[[Cancel], T], cancel: Cancel | None = None) -> T:
    """The result of `work`, called in a worker thread with a flag that is set when this task is cancelled.

    >>> asyncio.run(run_cancellable(lambda cancel: cancel.is_set()))
    False
    """
    from citadel._native import Cancel

    flag = Cancel() if cancel is None else cancel
    future = asyncio.get_running_loop().run_in_executor(_workers(), _call, work, flag)
    try:
        return await future
    finally:
        if not future.done() or future.cancelled():
            flag.set()


def _call(work: Callable[[Cancel], T], cancel: Cancel) -> T:
    if cancel.is_set():
        raise Cancelled("the search was cancelled")
    return work(cancel)


@cache
def _workers() -> ThreadPoolExecutor:
    """The worker threads of this process."""
    return ThreadPoolExecutor(min(_MAX_WORKERS, available_threads() + 4), "citadel-async")


os.register_at_fork(after_in_child=_workers.cache_clear)  # its threads are the parent's
