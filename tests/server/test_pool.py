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
    found = Prepared(text_index(tmp_path / "i").searcher().snapshot)
    found.calls = []
    return found


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

    with ThreadPoolExecutor(1) as thread:  # a browser of other tests may have left a loop running in this one
        return thread.submit(lambda: asyncio.run(run())).result()


def echo(job: PoolJob, queries: list[Any]) -> list[Any]:
    return queries


class Held:
    """A job that blocks its worker until released."""

    def __init__(self) -> None:
        self.begun, self.go = threading.Event(), threading.Event()

    def run(self, job: PoolJob, queries: list[Any]) -> str:
        self.begun.set()
        assert self.go.wait(30)
        return "held"


async def begun(held: Held) -> None:
    while not held.begun.is_set():
        await asyncio.sleep(0.001)


def behind(searcher: Prepared, texts: list[list[str]]) -> list[Any]:
    """Results of jobs that wait behind a held one."""

    async def work(pool: Pool) -> list[Any]:
        held = Held()
        first = asyncio.create_task(pool.answer(PoolJob(searcher, held.run), 30, never))
        await begun(held)
        rest = [asyncio.create_task(pool.answer(PoolJob(searcher, echo, part), 30, never)) for part in texts]
        await asyncio.sleep(0.01)
        held.go.set()
        return [await first, *await asyncio.gather(*rest, return_exceptions=True)]

    found: list[Any] = in_pool(work)
    assert found[0] == "held"
    return found[1:]


def test_those_who_wait_are_encoded_together(searcher: Prepared) -> None:
    assert behind(searcher, [["a"], ["b", "c"], [], ["d"]]) == [["A"], ["B", "C"], [], ["D"]]
    assert searcher.calls == [["a", "b", "c", "d"]]


def test_a_lone_query_waits_for_nobody(searcher: Prepared) -> None:
    assert in_pool(lambda pool: pool.answer(PoolJob(searcher, echo, ["a"]), 30, never)) == ["A"]
    assert searcher.calls == [["a"]]


def test_one_bad_text_harms_no_neighbour(searcher: Prepared) -> None:
    found = behind(searcher, [["a"], ["bad"], ["c"]])
    assert found[0] == ["A"] and found[2] == ["C"]
    assert isinstance(found[1], citadel.InputError)


def test_no_more_than_some_texts_together(searcher: Prepared) -> None:
    texts = [str(number) for number in range(2 * MAX_BATCH_TEXTS + 3)]
    assert behind(searcher, [[text] for text in texts]) == [[text] for text in texts]
    assert max(map(len, searcher.calls)) <= MAX_BATCH_TEXTS
    searcher.calls.clear()
    assert behind(searcher, [texts]) == [texts]
    assert max(map(len, searcher.calls)) <= MAX_BATCH_TEXTS


def test_a_failing_job_is_an_error_and_the_worker_lives(searcher: Prepared) -> None:
    def fail(job: PoolJob, queries: list[Any]) -> None:
        raise ZeroDivisionError

    async def work(pool: Pool) -> Any:
        with pytest.raises(ZeroDivisionError):
            await pool.answer(PoolJob(searcher, fail), 30, never)
        return await pool.answer(PoolJob(searcher, echo, ["a"]), 30, never)

    assert in_pool(work) == ["A"]


def test_a_full_queue_refuses(searcher: Prepared) -> None:
    async def work(pool: Pool) -> int:
        held = Held()
        first = asyncio.create_task(pool.answer(PoolJob(searcher, held.run), 30, never))
        await begun(held)
        waiting = [asyncio.create_task(pool.answer(PoolJob(searcher, echo), 30, never)) for _ in range(2)]
        await asyncio.sleep(0)
        with pytest.raises(citadel.ServerError, match="too many requests are waiting") as error:
            await pool.admit()
        held.go.set()
        await asyncio.gather(first, *waiting)
        return error.value.status

    assert in_pool(work, max_waiting=2) == 503


def test_what_expired_while_it_waited_is_never_begun(searcher: Prepared) -> None:
    ran: list[str] = []

    async def work(pool: Pool) -> None:
        held = Held()
        first = asyncio.create_task(pool.answer(PoolJob(searcher, held.run), 30, never))
        await begun(held)
        with pytest.raises(citadel.ServerError, match=r"longer than 0\.01 seconds"):
            await pool.answer(PoolJob(searcher, lambda job, queries: ran.append("ran")), 0.01, never)
        held.go.set()
        await first
        await pool.answer(PoolJob(searcher, echo), 30, never)

    in_pool(work)
    assert ran == []


def test_nobody_waits_behind_something_long_while_a_worker_sleeps(searcher: Prepared) -> None:
    """Short jobs go to one worker, and this pool has run only short ones before."""

    async def work(pool: Pool) -> list[Any]:
        for _ in range(5):
            await pool.answer(PoolJob(searcher, echo), 30, never)
        held = Held()
        first = asyncio.create_task(pool.answer(PoolJob(searcher, held.run), 30, never))
        await begun(held)
        rest = [pool.answer(PoolJob(searcher, echo, [text]), 30, never) for text in "abc"]
        found: list[Any] = await asyncio.gather(*rest)  # while the first one is held
        held.go.set()
        return [*found, await first]

    assert in_pool(work, workers=2) == [["A"], ["B"], ["C"], "held"]


def slowly(job: PoolJob, queries: list[Any]) -> None:
    """Longer than WATCH_AFTER, so that the pool watches for a disconnect."""
    time.sleep(3 * WATCH_AFTER)


def badly(job: PoolJob, queries: list[Any]) -> None:
    raise citadel.UsageError("an error knows the frames it came through")


@pytest.mark.parametrize("run", [echo, slowly, badly])
def test_nothing_holds_on_to_an_old_generation(tmp_path: Path, run: Run) -> None:
    """Its deleted files may take gigabytes, and the garbage collector may run late."""

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
