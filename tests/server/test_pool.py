"""The worker pool without HTTP: batching, refusal, deadlines and isolation of failures."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
import time
import weakref
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import citadel
from citadel.search.searcher import Searcher
from citadel.server.pool import MAX_BATCH_TEXTS, WATCH_AFTER, Pool, PoolJob, Run
from tests.support.serving import text_index


class Prepared(Searcher):
    """Records which texts were encoded together; the text "bad" fails."""

    calls: list[list[str]]

    def prepare(self, queries: Any) -> list[Any]:
        self.calls.append(list(queries))
        if "bad" in queries:
            raise citadel.InputError("this text is bad")
        return [text.upper() for text in queries]


@pytest.fixture
def searcher(tmp_path: Path) -> Prepared:
    searcher = Prepared(text_index(tmp_path / "i").searcher().snapshot)
    searcher.calls = []
    return searcher


async def never() -> dict[str, Any]:
    await asyncio.sleep(60)
    raise AssertionError


def in_pool(work: Callable[[Pool], Awaitable[Any]], workers: int = 1, max_waiting: int = 64) -> Any:
    async def run() -> Any:
        pool = Pool(workers, max_waiting)
        pool.start()
        try:
            return await work(pool)
        finally:
            pool.stop()

    with ThreadPoolExecutor(1) as thread:  # Playwright may have left an event loop running in this thread
        return thread.submit(lambda: asyncio.run(run())).result()


def echo(job: PoolJob, queries: list[Any]) -> list[Any]:
    return queries


class Held:
    """A job that blocks its worker until released."""

    def __init__(self) -> None:
        self.started, self.go = threading.Event(), threading.Event()

    def run(self, job: PoolJob, queries: list[Any]) -> str:
        self.started.set()
        assert self.go.wait(30)
        return "held"


async def started(held: Held) -> None:
    while not held.started.is_set():
        await asyncio.sleep(0.001)


def run_behind(searcher: Prepared, texts: list[list[str]]) -> list[Any]:
    """Results of jobs that wait behind a held one."""

    async def work(pool: Pool) -> list[Any]:
        held = Held()
        first = asyncio.create_task(pool.answer(PoolJob(searcher, held.run), 30, never))
        await started(held)
        rest = [asyncio.create_task(pool.answer(PoolJob(searcher, echo, part), 30, never)) for part in texts]
        await asyncio.sleep(0.01)
        held.go.set()
        return [await first, *await asyncio.gather(*rest, return_exceptions=True)]

    results: list[Any] = in_pool(work)
    assert results[0] == "held"
    return results[1:]


def test_waiting_queries_are_encoded_together(searcher: Prepared) -> None:
    assert run_behind(searcher, [["a"], ["b", "c"], [], ["d"]]) == [["A"], ["B", "C"], [], ["D"]]
    assert searcher.calls == [["a", "b", "c", "d"]]


def test_single_query_is_encoded_at_once(searcher: Prepared) -> None:
    assert in_pool(lambda pool: pool.answer(PoolJob(searcher, echo, ["a"]), 30, never)) == ["A"]
    assert searcher.calls == [["a"]]


def test_bad_text_does_not_fail_its_batch(searcher: Prepared) -> None:
    results = run_behind(searcher, [["a"], ["bad"], ["c"]])
    assert results[0] == ["A"] and results[2] == ["C"]
    assert isinstance(results[1], citadel.InputError)


def test_batch_size_is_limited(searcher: Prepared) -> None:
    texts = [str(number) for number in range(2 * MAX_BATCH_TEXTS + 3)]
    assert run_behind(searcher, [[text] for text in texts]) == [[text] for text in texts]
    assert max(map(len, searcher.calls)) <= MAX_BATCH_TEXTS
    searcher.calls.clear()
    assert run_behind(searcher, [texts]) == [texts]
    assert max(map(len, searcher.calls)) <= MAX_BATCH_TEXTS


def test_worker_survives_a_failing_job(searcher: Prepared) -> None:
    def fail(job: PoolJob, queries: list[Any]) -> None:
        raise ZeroDivisionError

    async def work(pool: Pool) -> Any:
        with pytest.raises(ZeroDivisionError):
            await pool.answer(PoolJob(searcher, fail), 30, never)
        return await pool.answer(PoolJob(searcher, echo, ["a"]), 30, never)

    assert in_pool(work) == ["A"]


def test_full_queue_refuses(searcher: Prepared) -> None:
    async def work(pool: Pool) -> int:
        held = Held()
        first = asyncio.create_task(pool.answer(PoolJob(searcher, held.run), 30, never))
        await started(held)
        waiting = [asyncio.create_task(pool.answer(PoolJob(searcher, echo), 30, never)) for _ in range(2)]
        await asyncio.sleep(0)
        with pytest.raises(citadel.ServerError, match="too many requests are waiting") as error:
            await pool.admit()
        held.go.set()
        await asyncio.gather(first, *waiting)
        return error.value.status

    assert in_pool(work, max_waiting=2) == 503


def test_job_that_expires_in_the_queue_never_starts(searcher: Prepared) -> None:
    ran: list[str] = []

    async def work(pool: Pool) -> None:
        held = Held()
        first = asyncio.create_task(pool.answer(PoolJob(searcher, held.run), 30, never))
        await started(held)
        with pytest.raises(citadel.ServerError, match=r"longer than 0\.01 seconds"):
            await pool.answer(PoolJob(searcher, lambda job, queries: ran.append("ran")), 0.01, never)
        held.go.set()
        await first
        await pool.answer(PoolJob(searcher, echo), 30, never)

    in_pool(work)
    assert ran == []


def test_short_jobs_do_not_wait_behind_a_long_one(searcher: Prepared) -> None:
    """After short jobs, the pool uses one worker until jobs queue up."""

    async def work(pool: Pool) -> list[Any]:
        for _ in range(5):
            await pool.answer(PoolJob(searcher, echo), 30, never)
        held = Held()
        first = asyncio.create_task(pool.answer(PoolJob(searcher, held.run), 30, never))
        await started(held)
        rest = [pool.answer(PoolJob(searcher, echo, [text]), 30, never) for text in "abc"]
        results: list[Any] = await asyncio.gather(*rest)  # while the first one is held
        held.go.set()
        return [*results, await first]

    assert in_pool(work, workers=2) == [["A"], ["B"], ["C"], "held"]


def run_slowly(job: PoolJob, queries: list[Any]) -> None:
    """Longer than WATCH_AFTER, so that the pool watches for a disconnect."""
    time.sleep(3 * WATCH_AFTER)


def run_and_fail(job: PoolJob, queries: list[Any]) -> None:
    raise citadel.UsageError("refused")


@pytest.mark.parametrize("run", [echo, run_slowly, run_and_fail])
def test_pool_releases_the_searcher_of_a_finished_job(tmp_path: Path, run: Run) -> None:
    """Without the garbage collector: an old generation may hold gigabytes of deleted files."""

    async def work(pool: Pool) -> bool:
        searcher = text_index(tmp_path / "i").searcher()
        gone = weakref.ref(searcher)
        with contextlib.suppress(citadel.UsageError):
            await pool.answer(PoolJob(searcher, run, ["physics"]), 30, never)
        del searcher
        for _ in range(500):
            if gone() is None:
                return True
            await asyncio.sleep(0.01)
        return False

    gc.disable()
    try:
        assert in_pool(work)
    finally:
        gc.enable()
