"""Ask all shards at once: a deadline for every call, hedged requests after the p95, missing shards.

Nothing here knows Ray: `send` is a coroutine function that asks some replica of a shard.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, TypeVar

T = TypeVar("T")
Send = Callable[[int, Any], Coroutine[Any, Any, T]]

WINDOW = 256  # latencies kept per shard
RENEW = 16  # calls after which the p95 is computed again
FIRST_HEDGE = 0.05  # seconds, until a shard's p95 is known
MIN_HEDGE = 0.002  # seconds; below, a hedge costs more than it can save
CALL_HEDGES = 2  # per call at most: the first may go to the replica that hangs
MAX_HEDGED = 0.1  # share of calls that are hedged at most, so that an overload is not made worse
HEDGES_SAVED = 10.0  # that a quiet time saves for a bad one
MAX_TRIES = 8  # per call, after replicas that fail
RETRY_SECONDS = 0.02  # before a retry, times the number of failures
MIN_PATIENCE = 0.05  # seconds that a shard gets that did not answer several times in a row
_log = logging.getLogger("citadel.cluster")


class ShardLatency:
    """Recent latencies of one shard, and how long to wait for it."""

    def __init__(self) -> None:
        self._seconds: deque[float] = deque(maxlen=WINDOW)
        self._since, self.p95 = 0, 0.0
        self._missed = 0  # calls in a row without an answer

    def answered(self, seconds: float) -> None:
        """Note an answer."""
        self._seconds.append(seconds)
        self._since, self._missed = self._since + 1, 0
        if self._since >= RENEW or not self.p95:
            ordered = sorted(self._seconds)
            self._since, self.p95 = 0, ordered[min(int(len(ordered) * 0.95), len(ordered) - 1)]

    def missed(self) -> None:
        """Note a call without an answer."""
        self._missed += 1

    def patience(self, seconds: float) -> float:
        """How long to wait of `seconds`: half as long after each call in a row without an answer.

        >>> latency = ShardLatency()
        >>> latency.missed(); latency.patience(2.0)
        1.0
        """
        return max(seconds * 0.5 ** min(self._missed, 30), min(seconds, MIN_PATIENCE))

    @property
    def hedge_after(self) -> float:
        """Seconds after which another replica is asked as well."""
        return max(self.p95, MIN_HEDGE) if len(self._seconds) >= RENEW else FIRST_HEDGE


class Scatter:
    """Calls to the shards of one index."""

    def __init__(self, send: Send[Any], shards: int) -> None:
        self._send = send
        self.latencies = [ShardLatency() for _ in range(shards)]
        self._hedges = HEDGES_SAVED  # that may be sent
        self.hedged = self.failed = self.missed = 0

    def resize(self, shards: int) -> None:
        """Follow a new number of shards; known latencies are kept."""
        del self.latencies[shards:]
        self.latencies += [ShardLatency() for _ in range(shards - len(self.latencies))]

    async def ask_all(self, requests: Sequence[Any], seconds: float) -> list[Any]:
        """The reply of each shard to its request; None where none came within `seconds`."""
        calls = [self._ask(shard, request, seconds) for shard, request in enumerate(requests)]
        return list(await asyncio.gather(*calls))

    async def _ask(self, shard: int, request: Any, seconds: float) -> Any:
        latency, start = self.latencies[shard], time.perf_counter()
        call = _Call(self, shard, request, start + latency.patience(seconds))
        try:
            reply = await call.run(start, latency.hedge_after)
        finally:
            call.stop()
        if reply is None:
            latency.missed()
            self.missed += 1
        self._hedges = min(self._hedges + MAX_HEDGED, HEDGES_SAVED)
        return reply

    def take_hedge(self) -> bool:
        """Whether one more call may be hedged."""
        if self._hedges < 1:
            return False
        self._hedges -= 1
        self.hedged += 1
        return True


class _Call:
    """One call to one shard, which may become several requests."""

    def __init__(self, scatter: Scatter, shard: int, request: Any, end: float) -> None:
        self._scatter, self._shard, self._request, self._end = scatter, shard, request, end
        self._tasks: dict[asyncio.Task[Any], float] = {}  # with the time of its start
        self._failures = 0

    async def run(self, start: float, hedge_after: float) -> Any:
        """The first good reply, or None at the deadline; a second hedge waits twice as long as the first."""
        self._start(0.0)
        hedge_at, hedges = start + hedge_after, 0
        while self._tasks:
            until = min(hedge_at, self._end)
            wait = max(until - time.perf_counter(), 0.0)
            done, _ = await asyncio.wait(self._tasks, timeout=wait, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                started = self._tasks.pop(task)
                if (reply := self._reply(task)) is not None:
                    self._scatter.latencies[self._shard].answered(time.perf_counter() - started)
                    return reply
            now = time.perf_counter()
            if now >= self._end:
                return None
            if now >= hedge_at:
                hedges += 1
                hedge_at = self._end if hedges == CALL_HEDGES else now + 2 * hedge_after
                if self._scatter.take_hedge():
                    self._start(0.0)
        return None

    def _start(self, delay: float) -> None:
        task = asyncio.ensure_future(self._later(delay))
        self._tasks[task] = time.perf_counter() + delay

    async def _later(self, delay: float) -> Any:
        if delay:
            await asyncio.sleep(delay)
        return await self._scatter._send(self._shard, self._request)

    def _reply(self, task: asyncio.Task[Any]) -> Any:
        """The reply of a finished request; after a failure, another request is sent."""
        error = task.exception() if not task.cancelled() else asyncio.CancelledError("cancelled")
        if error is None:
            return task.result()
        self._failures += 1
        self._scatter.failed += 1
        _log.info("shard failed", extra={"shard": self._shard, "reason": " ".join(str(error).split())[:200]})
        if self._failures < MAX_TRIES:
            self._start(RETRY_SECONDS * self._failures)
        return None

    def stop(self) -> None:
        """Cancel the requests that are still running."""
        for task in self._tasks:
            task.cancel()
            task.add_done_callback(_retrieve)
        self._tasks = {}


def _retrieve(task: asyncio.Task[Any]) -> None:
    """Take a late result, so that asyncio does not log it."""
    with contextlib.suppress(asyncio.CancelledError):
        task.exception()


async def within(awaitable: Awaitable[T], is_cancelled: Callable[[], bool], interval: float) -> T | None:
    """The result of an awaitable, or None once `is_cancelled` returns true; it is checked at an interval."""
    task = asyncio.ensure_future(awaitable)
    try:
        while not task.done():
            await asyncio.wait([task], timeout=interval)
            if is_cancelled() and not task.done():
                return None
        return task.result()
    finally:
        if not task.done():
            task.cancel()
            task.add_done_callback(_retrieve)
