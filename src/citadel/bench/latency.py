"""Latency of single queries by stage, with the time to read their bytes from memory as a floor.

One query at a time on one thread: a warm-up pass, then trials of two passes each. The first pass runs the
search without timers and gives the latencies; the second, with the engine's stage timers on, gives the
stages.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from citadel.errors import UsageError
from citadel.index.snapshot import Snapshot
from citadel.search.centroid import CentroidEngine
from citadel.search.cpu import STAGES
from citadel.search.plan import Options, Plan, plan_vectors
from citadel.settings import Settings
from citadel.types import RoutedTokens, Scored

TRIALS = 3
MIN_QUERIES = 10  # even if they take longer than the time limit
PERCENTILES = (50, 95, 99)
ALL_STAGES = ("encode", *STAGES, "ids")
WHOLE = ("search", "whole")  # the engine alone without timers; everything from text to ids


class Traffic(NamedTuple):
    """Dot products and bytes read by one query."""

    token_products: int
    semantic_products: int
    list_bytes: int
    semantic_bytes: int


class GpuTimed(Protocol):
    """A GPU search to time; it returns when the results are on the host."""

    @property
    def bandwidth(self) -> float: ...
    @property
    def name(self) -> str: ...
    def prepare(self, plan: Plan) -> Any: ...
    def search(self, query: Any, options: Options) -> Scored: ...


@dataclass(frozen=True)
class Bench:
    """An index to time: its engine, the queries, and the steps before and after the engine."""

    snapshot: Snapshot
    engine: Any  # a CpuEngine or CentroidEngine, each with queries of its own
    options: Options
    queries: Sequence[Any]  # texts with an encoder, else routed tokens
    encode: Callable[[str], RoutedTokens] | None = None
    ids: Callable[[NDArray[np.int64]], Any] | None = None
    gpu: GpuTimed | None = None  # searches instead of the engine, which then only counts the traffic

    @property
    def settings(self) -> Settings:
        return self.snapshot.settings


@dataclass(frozen=True)
class Latency:
    """Milliseconds by stage as {mean, p50, p95, p99}, from the trial with the lowest mean latency."""

    milliseconds: dict[str, dict[str, float]]
    traffic: dict[str, float]  # means per query
    bandwidth: float  # bytes per second, one core
    queries: int
    trials: int
    means: list[float] = field(default_factory=list)  # whole latency in ms, trial by trial

    def floor(self, stage: str) -> float | None:
        """Milliseconds to read the stage's bytes once; None for a stage that reads no lists or vectors."""
        lists, semantic = self.traffic["list_bytes"], self.traffic["semantic_bytes"]
        bytes_read = {
            "token retrieval": lists,
            "semantic": semantic,
            "search": lists + semantic,
            "whole": lists + semantic,
        }
        return 1e3 * bytes_read[stage] / self.bandwidth if bytes_read.get(stage) else None


def affordable(bench: Bench, seconds: float, trials: int = TRIALS) -> Bench:
    """Limit a bench to the queries that fit into `seconds`, estimated from the first query."""
    start = time.perf_counter()
    for query in bench.queries[:1]:
        _warm_up(bench, query)
    passes = (1 + 2 * trials) * (time.perf_counter() - start)
    return replace(bench, queries=bench.queries[: max(MIN_QUERIES, int(seconds / passes))])


def measure_latency(
    bench: Bench, trials: int = TRIALS, progress: Callable[[int], Any] = lambda done: None
) -> Latency:
    """Time every query of a bench."""
    if not bench.queries:
        raise UsageError("no query to time: give a file with at least one query")
    traffic = [_warm_up(bench, query) for query in bench.queries]
    best: tuple[float, dict[str, list[float]]] | None = None
    means: list[float] = []
    for trial in range(trials):
        spent = _trial(bench)
        means.append(1e3 * float(np.mean(spent["whole"])))
        if best is None or means[-1] < best[0]:
            best = means[-1], spent
        progress(trial + 1)
    assert best is not None
    return Latency(
        {stage: _summary(best[1][stage]) for stage in (*ALL_STAGES, *WHOLE) if any(best[1].get(stage, ()))},
        {name: float(np.mean([getattr(query, name) for query in traffic])) for name in Traffic._fields},
        read_bandwidth() if bench.gpu is None else bench.gpu.bandwidth,
        len(bench.queries),
        trials,
        means,
    )


def _summary(seconds: list[float]) -> dict[str, float]:
    """The mean and percentiles in milliseconds.

    >>> _summary([0.001, 0.003])["mean"], _summary([0.001, 0.003])["p50"]
    (2.0, 2.0)
    """
    values = 1e3 * np.asarray(seconds)
    quantiles = np.percentile(values, PERCENTILES)
    return {"mean": float(values.mean())} | {
        f"p{p}": float(q) for p, q in zip(PERCENTILES, quantiles, strict=True)
    }


def _trial(bench: Bench) -> dict[str, list[float]]:
    spent: dict[str, list[float]] = {stage: [] for stage in (*ALL_STAGES, *WHOLE)}
    engine: Any = bench.gpu or bench.engine
    for query in bench.queries:
        start = time.perf_counter()
        prepared = engine.prepare(_plan(bench, query))
        before = time.perf_counter()
        scored = engine.search(prepared, bench.options)
        after = time.perf_counter()
        if bench.ids is not None:
            bench.ids(scored.numbers)
        end = time.perf_counter()
        spent["search"].append(after - before)
        spent["whole"].append(end - start)
    for query in bench.queries:
        for stage, seconds in _timed(bench, query).items():
            spent[stage].append(seconds)
    return spent


