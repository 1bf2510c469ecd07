"""A sharded index on one machine and on a local Ray cluster, against one index.

    python benchmarks/cluster.py build/cluster [--documents 3000] [--queries 400]

1. Search of 4 shards in one process against one index of the same documents, `exact`, random vectors.
2. What Ray adds to a query beyond the slowest shard, by part, with 4 shards and one replica each.
3. A build with 2 encoder actors, their start included, against `citadel index` on 2 cores, default model.
4. Units that a second build encodes again when the first one was killed at half.

All ratios are from turns within one run. The latencies of single shards are stored for the simulation of
`citadel plan`.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from common import alternate, report

import citadel
from citadel.cluster.build import Built, build_on_ray
from citadel.cluster.encode_unit import UnitEncoder
from citadel.cluster.job import Job
from citadel.cluster.ray_session import ray_session
from citadel.cluster.remote_engine import RemoteEngine
from citadel.cluster.shard_pool import ShardOptions, ShardPool
from citadel.index.shard import shard_index
from citadel.index.storage import FolderStorage
from citadel.types import Document

SHARDS, DIMENSION, SEMANTIC, KEYS, KEYS_PER_DOCUMENT = 4, 32, 128, 2_000, 40
WORKERS, BUILD_TURNS = 2, 2
WORDS = (
    "relativity",
    "gravity",
    "evolution",
    "species",
    "market",
    "river",
    "engine",
    "poem",
    "court",
    "virus",
)
Turn = Callable[[], Any]


def vectors(count: int, seed: int) -> list[dict[str, Any]]:
    """Random documents with token and semantic vectors."""
    random = np.random.default_rng(seed)
    return [
        {
            "id": f"d{seed}-{n}",
            "keys": random.integers(0, KEYS, KEYS_PER_DOCUMENT).astype(np.uint32),
            "weights": random.random(KEYS_PER_DOCUMENT, dtype=np.float32) + 0.1,
            "vectors": random.standard_normal((KEYS_PER_DOCUMENT, DIMENSION), dtype=np.float32),
            "semantic": random.standard_normal(SEMANTIC, dtype=np.float32),
        }
        for n in range(count)
    ]


def make_indexes(folder: Path, documents: int) -> tuple[citadel.Index, Path]:
    """An index of random vectors, and the same documents in shards."""
    fields = {"lexical": citadel.Field(DIMENSION), "semantic": citadel.Field(SEMANTIC)}
    index = citadel.Index.create(folder / "one", fields=fields, fingerprint="random", overwrite=True)
    for start in range(0, documents, 5_000):
        index.add_vectors(vectors(min(5_000, documents - start), start))
    index.commit(graph=False)
    index.merge(graph=False)
    shard_index(index._snapshot, FolderStorage(folder / "root"), SHARDS, graph=False, overwrite=False)
    return index, folder / "root"


def queries(count: int) -> list[list[Any]]:
    names = ("keys", "weights", "vectors", "semantic")
    return [
        [row[name][:16] if name != "semantic" else row[name] for name in names] for row in vectors(count, 1)
    ]


def in_one_process(index: citadel.Index, root: Path, asked: Sequence[Any]) -> dict[Any, float]:
    """Seconds per query of one index and of its shards."""
    searchers = {"one": index.searcher(threads=1), "shards": citadel.Index.open(root).searcher(threads=1)}

    def run(name: str) -> Turn:
        search: Any = searchers[name].search_vectors
        return lambda: [search(*query, 10, semantic_mode="exact") for query in asked]

    least = alternate({name: run(name) for name in searchers}, rounds=5, repeats=1)
    return {name: seconds / len(asked) for name, seconds in least.items()}


class Timed:
    """Calls through a pool of shards; keeps the parts of every call."""

    def __init__(self, pool: ShardPool) -> None:
        self._pool = pool
        self.rows: list[tuple[float, float, float]] = []  # whole call, slowest in its replica, its search
        self.shards: list[float] = []  # seconds of each shard's call, hedges included

    def ask(self, requests: Any, seconds: float, cancel: Any) -> Any:
        start = time.perf_counter()
        replies = self._pool.ask(requests, seconds, cancel)
        slowest = max((reply for reply in replies if reply), key=lambda reply: reply.inside)
        self.rows.append((time.perf_counter() - start, slowest.inside, slowest.seconds))
        self.shards += [scatter._seconds[-1] for scatter in self._pool.scatter.latencies]
        return replies


def on_ray(ray: Any, root: Path, asked: Sequence[Any]) -> tuple[dict[str, float], list[float]]:
    """Median milliseconds of the parts of a query, and the latencies of single shards."""
    pool = ShardPool(ray, str(root), ShardOptions(1, cores=0.5))
    opened, timed = citadel.Index.open(root), Timed(pool)
    whole: list[float] = []

    def open_engine(*arguments: Any) -> RemoteEngine:
        engine = pool.open_engine(*arguments)
        engine._ask = timed.ask
        return engine

    searcher: Any = opened.searcher(engine=open_engine)
    try:
        for turn, query in enumerate([*asked[:50], *asked]):
            if turn == 50:
                timed.rows, timed.shards, whole = [], [], []
            start = time.perf_counter()
            searcher.search_vectors(*query, 10, semantic_mode="exact")
            whole.append(time.perf_counter() - start)
    finally:
        pool.close()
    rows = np.array(timed.rows)
    parts = {
        "whole query": np.array(whole),
        "slowest shard's search": rows[:, 2],
        "waiting for a thread there": rows[:, 1] - rows[:, 2],
        "Ray Serve, there and back": rows[:, 0] - rows[:, 1],
        "planning and merging": np.array(whole) - rows[:, 0],
        "all but the slowest shard's search": np.array(whole) - rows[:, 2],
    }
    return {name: float(np.median(seconds)) * 1e3 for name, seconds in parts.items()}, timed.shards


def texts(count: int) -> list[Document]:
    random = np.random.default_rng(3)
    return [Document(f"t{n}", " ".join(random.choice(WORDS, 60).tolist())) for n in range(count)]


def build_rates(folder: Path, documents: list[Document]) -> dict[str, float]:
    """Documents per second of `citadel index`, and of a build with encoder actors on a cluster of its own.

    The faster of two turns each."""
    corpus = folder / "texts.jsonl"
    corpus.write_text("".join(json.dumps({"id": d.id, "text": d.text}) + "\n" for d in documents))
    command = [
        sys.executable,
        "-m",
        "citadel.cli",
        "index",
        str(corpus),
        str(folder / "plain"),
        "--overwrite",
    ]
    least = dict.fromkeys(("citadel index", "cluster"), math.inf)
    for turn in range(BUILD_TURNS):
        start = time.perf_counter()
        subprocess.run(command, check=True, capture_output=True)
        least["citadel index"] = min(least["citadel index"], time.perf_counter() - start)
        job = Job(
            str(folder / f"built{turn}"), "texts", 2, {"model": "default"}, unit_documents=100, graph=False
        )
        with ray_session("local", WORKERS) as ray:
            start = time.perf_counter()
            build_on_ray(ray, job, documents, WORKERS, lambda done, old: None)
            least["cluster"] = min(least["cluster"], time.perf_counter() - start)
    return {name: len(documents) / seconds for name, seconds in least.items()}


def killed_at_half(ray: Any, folder: Path) -> tuple[Built, int]:
    """A build whose encoders are killed at half; the second build, and units that were finished before."""
    job = Job(str(folder / "killed"), "texts", 2, {"model": "bm25"}, unit_documents=50, graph=False)
    documents = texts(4_000)

    class Stop(Exception):
        pass

    def stop(done: int, _: int) -> None:
        if done >= len(documents) / 2:
            for process in psutil.Process().children(recursive=True):  # of this run only
                with contextlib.suppress(psutil.NoSuchProcess):
                    if UnitEncoder.__name__ in " ".join(process.cmdline()):
                        process.kill()
            raise Stop

    with contextlib.suppress(Stop):
        build_on_ray(ray, job, documents, WORKERS, stop)
    acknowledged = len(documents) // 2 // job.unit_documents
    return build_on_ray(ray, job, documents, WORKERS, lambda done, old: None), acknowledged


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--documents", type=int, default=3_000, help="encoded with the default model")
    parser.add_argument("--vectors", type=int, default=40_000)
    parser.add_argument("--queries", type=int, default=400)
    options = parser.parse_args()
    shutil.rmtree(options.folder, ignore_errors=True)
    options.folder.mkdir(parents=True)
    load = os.getloadavg()[0]
    index, root = make_indexes(options.folder, options.vectors)
    asked = queries(options.queries)
    process = in_one_process(index, root, asked)
    with ray_session("local", 4) as ray:
        parts, latencies = on_ray(ray, root, asked)
    with ray_session("local", WORKERS) as ray:
        again, acknowledged = killed_at_half(ray, options.folder)
    rates = build_rates(options.folder, texts(options.documents))
    ratio, speed = process["shards"] / process["one"], rates["cluster"] / rates["citadel index"]
    rows: list[list[Any]] = [
        ["4 shards in one process ÷ one index", ratio],
        *[[f"on Ray, ms: {name}", value] for name, value in parts.items()],
        ["build with 2 encoders ÷ citadel index", speed],
        ["finished units encoded again after a kill", max(acknowledged - again.reused, 0)],
    ]
    quantiles = [round(1e3 * float(value), 4) for value in np.quantile(latencies, np.linspace(0, 1, 1001))]
    figures = {
        "load_before": load,
        "milliseconds_per_query": {name: 1e3 * seconds for name, seconds in process.items()},
        "documents_per_second": rates,
        "units": {"all": again.units, "reused": again.reused, "acknowledged": acknowledged},
        "shard_calls": len(latencies),
        "shard_ms_quantiles": quantiles,
    }
    report("cluster", "A sharded index", ["figure", "measured"], rows, **figures)


if __name__ == "__main__":
    main()
