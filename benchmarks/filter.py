"""Filtered search over 1 M documents on one core, beside LanceDB and Qdrant Edge over the same vectors.

    python benchmarks/filter.py build/filter [--documents 1000000] [--rounds 10]

Every document has an integer field, uniform below 1 M, and the filter `{"bucket": {"$lt": n}}` allows the
share of documents in the first column. *tokens* is a multi-vector index without (10 postings of 32
dimensions per document with Zipf keys, queries of 8 tokens), *both* with a semantic vector of 128 dimensions
in the default mode of an index without a graph. *dense* holds these semantic vectors alone; LanceDB and
Qdrant Edge scan the same vectors exactly, with their own filter (LanceDB: prefilter with a scalar index;
Qdrant: payload index). *mask* is the time to evaluate the filter, once; searches reuse it, and the
positions of allowed postings in the lists that a search with the same filter has read. *new* is a search of
*tokens* with a filter that no search has used before. Times are the median over queries of the
minimum of several rounds, all in one process. A peer that is not installed is left out.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from common import one_core, report

import citadel
from citadel.filter.parse import parse_filter
from citadel.search.plan import plan_options
from citadel.types import Document, VectorBatch

SHARES = (1.0, 0.5, 0.1, 0.01, 0.0001)
BUCKETS = 1_000_000
POSTINGS, TOKENS, DIMENSION, SEMANTIC = 10, 8, 32, 128
KEYS = 40  # query tokens are drawn from the most frequent keys
PART = 50_000
K = 10

Search = Callable[[int, float], Any]  # query number, share of documents


def parts(documents: int) -> Iterator[tuple[VectorBatch, np.ndarray[Any, Any]]]:
    """The documents in parts, with the bucket of each."""
    for start in range(0, documents, PART):
        count = min(PART, documents - start)
        random = np.random.default_rng(start)
        buckets = random.integers(0, BUCKETS, count)
        keys = np.minimum(random.pareto(0.6, (count, POSTINGS)), 5000).astype(np.uint32)
        rows = [Document(str(start + i), "", metadata={"bucket": int(b)}) for i, b in enumerate(buckets)]
        yield (
            VectorBatch(
                rows,
                np.arange(count + 1, dtype=np.int64) * POSTINGS,
                np.sort(keys, axis=1).reshape(-1),
                random.random(count * POSTINGS, np.float32) + np.float32(0.1),
                random.standard_normal((count * POSTINGS, DIMENSION), np.float32),
                random.standard_normal((count, SEMANTIC), np.float32),
            ),
            buckets,
        )


def random_queries(count: int) -> list[dict[str, Any]]:
    random = np.random.default_rng(7)
    return [
        {
            "keys": np.sort(random.choice(KEYS, TOKENS, replace=False)).astype(np.uint32),
            "vectors": random.standard_normal((TOKENS, DIMENSION)).astype(np.float32),
            "semantic": random.standard_normal(SEMANTIC).astype(np.float32),
        }
        for _ in range(count)
    ]


def multi_vector_index(folder: Path, documents: int) -> citadel.Index:
    if not folder.exists():
        fields = {"lexical": DIMENSION, "semantic": SEMANTIC}
        index = citadel.Index.create(
            folder, router="dynamic", fields=fields, fingerprint="random", memory=2 << 30
        )
        for batch, _ in parts(documents):
            index.add_vectors(batch)
        index.commit().merge(graph=False)
    return citadel.Index.open(folder)


def dense_index(folder: Path, documents: int) -> citadel.Index:
    if not folder.exists():
        index = citadel.Index.create(
            folder, fields={"semantic": SEMANTIC}, fingerprint="random", memory=2 << 30
        )
        for batch, _ in parts(documents):
            rows = VectorBatch(
                batch.documents,
                np.zeros_like(batch.offsets),
                batch.keys[:0],
                batch.weights[:0],
                None,
                batch.semantic,
            )
            index.add_vectors(rows)
        index.commit().merge(graph=False)
    return citadel.Index.open(folder)


def below(share: float) -> dict[str, Any] | None:
    return None if share == 1 else {"bucket": {"$lt": round(share * BUCKETS)}}


def citadel_searches(folder: Path, documents: int, queries: list[dict[str, Any]]) -> dict[str, Search]:
    """Searches of citadel, prepared queries in, hits out."""
    multi = multi_vector_index(folder / "multi", documents).searcher(threads=1)
    dense = dense_index(folder / "dense", documents).searcher(threads=1)
    prepared = [multi.prepare_vectors(**query) for query in queries]
    alone = [dense.prepare_vectors(semantic=query["semantic"]) for query in queries]

    def tokens(query: int, share: float) -> Any:
        return multi.search_prepared(prepared[query], K, semantic_mode="off", filter=below(share))

    def both(query: int, share: float) -> Any:
        return multi.search_prepared(prepared[query], K, filter=below(share))

    def semantic(query: int, share: float) -> Any:
        return dense.search_prepared(alone[query], K, semantic_mode="exact", filter=below(share))

    return {"tokens": tokens, "both": both, "dense": semantic}


def lancedb_search(folder: Path, documents: int, queries: list[dict[str, Any]]) -> Search:
    import lancedb
    import pyarrow as pa

    connection = lancedb.connect(str(folder / "lancedb"))
    if "rows" not in connection.table_names():
        kind = pa.list_(pa.float32(), SEMANTIC)
        schema = pa.schema([("number", pa.int64()), ("bucket", pa.int64()), ("vector", kind)])

        def batches() -> Iterator[Any]:
            for batch, buckets in parts(documents):
                assert batch.semantic is not None
                numbers = [int(document.id) for document in batch.documents]
                vectors = pa.FixedSizeListArray.from_arrays(batch.semantic.reshape(-1), SEMANTIC)
                yield pa.record_batch([pa.array(numbers), pa.array(buckets), vectors], schema=schema)

        table = connection.create_table("rows", batches(), schema=schema)
        table.create_scalar_index("bucket")
    table = connection.open_table("rows")

    def search(query: int, share: float) -> Any:
        nearest: Any = table.search(queries[query]["semantic"])
        built = nearest.distance_type("dot").select(["number", "_distance"]).limit(K)
        if share < 1:
            built = built.where(f"bucket < {round(share * BUCKETS)}", prefilter=True)
        return built.to_list()

    return search


def qdrant_search(folder: Path, documents: int, queries: list[dict[str, Any]]) -> Search:
    import qdrant_edge as edge

    path = folder / "qdrant"
    vectors = edge.EdgeVectorParams(SEMANTIC, edge.Distance.Dot)
    when = edge.EdgeOptimizersConfig(default_segment_number=1, indexing_threshold=1 << 40)
    config = edge.EdgeConfig(vectors=vectors, max_search_threads=1, optimizers=when)
    if path.exists():
        shard = edge.EdgeShard.load(str(path))
    else:
        path.mkdir(parents=True)
        shard = edge.EdgeShard.create(str(path), config)
        shard.update(edge.UpdateOperation.create_field_index("bucket", edge.PayloadSchemaType.Integer))
        for batch, buckets in parts(documents):
            assert batch.semantic is not None
            rows = zip(batch.documents, buckets.tolist(), batch.semantic.tolist(), strict=True)
            points = [edge.Point(int(d.id), vector, {"bucket": bucket}) for d, bucket, vector in rows]
            shard.update(edge.UpdateOperation.upsert_points(points))
        shard.optimize()
        shard.flush()
    params = edge.SearchParams(exact=True)

    def search(query: int, share: float) -> Any:
        nearest = edge.Query.Nearest(queries[query]["semantic"].tolist())
        allowed = None
        if share < 1:
            limit = edge.RangeFloat(lt=round(share * BUCKETS))
            allowed = edge.Filter(must=[edge.FieldCondition("bucket", range=limit)])
        return shard.query(edge.QueryRequest(K, query=nearest, params=params, filter=allowed))

    return search


def milliseconds(search: Search, count: int, rounds: int) -> dict[float, float]:
    """Per share, the median over queries of the minimum over rounds.

    A round takes every share in turn, so that a noisy machine affects all alike. The first pass over the
    queries of a turn is not timed: it loads what the turn reads into the caches.
    """
    least = {share: np.full(count, np.inf) for share in SHARES}
    for _ in range(rounds):
        for share, seconds in least.items():
            for query in range(2 * count):
                start = time.perf_counter()
                search(query % count, share)
                if query >= count:
                    elapsed = time.perf_counter() - start
                    seconds[query - count] = min(seconds[query - count], elapsed)
    return {share: float(np.median(seconds)) * 1e3 for share, seconds in least.items()}


def new_milliseconds(folder: Path, queries: list[dict[str, Any]], share: float, rounds: int) -> float:
    """Searches by tokens, each with a filter of its own."""
    searcher = citadel.Index.open(folder / "multi").searcher(threads=1)
    engine, options = searcher._engine, plan_options(searcher.snapshot, K, "off", None)
    masks = searcher.snapshot.allowed(parse_filter(below(share) or {}))
    least = np.full(len(queries), np.inf)
    for _ in range(rounds):
        for row, query in enumerate(queries):
            prepared = searcher.prepare_vectors(**query).query
            allowed = None if share == 1 else engine.prepare_filter(masks)
            start = time.perf_counter()
            engine.search(prepared, options, None, allowed)
            least[row] = min(least[row], time.perf_counter() - start)
    return float(np.median(least)) * 1e3


def mask_milliseconds(folder: Path, share: float) -> float:
    snapshot = citadel.Index.open(folder / "multi").searcher(threads=1).snapshot
    parsed = parse_filter(below(share) or {})
    times = []
    for _ in range(20):
        start = time.perf_counter()
        snapshot.allowed(parsed)
        times.append(time.perf_counter() - start)
    return min(times) * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, nargs="?", default=Path("build/filter"))
    parser.add_argument("--documents", type=int, default=1_000_000)
    parser.add_argument("--queries", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--no-peers", action="store_true")
    options = parser.parse_args()
    one_core()
    options.folder.mkdir(parents=True, exist_ok=True)
    queries = random_queries(options.queries)
    searches = citadel_searches(options.folder, options.documents, queries)
    for name, make in (
        {} if options.no_peers else {"LanceDB": lancedb_search, "Qdrant Edge": qdrant_search}.items()
    ):
        try:
            searches[name] = make(options.folder, options.documents, queries)
        except ImportError as error:
            print(f"{name} is left out: {error}")
    measured = {
        name: milliseconds(search, options.queries, options.rounds) for name, search in searches.items()
    }
    rows = [
        [f"{100 * share:g} %", *(measured[name][share] for name in searches)]
        + [measured[name][share] / measured[name][1.0] for name in ("tokens", "both", "dense")]
        + [new_milliseconds(options.folder, queries, share, options.rounds)]
        + [mask_milliseconds(options.folder, share)]
        for share in SHARES
    ]
    columns = ["allowed", *(f"{name}, ms" for name in searches)]
    columns += [f"{name}, ratio" for name in ("tokens", "both", "dense")] + ["new, ms", "mask, ms"]
    title = f"{options.documents:,} documents, one core, k = {K}, median over {options.queries} queries"
    report("filter", title, columns, rows)


if __name__ == "__main__":
    main()
