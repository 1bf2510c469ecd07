"""How long one query takes, stage by stage, beside the time this machine needs to read the bytes the query touches.

One query at a time on one thread: a warm-up pass, then trials of two passes each. The first pass runs the search as it
always runs and gives the latencies; the second, with the engine's stage timers on, says where that time goes.
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
from citadel.search.cpu import STAGES, CpuEngine
from citadel.search.plan import Options, Plan, plan_vectors
from citadel.settings import Settings
from citadel.types import RoutedTokens, Scored

TRIALS = 3
FEWEST = 10  # queries, however long they take
PERCENTILES = (50, 95, 99)
ALL_STAGES = ("encode", *STAGES, "ids")
WHOLE = ("search", "whole")  # the engine alone, timers off; everything from text to ids


class Traffic(NamedTuple):
    """What one query reads."""

    token_products: int
    semantic_products: int
    list_bytes: int
    semantic_bytes: int


class Searching(Protocol):
    """Another engine than the CPU's: its answers are on the host when it returns, so that nothing is left running."""

    @property
    def bandwidth(self) -> float: ...
    @property
    def name(self) -> str: ...
    def prepare(self, plan: Plan) -> Any: ...
    def search(self, query: Any, options: Options) -> Scored: ...


@dataclass(frozen=True)
class Bench:
    """An index to time: its engine, the queries, and what they pass through on either side of it."""

    snapshot: Snapshot
    engine: CpuEngine
    options: Options
    queries: Sequence[Any]  # texts where there is an encoder, else routed tokens
    encode: Callable[[str], RoutedTokens] | None = None
    ids: Callable[[NDArray[np.int64]], Any] | None = None
    card: Searching | None = None  # searches in place of the engine, which then only counts

    @property
    def settings(self) -> Settings:
        return self.snapshot.settings


@dataclass(frozen=True)
class Latency:
    """Milliseconds by stage: {mean, p50, p95, p99} each, of the trial with the least mean latency."""

    milliseconds: dict[str, dict[str, float]]
    traffic: dict[str, float]  # means a query
    bandwidth: float  # bytes a second, one core
    queries: int
    trials: int
    means: list[float] = field(default_factory=list)  # whole latency in ms, trial by trial

    def floor(self, stage: str) -> float | None:
        """Milliseconds that reading the stage's bytes once takes at least; None where that says nothing."""
        lists, semantic = self.traffic["list_bytes"], self.traffic["semantic_bytes"]
        touched = {
            "token retrieval": lists,
            "semantic": semantic,
            "search": lists + semantic,
            "whole": lists + semantic,
        }
        return 1e3 * touched[stage] / self.bandwidth if touched.get(stage) else None


def affordable(bench: Bench, seconds: float, trials: int = TRIALS) -> Bench:
    """The bench with as many queries as so many seconds allow, judged by its first one, but at least a few."""
    start = time.perf_counter()
    for query in bench.queries[:1]:
        _warm(bench, query)
    passes = (1 + 2 * trials) * (time.perf_counter() - start)
    return replace(bench, queries=bench.queries[: max(FEWEST, int(seconds / passes))])


def measure_latency(bench: Bench, trials: int = TRIALS, progress: Callable[[int], Any] = lambda done: None) -> Latency:
    """Time every query of a bench."""
    if not bench.queries:
        raise UsageError("there is no query to time: give a file of queries that is not empty")
    traffic = [_warm(bench, query) for query in bench.queries]
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
        {name: float(np.mean([each[place] for each in traffic])) for place, name in enumerate(Traffic._fields)},
        read_bandwidth() if bench.card is None else bench.card.bandwidth,
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
    return {"mean": float(values.mean())} | {f"p{p}": float(q) for p, q in zip(PERCENTILES, quantiles, strict=True)}


