"""nDCG@10 of model, BM25 and fusions with weights chosen on held-out pairs; latency of hybrid search.

    .venv/bin/python benchmarks/hybrid.py WORK [--collections cranfield,scifact,vaswani] [--held-out INDEX]

WORK holds an index per collection, named after it; one that is missing is built there with `hybrid=True` from
`eval` in CITADEL_DATA. An index without BM25 lists is read, too: a BM25 index of its documents is made beside
it, as NAME.bm25. INDEX is the index of held-out passages that `scripts/calibrate.py` makes (default:
WORK/held-out, built if it is missing); `--held-out none` takes the default weights without choosing.
"""

from __future__ import annotations

import argparse
import itertools
import json
import lzma
import os
import random
import statistics
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from common import one_core, report

import citadel
from citadel.eval import Dataset, compare, evaluate_queries, open_dataset
from citadel.index.word_snapshot import WordSnapshot
from citadel.search.index_hybrid import DEFAULT_METHOD, DEFAULT_WEIGHTS

DATA = os.environ.get("CITADEL_DATA", "data")
MEASURE, DEPTH, OTHERS = "nDCG@10", 100, 9_000
STEPS = [round(step / 20, 2) for step in range(21)]  # weights of the model
TIMED, ROUNDS = 200, 5  # queries, and turns of each system
Queries = Mapping[str, str]
Qrels = Mapping[str, Mapping[str, int]]


class Parts(NamedTuple):
    """The searchers of one collection."""

    model: citadel.Searcher
    bm25: citadel.Searcher

    def hybrid(self, method: str, weight: float) -> citadel.Hybrid:
        """Both, fused; `weight` is that of the model."""
        if isinstance(self.bm25.snapshot, WordSnapshot):
            return citadel.IndexHybrid(*self, method, [weight, 1 - weight])
        return citadel.Hybrid(list(self), method, [weight, 1 - weight])


class Choice(NamedTuple):
    """A method with the model's weight."""

    method: str
    weight: float

    def fuse(self, rankings: Sequence[citadel.Ranking]) -> citadel.Ranking:
        """Fuse the rankings of model and BM25."""
        return citadel.fuse(rankings, self.method, [self.weight, 1 - self.weight])


