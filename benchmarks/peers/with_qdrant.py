"""Qdrant Edge: the ColBERT model's vectors as multivectors with MaxSim.

Argument 3 is `exact` for a scan or `hnsw` for a graph. Comparing two documents is a MaxSim of all their
tokens, and building a graph takes some thousand comparisons per document: 0.1 s per document on one core
(Cranfield), against half a millisecond for the upsert.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from harness import K, Rows, Search, Task, one_core, run_peer

PART = 200  # points per update
EDGES, CANDIDATES = 16, 100  # m and ef_construct, Qdrant's defaults
NEVER = 1 << 40  # size in kilobytes above which a graph is built


def build(task: Task, scratch: Path) -> Search:
    import qdrant_edge as edge

    documents, queries = task.routed("colbert", "documents"), task.routed("colbert", "queries")
    exact = sys.argv[3] == "exact"
    shard = edge.EdgeShard.create(str(scratch), _config(edge, documents, exact))
    for start in range(0, len(documents), PART):
        numbers = range(start, min(start + PART, len(documents)))
        # Empty multivectors are rejected.
        filled = [number for number in numbers if len(documents.matrix(number))]
        points = [edge.Point(number, documents.matrix(number).tolist()) for number in filled]
        shard.update(edge.UpdateOperation.upsert_points(points))
    if not exact:
        shard.optimize()
    shard.flush()
    params = edge.SearchParams(exact=exact)

    def search(query: int) -> list[int]:
        nearest = edge.Query.Nearest(queries.matrix(query).tolist())
        request = edge.QueryRequest(K, query=nearest, params=params)
        return [int(point.id) for point in shard.query(request)]

    return search


def _config(edge: Any, documents: Rows, exact: bool) -> Any:
    assert documents.vectors is not None
    max_sim = edge.MultiVectorConfig(edge.MultiVectorComparator.MaxSim)
    vectors = edge.EdgeVectorParams(documents.vectors.shape[1], edge.Distance.Dot, multivector_config=max_sim)
    graph = edge.HnswIndexConfig(EDGES, CANDIDATES, 1, max_indexing_threads=1)
    optimizers = edge.EdgeOptimizersConfig(default_segment_number=1, indexing_threshold=NEVER if exact else 1)
    return edge.EdgeConfig(vectors=vectors, max_search_threads=1, hnsw_config=graph, optimizers=optimizers)


if __name__ == "__main__":
    one_core()
    run_peer(f"qdrant {sys.argv[3]}", build)
