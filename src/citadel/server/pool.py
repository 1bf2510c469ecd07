"""The workers that search: a bounded queue before them, a deadline on every job, neighbours encoded together.

Nobody waits for company: a worker takes what is there, its share of the queue, when it becomes free. So batches are of
one query while there are workers enough, and grow with the load, when they pay.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from itertools import groupby
from threading import Thread
from typing import Any, Literal

from citadel._native import Cancel
from citadel.errors import Cancelled, ServerError
from citadel.search.searcher import Searcher
from citadel.server.errors import busy
from citadel.server.work_queue import WorkQueue

TEXTS_TOGETHER = 16  # encoded in one go; more would keep a cancelled job's worker too long
PATIENCE = 0.05  # seconds a job may run before somebody watches whether its client is still there
SHORT, AT_MOST = 0.0003, 0.001  # seconds of processor and of clock: such a search is Python's work, not the engine's
BEHIND = 0.002  # seconds until somebody looks whether such searches wait behind a longer one
DELIVERY = 0.001  # seconds that finished jobs wait at most for those beside them
PACE, SPACING, LONGEST = 0.1, 0.004, 1.0  # seconds before a refusal, more for each one that is held back already

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Run = Callable[["Job", list[Any]], Any]


class Job:
    """One request's work: texts to prepare first, then what to do with the prepared queries."""

    __slots__ = ("cancel", "created", "encode_seconds", "future", "outcome", "run", "searcher", "started", "texts")

    def __init__(self, searcher: Searcher, run: Run, texts: Sequence[str] = ()) -> None:
        self.searcher, self.run, self.texts = searcher, run, texts
        self.cancel, self.created = Cancel(), time.perf_counter()
        self.started = self.encode_seconds = 0.0
        self.outcome: tuple[Any, BaseException | None] = (None, None)
        self.future: asyncio.Future[Any] | None = asyncio.get_running_loop().create_future()

    @property
    def queue_seconds(self) -> float:
        return self.started - self.created

    def fail(self, error: BaseException) -> None:
        """Answer now, and let the worker stop as soon as the engine looks at the flag."""
        self.cancel.set()
        if self.future is not None and not self.future.done():
            self.future.set_exception(error)

    def settle(self) -> None:
        """Hand the outcome to whoever still waits for it."""
        (result, error), self.outcome = self.outcome, (None, None)
        if self.future is None or self.future.done():
            return
        if error is None:
            self.future.set_result(result)
        else:
            self.future.set_exception(error)

    def leave(self) -> None:
        """Nobody waits any more. An error knows the frames it came through, and they this job: no ring must stay."""
        self.cancel.set()  # if the engine still runs
        self.future = None


