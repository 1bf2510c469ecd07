"""LanceDB: the ColBERT model's vectors as a multivector column, with an IVF-PQ index and exact refinement."""

from __future__ import annotations

from pathlib import Path

from harness import K, Search, Task, one_core, run_peer

PROBES, REFINE = 16, 2


def build(task: Task, scratch: Path) -> Search:
    import lancedb
    import pyarrow as pa

    documents, queries = task.routed("colbert", "documents"), task.routed("colbert", "queries")
    assert documents.vectors is not None
    width = documents.vectors.shape[1]
    kind = pa.list_(pa.list_(pa.float32(), width))
    schema = pa.schema([pa.field("number", pa.int64()), pa.field("vector", kind)])
    rows = [
        {"number": number, "vector": documents.matrix(number).tolist()} for number in range(len(documents))
    ]
    table = lancedb.connect(str(scratch)).create_table("tokens", rows, schema=schema)
    table.create_index(metric="cosine", vector_column_name="vector", num_sub_vectors=width // 4)

    def search(query: int) -> list[int]:
        search = table.search(queries.matrix(query).tolist(), vector_column_name="vector").metric("cosine")
        hits = search.nprobes(PROBES).refine_factor(REFINE).select(["number"]).limit(K).to_list()
        return [int(row["number"]) for row in hits]

    return search


if __name__ == "__main__":
    one_core()
    run_peer("lancedb", build)
