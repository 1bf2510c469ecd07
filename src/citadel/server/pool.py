"""Worker pool for searches: bounded queue, deadline per job, queries encoded in batches.

A free worker takes its share of the queue at once and never waits for more. So a batch is one query
while workers are idle, and batches grow with the load, when they pay.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from itertools import groupby
from threading import Thread
from typing import Any, Literal, NoReturn

from citadel._native import Cancel
from citadel.errors import Cancelled, ServerError
from citadel.search.deadline import deadline
from citadel.search.index_hybrid import IndexHybrid
from citadel.search.searcher import Searcher
from citadel.server.errors import busy
from citadel.server.work_queue import WorkQueue

MAX_BATCH_TEXTS = 16  # encoded together; more would delay the worker of a cancelled job
WATCH_AFTER = 0.05  # seconds a job runs before the pool watches for a disconnect
SHORT_CPU, SHORT_WALL = 0.0003, 0.001  # seconds; a shorter search is mostly interpreter time
STALL = 0.002  # seconds until the pool checks whether short searches wait behind a long one
DELIVERY = 0.001  # seconds that finished jobs wait at most for the rest of their batch
REFUSAL_DELAY, REFUSAL_STEP, MAX_REFUSAL_DELAY = 0.1, 0.004, 1.0  # seconds; step per pending refusal

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Run = Callable[["PoolJob", list[Any]], Any]
AnySearcher = Searcher | IndexHybrid


class PoolJob:
    """The work of one request: texts to encode, then a function of the encoded queries."""

    __slots__ = (
        "cancel",
        "created",
        "encode_seconds",
        "expires",
        "future",
        "outcome",
        "run",
        "searcher",
        "started",
        "texts",
    )

    def __init__(self, searcher: AnySearcher, run: Run, texts: Sequence[str] = ()) -> None:
        self.searcher, self.run, self.texts = searcher, run, texts
        self.cancel, self.created = Cancel(), time.perf_counter()
        self.started = self.encode_seconds = 0.0
        self.expires: float | None = None  # by time.perf_counter(); set when it is queued
        self.outcome: tuple[Any, BaseException | None] = (None, None)
        self.future: asyncio.Future[Any] | None = asyncio.get_running_loop().create_future()

    @property
    def queue_seconds(self) -> float:
        """Time between creation and start."""
        return self.started - self.created

    def fail(self, error: BaseException) -> None:
        """Answer with an error now; the worker stops when the engine next checks the flag."""
        self.cancel.set()
        if self.future is not None and not self.future.done():
            self.future.set_exception(error)

    def settle(self) -> None:
        """Pass the outcome to the future, if anyone still waits for it."""
        (result, error), self.outcome = self.outcome, (None, None)
        if self.future is None or self.future.done():
            return
        if error is None:
            self.future.set_result(result)
        else:
            self.future.set_exception(error)

    def release(self) -> None:
        """Cancel the search and drop the future: it breaks the traceback cycle."""
        self.cancel.set()
        self.future = None


class Pool:
    """Worker threads, each with one search at a time."""

    def __init__(
        self, workers: int, max_waiting: int, observe: Callable[[list[float]], None] = lambda waits: None
    ) -> None:
        self.workers, self._max_waiting, self._observe = workers, max_waiting, observe
        self._queue: WorkQueue[PoolJob | Literal["end"]] = WorkQueue(workers)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._refusing, self._checking = 0, False
        self._last_taken, self._is_short = 0.0, False  # of the last batch taken
        self._threads = [
            Thread(target=self._work, name=f"citadel-search-{n}", daemon=True) for n in range(workers)
        ]

    def start(self) -> None:
        """Start the workers for the running event loop."""
        self._loop = asyncio.get_running_loop()
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Finish queued jobs and join the workers."""
        for _ in self._threads:
            self._queue.put("end")
        for thread in self._threads:
            thread.join()

    @property
    def waiting(self) -> int:
        """Number of queued jobs."""
        return len(self._queue)

    @property
    def is_full(self) -> bool:
        """Whether a new job must be refused."""
        return len(self._queue) >= self._max_waiting

    async def admit(self) -> None:
        """Refuse when the queue is full.

        Call it once per request, and hand in the job without another await in between: then the queue
        never exceeds its limit.
        """
        if self.is_full:
            await self.refuse()

    async def refuse(self) -> NoReturn:
        """Raise 503 after a delay, so that clients that retry at once leave the cores to the searches."""
        self._refusing += 1
        try:
            await asyncio.sleep(min(max(REFUSAL_DELAY, REFUSAL_STEP * self._refusing), MAX_REFUSAL_DELAY))
        finally:
            self._refusing -= 1
        raise busy()

    async def answer(self, job: PoolJob, seconds: float, receive: Receive) -> Any:
        """Run an admitted job and return its result; stop it at the deadline or on a disconnect."""
        loop, future = asyncio.get_running_loop(), job.future
        assert future is not None  # a job runs once
        watch = _Watch(job, receive, seconds)
        job.expires = time.perf_counter() + seconds
        watch.timer = loop.call_later(min(WATCH_AFTER, seconds), watch.start)
        self._submit(job)
        try:
            return await future
        finally:
            watch.stop()
            job.release()
            del future

    def _submit(self, job: PoolJob) -> None:
        """Queue a job. Short searches stay on one worker: two would contend for the interpreter lock."""
        if not self._queue.put(job, wake=not self._is_short) and not self._checking:
            self._check_soon()

    def _check_soon(self) -> None:
        assert self._loop is not None
        self._checking = True
        self._loop.call_later(STALL, self._check)

    def _check(self) -> None:
        """Wake another worker if jobs wait behind a long search."""
        self._checking = False
        if len(self._queue):
            if time.perf_counter() - self._last_taken > STALL:
                self._queue.wake()
            self._check_soon()

    # -- worker threads --------------------------------------------------------------------------------------

    def _work(self) -> None:
        while (jobs := self._take()) is not None:
            start = self._last_taken = time.perf_counter()
            cpu_start = time.thread_time()
            self._run_all(jobs)
            count = max(len(jobs), 1)
            cpu, wall = time.thread_time() - cpu_start, time.perf_counter() - start
            self._is_short = cpu < SHORT_CPU * count and wall < SHORT_WALL * count
            del jobs  # an idle thread must not keep the files of an old generation open

    def _run_all(self, jobs: list[PoolJob]) -> None:
        finished: list[PoolJob] = []
        delivered = time.perf_counter()
        jobs = sorted(jobs, key=_encoder_id)
        for _, group in groupby(jobs, key=_encoder_id):
            for job, queries in encode_queries(list(group)):
                _run(job, queries)
                finished.append(job)
                if time.perf_counter() - delivered > DELIVERY:
                    self._deliver(finished)
                    finished, delivered = [], time.perf_counter()
        self._deliver(finished)

    def _take(self) -> list[PoolJob] | None:
        """Take this worker's share of the queue, without cancelled jobs; None at the end of work."""
        first = self._queue.get()
        if first == "end":
            return None
        share = len(self._queue) // self.workers if first.texts else 0  # no text: batching does not help
        jobs, texts = [first], len(first.texts)
        while len(jobs) <= share and texts < MAX_BATCH_TEXTS:
            job = self._queue.get_nowait()
            if job is None:
                break
            if job == "end":
                self._queue.put("end")  # for this thread, after this batch
                break
            jobs.append(job)
            texts += len(job.texts)
        now = time.perf_counter()
        for job in jobs:
            job.started = now
        self._observe([job.queue_seconds for job in jobs])
        return [job for job in jobs if not job.cancel.is_set()]

    def _deliver(self, finished: list[PoolJob]) -> None:
        if finished and self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(_settle_all, finished)


