"""Qdrant Edge: the ColBERT model's vectors as multivectors with MaxSim, searched through its HNSW graph."""

from __future__ import annotations

from pathlib import Path

from harness import K, Search, Task, one_core, run_peer

PART = 200  # points an update


def build(task: Task, scratch: Path) -> Search:
    import qdrant_edge as edge

    documents, queries = task.routed("colbert", "documents"), task.routed("colbert", "queries")
    assert documents.vectors is not None
    several = edge.MultiVectorConfig(edge.MultiVectorComparator.MaxSim)
    vectors = edge.EdgeVectorParams(documents.vectors.shape[1], edge.Distance.Dot, multivector_config=several)
    shard = edge.EdgeShard.create(str(scratch), edge.EdgeConfig(vectors=vectors, max_search_threads=1))
    for start in range(0, len(documents), PART):
        numbers = range(start, min(start + PART, len(documents)))
        filled = [number for number in numbers if len(documents.matrix(number))]  # it takes no empty multivector
        points = [edge.Point(number, documents.matrix(number).tolist()) for number in filled]
        shard.update(edge.UpdateOperation.upsert_points(points))
    shard.optimize()
    shard.flush()

    def search(query: int) -> list[int]:
        asked = edge.Query.Nearest(queries.matrix(query).tolist())
        return [int(point.id) for point in shard.query(edge.QueryRequest(K, query=asked))]

    return search


if __name__ == "__main__":
    one_core()
    run_peer("qdrant-edge", build)