class Pool:
    """Some threads, each with one search at a time."""

    def __init__(self, workers: int, most: int, observe: Callable[[list[float]], None] = lambda waits: None) -> None:
        self.workers, self._most, self._observe = workers, most, observe
        self._queue: WorkQueue[Job | Literal["end"]] = WorkQueue(workers)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._refused, self._looking = 0, False
        self._taken, self._short = 0.0, False  # when a worker last took something; what the last ones were like
        self._threads = [Thread(target=self._work, name=f"citadel-search-{n}", daemon=True) for n in range(workers)]

    def start(self) -> None:
        """Begin to work, for the loop that runs now."""
        self._loop = asyncio.get_running_loop()
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End when all that waits is done."""
        for _ in self._threads:
            self._queue.put("end")
        for thread in self._threads:
            thread.join()

    @property
    def waiting(self) -> int:
        return len(self._queue)

    async def answer(self, job: Job, seconds: float, receive: Receive) -> Any:
        """What the job gives; a refusal when too many wait, 504 at the deadline, and an end when the client leaves."""
        await self.admit()
        loop, future = asyncio.get_running_loop(), job.future
        assert future is not None  # a job is answered once
        watch = _Watch(job, receive, seconds)
        watch.timer = loop.call_later(min(PATIENCE, seconds), watch.start)
        self._hand_in(job)
        try:
            return await future
        finally:
            watch.stop()
            job.leave()
            del future

    async def admit(self) -> None:
        """Refuse when too many wait; asked before a body is read too, so that a refusal costs next to nothing."""
        if len(self._queue) < self._most:
            return
        self._refused += 1
        try:  # a client that asks again at once must not take the cores from the searches
            await asyncio.sleep(min(max(PACE, SPACING * self._refused), LONGEST))
        finally:
            self._refused -= 1
        raise busy()

    def _hand_in(self, job: Job) -> None:
        """Short searches all go to the worker that is awake: two would only pass Python's lock to and fro."""
        if not self._queue.put(job, help=not self._short) and not self._looking:
            self._look_soon()

    def _look_soon(self) -> None:
        assert self._loop is not None  # it is this one
        self._looking = True
        self._loop.call_later(BEHIND, self._look)

    def _look(self) -> None:
        """Wake another worker if somebody waits behind something long after all."""
        self._looking = False
        if len(self._queue):
            if time.perf_counter() - self._taken > BEHIND:
                self._queue.wake()
            self._look_soon()

    # -- in the workers ------------------------------------------------------------------------------------------------

    def _work(self) -> None:
        while (jobs := self._take()) is not None:
            start = self._taken = time.perf_counter()
            used = time.thread_time()
            self._run_all(jobs)
            each = max(len(jobs), 1)
            self._short = time.thread_time() - used < SHORT * each and time.perf_counter() - start < AT_MOST * each
            del jobs  # while this thread waits, it must not hold on to an old generation's files

    def _run_all(self, jobs: list[Job]) -> None:
        finished: list[Job] = []
        delivered = time.perf_counter()
        for _, group in groupby(jobs, key=lambda job: id(job.searcher)):  # during a swap there are two
            for job, queries in prepared(list(group)):
                _run(job, queries)
                finished.append(job)
                if time.perf_counter() - delivered > DELIVERY:
                    self._deliver(finished)
                    finished, delivered = [], time.perf_counter()
        self._deliver(finished)

    def _take(self) -> list[Job] | None:
        """This worker's share of what waits, less what nobody waits for any more; None when the work is over."""
        first = self._queue.get()
        if first == "end":
            return None
        share = len(self._queue) // self.workers if first.texts else 0  # without a text company is of no use
        jobs, texts = [first], len(first.texts)
        while len(jobs) <= share and texts < TEXTS_TOGETHER:
            job = self._queue.get_at_once()
            if job is None:
                break
            if job == "end":
                self._queue.put("end")  # for this very thread, when it is done
                break
            jobs.append(job)
            texts += len(job.texts)
        now = time.perf_counter()
        for job in jobs:
            job.started = now
        self._observe([job.queue_seconds for job in jobs])
        return [job for job in jobs if not job.cancel.is_set()]

    def _deliver(self, finished: list[Job]) -> None:
        if finished and self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(_settle_all, finished)


def prepared(jobs: list[Job]) -> list[tuple[Job, list[Any]]]:
    """The jobs with their queries; texts of all are encoded together, or each alone when that fails."""
    start = time.perf_counter()
    try:
        whole = _prepare(jobs, [text for job in jobs for text in job.texts])
    except Exception as error:
        if len(jobs) == 1:
            jobs[0].outcome = (None, error)
            return [(jobs[0], [])]
        return [pair for job in jobs for pair in prepared([job])]
    pairs, seconds = [], time.perf_counter() - start
    for job in jobs:
        count = len(job.texts)
        pairs.append((job, whole[:count]))
        whole, job.encode_seconds = whole[count:], seconds
    return pairs


def _prepare(jobs: list[Job], texts: list[str]) -> list[Any]:
    """Some texts at a time, so that a job that nobody waits for ends soon."""
    found: list[Any] = []
    for start in range(0, len(texts), TEXTS_TOGETHER):
        if all(job.cancel.is_set() for job in jobs):
            raise Cancelled("the search was cancelled")
        found += jobs[0].searcher.prepare(texts[start : start + TEXTS_TOGETHER])
    return found


def _run(job: Job, queries: list[Any]) -> None:
    if job.outcome[1] is not None:
        return
    try:
        job.outcome = (job.run(job, queries), None)
    except BaseException as error:
        job.outcome = (None, error)


def _settle_all(jobs: list[Job]) -> None:
    for job in jobs:
        job.settle()


class _Watch:
    """Ends a job at its deadline, or when its client has left. Most jobs end before it has begun."""

    __slots__ = ("_job", "_receive", "_seconds", "_task", "timer")

    def __init__(self, job: Job, receive: Receive, seconds: float) -> None:
        self._job: Job | None = job
        self._receive, self._seconds = receive, seconds
        self._task: asyncio.Task[None] | None = None
        self.timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        loop = asyncio.get_running_loop()
        self._task = loop.create_task(self._wait())
        self.timer = loop.call_later(max(self._seconds - PATIENCE, 0.0), self._expire)

    async def _wait(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        if self._job is not None:
            self._job.fail(ServerError(499, "left", "the client has left"))

    def _expire(self) -> None:
        message = f"the request took longer than {self._seconds:g} seconds: ask for less, or later"
        if self._job is not None:
            self._job.fail(ServerError(504, "deadline", message))

    def stop(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
        if self._task is not None:
            self._task.cancel()
        self._task = self._job = self.timer = None  # a cancelled task and its frame hold each other for a while
