"""Calls to all shards without Ray: deadlines, hedges, retries, missing shards."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from citadel.cluster import scatter as module
from citadel.cluster.scatter import CALL_HEDGES, HEDGES_SAVED, MAX_TRIES, Scatter, ShardLatency, within

Replica = Callable[[int], Coroutine[Any, Any, Any]]


def ask(send: Any, shards: int = 3, seconds: float = 1.0) -> tuple[list[Any], float, Scatter]:
    """The replies, the seconds it took, and the scatter."""

    async def run() -> tuple[list[Any], float, Scatter]:
        scatter, start = Scatter(send, shards), time.perf_counter()
        replies = await scatter.ask_all([f"q{n}" for n in range(shards)], seconds)
        return replies, time.perf_counter() - start, scatter

    return asyncio.run(run())


async def prompt(shard: int, request: str) -> str:
    return f"{shard}{request}"


def test_every_shard_gets_its_request() -> None:
    replies, _, scatter = ask(prompt)
    assert replies == ["0q0", "1q1", "2q2"]
    assert (scatter.hedged, scatter.failed, scatter.missed) == (0, 0, 0)


def test_a_silent_shard_is_missing_at_the_deadline() -> None:
    async def send(shard: int, request: str) -> str:
        if shard == 1:
            await asyncio.Event().wait()
        return request

    replies, seconds, scatter = ask(send, seconds=0.2)
    assert replies == ["q0", None, "q2"]
    assert 0.19 < seconds < 0.6
    assert (scatter.hedged, scatter.missed) == (CALL_HEDGES, 1)


def test_a_hedge_answers_for_a_hanging_replica() -> None:
    asked: list[int] = []

    async def send(shard: int, request: str) -> str:
        asked.append(shard)
        if asked.count(shard) == 1 and shard == 2:
            await asyncio.Event().wait()
        return request

    replies, seconds, scatter = ask(send, seconds=5.0)
    assert replies == ["q0", "q1", "q2"]
    assert seconds < 1.0
    assert (asked.count(2), scatter.hedged) == (2, 1)


def test_a_second_hedge_when_the_first_one_hangs_too() -> None:
    asked: list[int] = []

    async def send(shard: int, request: str) -> str:
        asked.append(shard)
        if asked.count(shard) < 3 and shard == 2:
            await asyncio.Event().wait()
        return request

    replies, seconds, scatter = ask(send, seconds=5.0)
    assert replies == ["q0", "q1", "q2"]
    assert seconds < 1.0
    assert (asked.count(2), scatter.hedged) == (3, 2)


def test_a_failed_replica_is_retried() -> None:
    asked: list[int] = []

    async def send(shard: int, request: str) -> str:
        asked.append(shard)
        if asked.count(shard) < 3:
            raise ConnectionError("the replica died")
        return request

    replies, _, scatter = ask(send)
    assert replies == ["q0", "q1", "q2"]
    assert scatter.failed == 6


def test_tries_end() -> None:
    async def send(shard: int, request: str) -> str:
        raise ConnectionError("the replica died")

    replies, seconds, scatter = ask(send, shards=1, seconds=30.0)
    assert replies == [None]
    assert MAX_TRIES <= scatter.failed <= MAX_TRIES + CALL_HEDGES  # hedges fail, too
    assert seconds < 5


def test_losers_are_cancelled() -> None:
    cancelled: list[str] = []

    async def send(shard: int, request: str) -> str:
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            cancelled.append(request)
            raise
        return request

    async def run() -> None:
        await Scatter(send, 2).ask_all(["a", "b"], 1.0)
        await asyncio.sleep(0)

    asyncio.run(run())
    assert sorted(cancelled) == ["a", "a", "a", "b", "b", "b"]  # request and hedges of each


def test_hedges_are_limited() -> None:
    async def run() -> int:
        async def send(shard: int, request: str) -> str:
            await asyncio.sleep(0.002)
            return request

        scatter = Scatter(send, 1)
        for _ in range(100):
            await scatter.ask_all(["q"], 1.0)
        return scatter.hedged

    before, module.FIRST_HEDGE = module.FIRST_HEDGE, 0.0
    module.MIN_HEDGE, least = 0.0, module.MIN_HEDGE
    try:
        hedged = asyncio.run(run())
    finally:
        module.FIRST_HEDGE, module.MIN_HEDGE = before, least
    assert hedged <= HEDGES_SAVED + 0.1 * 100


def test_patience_shrinks_and_returns() -> None:
    latency = ShardLatency()
    for _ in range(10):
        latency.missed()
    assert latency.patience(2.0) == module.MIN_PATIENCE
    assert latency.patience(0.01) == 0.01
    latency.answered(0.1)
    assert latency.patience(2.0) == 2.0


def test_hedge_after_the_p95() -> None:
    latency = ShardLatency()
    assert latency.hedge_after == module.FIRST_HEDGE
    for number in range(100):
        latency.answered(0.010 if number % 10 else 0.100)
    assert latency.hedge_after == pytest.approx(0.1)


def test_cancel_ends_the_wait() -> None:
    async def forever() -> str:
        await asyncio.Event().wait()
        return "never"

    start = time.perf_counter()
    assert asyncio.run(within(forever(), lambda: time.perf_counter() - start > 0.1, 0.01)) is None
    assert time.perf_counter() - start < 1.0
    assert asyncio.run(within(prompt(1, "q"), lambda: False, 0.01)) == "1q"
