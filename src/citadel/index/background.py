"""Work that runs in threads while a segment is written."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import Any, Generic, TypeVar, cast

Item = TypeVar("Item")
Result = TypeVar("Result")


class Stopped(Exception):
    """Work was stopped because its result is no longer needed."""


class Background:
    """Runs work in other threads while there are free ones, else when its result is wanted.

    Leaving it stops work that is not done and waits until none runs, however often the wait is interrupted.

    >>> with Background(threads=2) as background:
    ...     result = background.start(lambda: 6 * 7)
    ...     result()
    42
    """

    def __init__(self, threads: int) -> None:
        self._free, self._is_left = threads - 1, False
        self._tasks: list[_Task[Any]] = []
        self._failed: list[_Task[Any]] = []  # in the order of failure

    def start(self, work: Callable[[], Result]) -> Callable[[], Result]:
        """Start work; the returned function, to be called once, returns its result or raises its error."""
        task = _Task(work, self._failed)
        self._tasks.append(task)  # before the thread starts, because an interrupt may end start()
        if self._free:
            try:
                task.start()
                self._free -= 1
            except RuntimeError:  # too many threads, or the interpreter is shutting down
                pass
        return task.result

    def stoppable(self, items: Iterable[Item]) -> Iterator[Item]:
        """Yield items for work; raise `Stopped` once other work has failed or the block is left."""
        for item in items:
            if self._is_left or self._failed:
                raise Stopped
            yield item

    def check(self) -> None:
        """Raise the first error of the work so far."""
        for task in self._failed[:1]:
            task.result()

    def __enter__(self) -> Background:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        interrupt: BaseException | None = None
        while self._tasks:
            try:
                self._is_left = True
                self._tasks[-1].end()
                self._tasks.pop()
            except BaseException as raised:
                interrupt = raised
        if interrupt is not None:
            try:
                raise interrupt
            finally:
                interrupt = None  # breaks the cycle of traceback and frame


class _Task(threading.Thread, Generic[Result]):
    """Work, and the thread that does it unless another thread wants the result first."""

    def __init__(self, work: Callable[[], Result], failed: list[_Task[Any]]) -> None:
        super().__init__(name="citadel-write")
        self._work: Callable[[], Result] | None = work
        self._outcome: Result | None = None
        self._error: BaseException | None = None
        self._failed = failed
        # Held while the work runs. Unlike join, an event or a future, a plain lock in a with statement
        # has a defined state after an interrupt.
        self._running = threading.Lock()

    def run(self) -> None:
        """Do the work, unless it was begun or has ended; wait for it if another thread does it."""
        with self._running:
            work, self._work = self._work, None
            if work is None:
                return
            try:
                self._outcome = work()
            except BaseException as error:
                self._error = error
                self._failed.append(self)

    def result(self) -> Result:
        """The result of the work, or raise its error."""
        self.run()
        error, self._error = self._error, None
        if error is None:
            return cast(Result, self._outcome)
        try:
            raise error
        finally:
            error = None  # breaks the cycle of traceback and frame

    def end(self) -> None:
        """Wait until the work does not run and never will; drop its outcome."""
        with self._running:
            self._work = self._outcome = self._error = None
        if self.is_alive():
            self.join()  # if this is interrupted, a thread without work is left
