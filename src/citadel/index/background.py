"""Work that runs in threads while a segment is written."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from types import TracebackType
from typing import TypeVar

Result = TypeVar("Result")


class Background:
    """Runs work in other threads while there are free ones, else when its result is wanted.

    Leaving it waits for all work.

    >>> with Background(threads=2) as background:
    ...     result = background.start(lambda: 6 * 7)
    ...     result()
    42
    """

    def __init__(self, threads: int) -> None:
        self._free, self._threads = threads - 1, list[threading.Thread]()

    def start(self, work: Callable[[], Result]) -> Callable[[], Result]:
        """Start work; the returned function, to be called once, returns its result or raises its error."""
        if not self._free:
            return work
        future = Future[Result]()

        def run() -> None:
            try:
                future.set_result(work())
            except BaseException as error:
                future.set_exception(error)

        thread = threading.Thread(target=run, name="citadel-write")
        try:
            thread.start()
        except RuntimeError:  # too many threads, or the interpreter is shutting down
            return work
        self._free -= 1
        self._threads.append(thread)
        return future.result

    def __enter__(self) -> Background:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for thread in self._threads:
            thread.join()
