"""Qdrant Edge: the ColBERT model's vectors as multivectors with MaxSim; argument 3: `exact` scans, `hnsw` has a graph.

A comparison of two documents is a MaxSim of all their tokens, and a graph takes some thousand of them a document: it
needs 0.1 s a document on one core (Cranfield), where the upserts need half a millisecond.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from harness import K, Rows, Search, Task, one_core, run_peer

PART = 200  # points an update
EDGES, CANDIDATES = 16, 100  # m and ef_construct, its own defaults
NEVER = 1 << 40  # kilobytes from which a graph is built


def build(task: Task, scratch: Path) -> Search:
    import qdrant_edge as edge

    documents, queries = task.routed("colbert", "documents"), task.routed("colbert", "queries")
    exact = sys.argv[3] == "exact"
    shard = edge.EdgeShard.create(str(scratch), _config(edge, documents, exact))
    for start in range(0, len(documents), PART):
        numbers = range(start, min(start + PART, len(documents)))
        filled = [number for number in numbers if len(documents.matrix(number))]  # it takes no empty multivector
        points = [edge.Point(number, documents.matrix(number).tolist()) for number in filled]
        shard.update(edge.UpdateOperation.upsert_points(points))
    if not exact:
        shard.optimize()
    shard.flush()
    params = edge.SearchParams(exact=exact)

    def search(query: int) -> list[int]:
        asked = edge.Query.Nearest(queries.matrix(query).tolist())
        return [int(point.id) for point in shard.query(edge.QueryRequest(K, query=asked, params=params))]

    return search


def _config(edge: Any, documents: Rows, exact: bool) -> Any:
    assert documents.vectors is not None
    several = edge.MultiVectorConfig(edge.MultiVectorComparator.MaxSim)
    vectors = edge.EdgeVectorParams(documents.vectors.shape[1], edge.Distance.Dot, multivector_config=several)
    graph = edge.HnswIndexConfig(EDGES, CANDIDATES, 1, max_indexing_threads=1)
    when = edge.EdgeOptimizersConfig(default_segment_number=1, indexing_threshold=NEVER if exact else 1)
    return edge.EdgeConfig(vectors=vectors, max_search_threads=1, hnsw_config=graph, optimizers=when)


if __name__ == "__main__":
    one_core()
    run_peer(f"qdrant {sys.argv[3]}", build)