def main() -> None:
    """Print and store the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("work", type=Path)
    parser.add_argument("--collections", default="cranfield,scifact,vaswani")
    parser.add_argument("--held-out", default="")
    arguments = parser.parse_args()
    rows, chosen = [], {method: Choice(method, DEFAULT_WEIGHTS[0]) for method in ("linear", "rrf")}
    curves: dict[str, list[float]] = {}
    if arguments.held_out != "none":
        folder = Path(arguments.held_out or arguments.work / "held-out")
        parts, queries, qrels = _held_out(folder)
        rankings = _rankings(parts, queries)
        for method in chosen:
            curves[method] = [_mean(Choice(method, weight).fuse(rankings), qrels) for weight in STEPS]
            chosen[method] = Choice(method, STEPS[max(range(len(STEPS)), key=curves[method].__getitem__)])
        rows.append(_quality("held-out pairs", rankings, qrels, chosen))
    opened: dict[str, tuple[Parts, Dataset]] = {}
    for name in arguments.collections.split(","):
        dataset = open_dataset(os.path.join(DATA, "eval", name))
        parts = _open(arguments.work / name, dataset)
        rows.append(_quality(name, _rankings(parts, dict(dataset.judged)), dataset.qrels, chosen))
        opened[name] = parts, dataset
    one_core()
    latency = [
        [name, *_latency(parts, [text for _, text in dataset.judged])]
        for name, (parts, dataset) in opened.items()
    ]
    columns = ("collection", "model", "BM25", "linear", "p", "RRF", "p", "default")
    times = ("collection", "model, ms", "BM25, ms", "hybrid, ms", "hybrid / (model + BM25)")
    weights = {method: choice.weight for method, choice in chosen.items()}
    title = f"{MEASURE}; model's weight {weights}; default {DEFAULT_METHOD} {DEFAULT_WEIGHTS}"
    report("hybrid-latency", "Median per query with encoding, one core", times, latency)
    report("hybrid", title, columns, rows, weights=weights, steps=STEPS, curves=curves)


def _quality(
    name: str, rankings: Sequence[citadel.Ranking], qrels: Qrels, chosen: Mapping[str, Choice]
) -> list[Any]:
    """One row: the mean of each system, and p of the fusions against the model."""
    row: list[Any] = [name, *(_mean(ranking, qrels) for ranking in rankings)]
    model = _values(rankings[0], qrels)
    for choice in chosen.values():
        values = _values(choice.fuse(rankings), qrels)
        row += [statistics.mean(values.values()), compare(values, model).p]
    return [*row, _mean(Choice(DEFAULT_METHOD, DEFAULT_WEIGHTS[0]).fuse(rankings), qrels)]


def _rankings(parts: Parts, queries: Queries) -> list[citadel.Ranking]:
    return [searcher.search_batch(queries, k=DEPTH) for searcher in parts]


def _values(ranking: citadel.Ranking, qrels: Qrels) -> dict[str, float]:
    return evaluate_queries(ranking, qrels, [MEASURE])[MEASURE]


def _mean(ranking: citadel.Ranking, qrels: Qrels) -> float:
    return statistics.mean(_values(ranking, qrels).values())


def _latency(parts: Parts, texts: Sequence[str]) -> tuple[float, float, float, float]:
    """Median milliseconds per query of model, BM25 and hybrid, in turns; and the ratio to their sum."""
    hybrid = parts.hybrid(DEFAULT_METHOD, DEFAULT_WEIGHTS[0])
    systems: list[citadel.Searcher | citadel.Hybrid] = [*parts, hybrid]
    least: list[list[float]] = [[float("inf")] * min(TIMED, len(texts)) for _ in systems]
    for _ in range(ROUNDS):
        for number, text in enumerate(texts[:TIMED]):
            for times, searcher in zip(least, systems, strict=True):
                start = time.perf_counter()
                searcher.search(text, k=10)
                times[number] = min(times[number], time.perf_counter() - start)
    model, bm25, both = (statistics.median(times) * 1e3 for times in least)
    return model, bm25, both, both / (model + bm25)


def _open(folder: Path, dataset: Dataset) -> Parts:
    """The searchers of a collection, built if its index is missing."""
    if not folder.exists():
        with citadel.Index.create(folder, model="default", hybrid=True) as index:
            index.add(dataset.documents(), progress=True)
            index.commit()
    return _parts(folder)


def _parts(folder: Path) -> Parts:
    index = citadel.Index.open(folder, threads=1)
    model = index.searcher(threads=1)
    if index.settings.words is not None:
        return Parts(model, index.searcher(mode="bm25", threads=1))
    beside = citadel.Index.open_or_create(folder.with_name(f"{folder.name}.bm25"), model="bm25")
    if len(beside) != len(index):
        beside.add(index.documents())
        beside.commit()
    return Parts(model, beside.searcher(threads=1))


def _held_out(folder: Path) -> tuple[Parts, dict[str, str], dict[str, dict[str, int]]]:
    """Searchers, queries and judgements of held-out pairs: only a query's own passage is relevant."""
    pairs = [pair for pair in _lines("pairs") if zlib.crc32(pair["positive"].encode()) % 100 == 0]
    if not folder.exists():
        positives, passages = {pair["positive"] for pair in pairs}, list(_lines("passages"))
        others = [row for row in passages if row["id"] not in positives and row["source"] != "openstax"]
        random.Random(28).shuffle(others)
        own = (row for row in passages if row["id"] in positives)
        with citadel.Index.create(folder, model="default", hybrid=True) as index:
            index.add(itertools.chain(own, others[:OTHERS]), progress=True)
            index.commit()
    queries = {str(number): pair["query"] for number, pair in enumerate(pairs, 1)}
    return _parts(folder), queries, {str(n): {pair["positive"]: 1} for n, pair in enumerate(pairs, 1)}


def _lines(name: str) -> Iterator[dict[str, Any]]:
    with lzma.open(os.path.join(DATA, "train", f"{name}.jsonl.xz"), "rt", encoding="utf-8") as file:
        yield from map(json.loads, file)


if __name__ == "__main__":
    main()
