"""A replica of a shard: opens the generation that a request names and searches it."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from citadel._native import Cancel
from citadel.errors import CitadelError, IndexNotFoundError
from citadel.index.failures import resource_errors
from citadel.index.root_manifest import read_root
from citadel.index.sharded import open_shard
from citadel.index.snapshot import Snapshot
from citadel.index.storage import Storage
from citadel.routing import get_router
from citadel.search.centroid import CentroidEngine
from citadel.search.cpu import CpuEngine
from citadel.search.plan import Options, Plan
from citadel.types import Floats

MAX_GENERATIONS = 2  # open at a time: the one that is served, and the next or the last one
MAX_FILTERS = 8  # per generation


class Target(NamedTuple):
    """The generation to search; `norm` is BM25's of the whole collection."""

    root_id: str
    generation: int
    norm: tuple[float, float]


class TermQuery(NamedTuple):
    """A bm25 query with weights of the whole collection."""

    terms: list[bytes]
    weights: Floats


@dataclass(frozen=True)
class FilterBits:
    """The allowed passages of a shard: bits per segment. Without them, only the name of a filter that a
    replica may know."""

    name: str
    segments: tuple[bytes, ...] | None = None


class ShardRequest(NamedTuple):
    """One search of one shard."""

    target: Target
    query: Plan | TermQuery
    options: Options
    allowed: FilterBits | None
    seconds: float


class ShardReply(NamedTuple):
    """The best passages of a shard, numbered from 0, or why there are none."""

    numbers: NDArray[np.int64]
    scores: Floats
    dot_products: int = 0
    seconds: float = 0.0  # of the search itself
    inside: float = 0.0  # seconds in the replica, with the wait for a worker thread
    needs_filter: bool = False
    problem: str = ""


def _without_hits(**fields: Any) -> ShardReply:
    return ShardReply(np.zeros(0, np.int64), np.zeros(0, np.float32), **fields)


class _OpenShard:
    """A shard of one generation, with its recent filters."""

    def __init__(self, snapshot: Snapshot, norm: tuple[float, float], threads: int) -> None:
        self.snapshot, self.engine = snapshot, _engine(snapshot, norm, threads)
        self._filters: dict[str, Any] = {}
        self._lock = threading.Lock()

    def allowed(self, bits: FilterBits | None) -> Any:
        """The engine's form of a filter; KeyError if its bits are needed."""
        if bits is None:
            return None
        with self._lock:
            known = self._filters.pop(bits.name, None)
            if known is None:
                if bits.segments is None:
                    raise KeyError(bits.name)
                known = self.engine.prepare_filter(self._masks(bits.segments))
            while len(self._filters) >= MAX_FILTERS:
                del self._filters[next(iter(self._filters))]
            self._filters[bits.name] = known
        return known

    def _masks(self, packed: Sequence[bytes]) -> list[NDArray[np.bool_]]:
        return [
            np.unpackbits(np.frombuffer(part, np.uint8), count=segment.passages, bitorder="little").view(
                np.bool_
            )
            for part, segment in zip(packed, self.snapshot.segments, strict=True)
        ]


def _engine(snapshot: Snapshot, norm: tuple[float, float], threads: int) -> Any:
    router = snapshot.settings.router
    if router == "centroid":
        return CentroidEngine(snapshot, threads)
    return CpuEngine(snapshot, get_router(router).floor, norm, threads)


class ShardServer:
    """Searches one shard of a sharded index; a deployment of Ray Serve has several of them."""

    def __init__(self, storage: Storage, shard: int, threads: int = 1, workers: int = 1) -> None:
        self._storage, self._shard, self._threads = storage, shard, threads
        self._opened: dict[Target, _OpenShard] = {}
        self._lock = threading.Lock()
        self._workers = ThreadPoolExecutor(workers, "citadel-shard")

    async def search(self, request: ShardRequest) -> ShardReply:
        """Search in a worker thread; the search ends at the deadline and when the request is cancelled."""
        loop, cancel = asyncio.get_running_loop(), Cancel()
        timer, start = loop.call_later(request.seconds, cancel.set), time.perf_counter()
        try:
            reply = await loop.run_in_executor(self._workers, self.answer, request, cancel)
            return reply._replace(inside=time.perf_counter() - start)
        except asyncio.CancelledError:
            cancel.set()
            raise
        finally:
            timer.cancel()

    def answer(self, request: ShardRequest, cancel: Cancel | None = None) -> ShardReply:
        """Search the shard now."""
        if cancel is not None and cancel.is_set():
            return _without_hits(problem="the deadline passed before the search began")
        start = time.perf_counter()
        try:
            with resource_errors(self._storage.location):
                reply = self._answer(request, cancel)
            return reply._replace(seconds=time.perf_counter() - start)
        except KeyError:
            return _without_hits(needs_filter=True)
        except (CitadelError, OSError) as error:
            return _without_hits(problem=f"{type(error).__name__}: {error}")

    def _answer(self, request: ShardRequest, cancel: Cancel | None) -> ShardReply:
        shard = self._open(request.target)
        engine, live = shard.engine, shard.snapshot.live_passages
        allowed = shard.allowed(request.allowed)
        query = request.query
        prepared = engine.prepare_weighted(*query) if isinstance(query, TermQuery) else engine.prepare(query)
        options = request.options._replace(k=min(request.options.k, live), ef=min(request.options.ef, live))
        scored = engine.search(prepared, options, cancel, allowed)
        return ShardReply(scored.numbers, scored.scores, scored.dot_products)

    def _open(self, target: Target) -> _OpenShard:
        """The shard in the generation of a request, opened on the first request."""
        with self._lock:
            shard = self._opened.pop(target, None)
            if shard is None:
                shard = _OpenShard(self._snapshot(target), target.norm, self._threads)
                while len(self._opened) >= MAX_GENERATIONS:
                    del self._opened[next(iter(self._opened))]
            self._opened[target] = shard
        return shard

    def _snapshot(self, target: Target) -> Snapshot:
        self._storage.reopen()
        try:
            root = read_root(self._storage, target.generation)
        except FileNotFoundError:
            root = None
        if root is None or root.root_id != target.root_id or self._shard >= len(root.shards):
            raise IndexNotFoundError(
                f"{self._storage.location}: generation {target.generation} of shard {self._shard} is missing"
            )
        return open_shard(self._storage, root.shards[self._shard], root.settings).snapshot