def _encoder_id(job: PoolJob) -> int:
    """Equal for jobs whose texts can be encoded together: those of one model, also in several indexes."""
    encoder = None
    if job.texts and job.searcher.settings.model is not None:
        with contextlib.suppress(Exception):  # encoding reports it, to this job alone
            encoder = job.searcher.text_encoder
    return id(encoder or job.searcher)


def encode_queries(jobs: list[PoolJob]) -> list[tuple[PoolJob, list[Any]]]:
    """Pair each job with its encoded queries: all texts in one batch, or job by job if the batch fails."""
    start = time.perf_counter()
    try:
        queries = _encode_texts(jobs)
    except Exception as error:
        if len(jobs) == 1:
            jobs[0].outcome = (None, error)
            return [(jobs[0], [])]
        return [pair for job in jobs for pair in encode_queries([job])]
    pairs, seconds = [], time.perf_counter() - start
    for job in jobs:
        count = len(job.texts)
        pairs.append((job, queries[:count]))
        queries, job.encode_seconds = queries[count:], seconds
    return pairs


def _encode_texts(jobs: list[PoolJob]) -> list[Any]:
    """Encode some texts at a time, so that cancelled jobs end soon."""
    pairs = [(job.searcher, text) for job in jobs for text in job.texts]
    queries: list[Any] = []
    for start in range(0, len(pairs), MAX_BATCH_TEXTS):
        if all(job.cancel.is_set() for job in jobs):
            raise Cancelled("the search was cancelled")
        queries += _prepare(pairs[start : start + MAX_BATCH_TEXTS])
    return queries


def _prepare(pairs: list[tuple[AnySearcher, str]]) -> list[Any]:
    """Prepare texts, each for its searcher; the model encodes them in one batch."""
    first, texts = pairs[0][0], [text for _, text in pairs]
    if all(searcher is first for searcher, _ in pairs):
        return list(first.prepare(texts))
    encoded = first.text_encoder.encode_queries(texts)
    return [
        searcher.prepare_routed(text, routed) for (searcher, text), routed in zip(pairs, encoded, strict=True)
    ]


def _run(job: PoolJob, queries: list[Any]) -> None:
    if job.outcome[1] is not None:
        return
    try:
        with deadline(job.expires):
            job.outcome = (job.run(job, queries), None)
    except BaseException as error:
        job.outcome = (None, error)


def _settle_all(jobs: list[PoolJob]) -> None:
    for job in jobs:
        job.settle()


class _Watch:
    """Ends a job at its deadline or when its client disconnects; most jobs finish before it starts."""

    __slots__ = ("_job", "_receive", "_seconds", "_task", "timer")

    def __init__(self, job: PoolJob, receive: Receive, seconds: float) -> None:
        self._job: PoolJob | None = job
        self._receive, self._seconds = receive, seconds
        self._task: asyncio.Task[None] | None = None
        self.timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        loop = asyncio.get_running_loop()
        self._task = loop.create_task(self._wait())
        self.timer = loop.call_later(max(self._seconds - WATCH_AFTER, 0.0), self._expire)

    async def _wait(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        if self._job is not None:
            self._job.fail(ServerError(499, "left", "the client closed the connection"))

    def _expire(self) -> None:
        message = f"the request took longer than {self._seconds:g} seconds: request less, or retry later"
        if self._job is not None:
            self._job.fail(ServerError(504, "deadline", message))

    def stop(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
        if self._task is not None:
            self._task.cancel()
        self._task = self._job = self.timer = None  # a cancelled task and its frame reference each other