def _timed(bench: Bench, query: Any) -> dict[str, float]:
    """Time each stage of one query; a GPU runs its stages as one recorded graph, timed as a whole."""
    engine: Any = bench.gpu or bench.engine
    start = time.perf_counter()
    routed = bench.encode(query) if bench.encode is not None else query
    encoded = time.perf_counter()
    prepared = engine.prepare(_plan_routed(bench.settings, routed))
    planned = time.perf_counter()
    scored, stages = _searched(bench, prepared)
    searched = time.perf_counter()
    spent = {"encode": encoded - start if bench.encode is not None else 0.0, **stages}
    spent["plan"] += planned - encoded  # the Python part
    if bench.ids is not None:
        bench.ids(scored.numbers)
        spent["ids"] = time.perf_counter() - searched
    return spent


def _searched(bench: Bench, prepared: Any) -> tuple[Scored, dict[str, float]]:
    if bench.gpu is not None:
        return bench.gpu.search(prepared, bench.options), {"plan": 0.0}
    timed: tuple[Scored, dict[str, float]] = bench.engine.search_timed(prepared, bench.options)
    return timed


def _plan(bench: Bench, query: Any) -> Plan:
    return _plan_routed(bench.settings, bench.encode(query) if bench.encode is not None else query)


def _plan_routed(settings: Settings, routed: RoutedTokens) -> Plan:
    return plan_vectors(settings, routed.keys, routed.weights, routed.vectors, routed.semantic)


def _warm_up(bench: Bench, query: Any) -> Traffic:
    """Run a query once and count what it reads."""
    plan = _plan(bench, query)
    if bench.gpu is not None:
        bench.gpu.search(bench.gpu.prepare(plan), bench.options)
    scored = bench.engine.search(bench.engine.prepare(plan), bench.options)
    if isinstance(bench.engine, CentroidEngine):
        return _token_traffic(bench, plan, scored.dot_products)
    lists = bench.engine.list_numbers(plan)
    tokens = sum(
        int(np.diff(segment.list_starts)[row[row >= 0]].sum())
        for segment, row in zip(bench.snapshot.segments, lists, strict=True)
        if segment.meta.kind != "none"
    )
    semantic = scored.dot_products - tokens
    return Traffic(tokens, semantic, _list_bytes(bench, lists), semantic * _semantic_bytes(bench.settings))


def _token_traffic(bench: Bench, plan: Plan, products: int) -> Traffic:
    """What a search of a centroid index reads: the codes of each scored token once, for all query tokens."""
    tokens = products // max(len(plan.weights), 1)
    stored = sum(segment.tokens for segment in bench.snapshot.segments)
    names = ("CODES", "SCALES", "TOKEN_CENTROIDS")
    sections = [segment.file.sections for segment in bench.snapshot.segments]
    size = sum(len(own[name].data) for own in sections for name in names if name in own)
    return Traffic(products, 0, tokens * size // max(stored, 1), 0)


def _list_bytes(bench: Bench, lists: NDArray[np.int64]) -> int:
    """Bytes of the lists; a list is read once, however many query tokens share it."""
    total = 0
    for segment, row in zip(bench.snapshot.segments, lists, strict=True):
        if segment.meta.kind == "none":
            continue
        sections = segment.file.sections
        names = ["CODES", "SCALES", "VALUES"] + (["WEIGHTS"] if bench.options.weight_floor else [])
        rows = sum(len(sections[name].data) for name in names if name in sections)
        starts, blocks = segment.list_starts, segment.file["BLOCK_STARTS"].array("<i8")
        offsets = (segment.file["BLOCK_OFFSETS"].array("<u8") & np.uint64((1 << 56) - 1)).astype(np.int64)
        chosen = np.unique(row[row >= 0])
        first, last = blocks[chosen], blocks[chosen + 1]
        packed = int((offsets[last] - offsets[first]).sum()) + 12 * int((last - first).sum())
        postings = int((starts[chosen + 1] - starts[chosen]).sum())
        total += packed + postings * rows // max(segment.meta.postings, 1)
    return total


def _semantic_bytes(settings: Settings) -> int:
    if settings.semantic is None:
        return 0
    width = settings.semantic.dimension
    return width + 2 if settings.semantic.codec == "int8" else 2 * width


def described(
    bench: Bench, latency: Latency, machine: Mapping[str, Any], synthetic: bool = False
) -> dict[str, Any]:
    """A latency as JSON, with the floors, the index and the machine."""
    from citadel._native import instruction_set

    return {
        **asdict(latency),
        "floors": {stage: latency.floor(stage) for stage in latency.milliseconds},
        "documents": len(bench.snapshot),
        "synthetic": synthetic,
        "k": bench.options.k,
        "semantic": bench.options.semantic,
        "machine": {**machine, "instruction_set": instruction_set()},
    }


def read_bandwidth(size: int = 1 << 28, rounds: int = 5) -> float:
    """Bytes per second at which one core reads uncached memory: the best of a few passes.

    >>> read_bandwidth(1 << 20, 1) > 0
    True
    """
    words = np.ones(size // 8, np.uint64)
    shortest = float("inf")
    for _ in range(rounds):
        start = time.perf_counter()
        words.sum()
        shortest = min(shortest, time.perf_counter() - start)
    return words.nbytes / shortest