def _trial(bench: Bench) -> dict[str, list[float]]:
    spent: dict[str, list[float]] = {stage: [] for stage in (*ALL_STAGES, *WHOLE)}
    engine: Any = bench.card or bench.engine
    for query in bench.queries:
        start = time.perf_counter()
        prepared = engine.prepare(_plan(bench, query))
        before = time.perf_counter()
        found = engine.search(prepared, bench.options)
        after = time.perf_counter()
        if bench.ids is not None:
            bench.ids(found.numbers)
        end = time.perf_counter()
        spent["search"].append(after - before)
        spent["whole"].append(end - start)
    for query in bench.queries:
        for stage, seconds in _timed(bench, query).items():
            spent[stage].append(seconds)
    return spent


def _timed(bench: Bench, query: Any) -> dict[str, float]:
    """One query with every stage timed apart; a card runs them as one recorded graph, which is not taken apart."""
    engine: Any = bench.card or bench.engine
    start = time.perf_counter()
    routed = bench.encode(query) if bench.encode is not None else query
    encoded = time.perf_counter()
    prepared = engine.prepare(_plan_routed(bench.settings, routed))
    planned = time.perf_counter()
    found, stages = _searched(bench, prepared)
    searched = time.perf_counter()
    spent = {"encode": encoded - start if bench.encode is not None else 0.0, **stages}
    spent["plan"] += planned - encoded  # the Python half of it
    if bench.ids is not None:
        bench.ids(found.numbers)
        spent["ids"] = time.perf_counter() - searched
    return spent


def _searched(bench: Bench, prepared: Any) -> tuple[Scored, dict[str, float]]:
    if bench.card is not None:
        return bench.card.search(prepared, bench.options), {"plan": 0.0}
    return bench.engine.search_timed(prepared, bench.options)


def _plan(bench: Bench, query: Any) -> Plan:
    return _plan_routed(bench.settings, bench.encode(query) if bench.encode is not None else query)


def _plan_routed(settings: Settings, routed: RoutedTokens) -> Plan:
    return plan_vectors(settings, routed.keys, routed.weights, routed.vectors, routed.semantic)


def _warm(bench: Bench, query: Any) -> Traffic:
    """Run a query once, and say what it reads."""
    plan = _plan(bench, query)
    if bench.card is not None:
        bench.card.search(bench.card.prepare(plan), bench.options)
    found = bench.engine.search(bench.engine.prepare(plan), bench.options)
    lists = bench.engine.list_numbers(plan)
    tokens = sum(
        int(np.diff(segment.list_starts)[row[row >= 0]].sum())
        for segment, row in zip(bench.snapshot.segments, lists, strict=True)
        if segment.meta.kind != "none"
    )
    semantic = found.dot_products - tokens
    return Traffic(tokens, semantic, _list_bytes(bench, lists), semantic * _semantic_bytes(bench.settings))


def _list_bytes(bench: Bench, lists: NDArray[np.int64]) -> int:
    """Every list is read once, however many query tokens share it."""
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


def described(bench: Bench, found: Latency, machine: Mapping[str, Any], synthetic: bool = False) -> dict[str, Any]:
    """A latency as it is kept: with the floors, the index and the machine."""
    from citadel._native import instruction_set

    return {
        **asdict(found),
        "floors": {stage: found.floor(stage) for stage in found.milliseconds},
        "documents": len(bench.snapshot),
        "synthetic": synthetic,
        "k": bench.options.k,
        "semantic": bench.options.semantic,
        "machine": {**machine, "instruction_set": instruction_set()},
    }


def read_bandwidth(size: int = 1 << 28, rounds: int = 5) -> float:
    """Bytes a second at which one core reads memory that no cache holds: the best of a few passes.

    >>> read_bandwidth(1 << 20, 1) > 0
    True
    """
    words = np.ones(size // 8, np.uint64)
    least = float("inf")
    for _ in range(rounds):
        start = time.perf_counter()
        words.sum()
        least = min(least, time.perf_counter() - start)
    return words.nbytes / least
