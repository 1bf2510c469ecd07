"""This project: BM25 from text, or the vectors of the model named by argument 3.

`colbert residual4 512` stores residual codes of 4 bits and scores 512 documents; `colbert` alone compares all
tokens.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
from harness import K, Search, Task, one_core, run_peer

ROUTERS = {"colbert": "all_to_all", "splade": "sparse", "citadel": "dynamic"}


def build_bm25(task: Task, scratch: Path) -> Search:
    from citadel import Index

    index = Index.create(scratch / "index", model="bm25")
    index.add({"id": str(number), "text": text} for number, text in enumerate(task.texts))
    searcher, queries = index.commit().searcher(threads=1), task.queries
    return lambda query: [int(id) for id in searcher.search(queries[query], K).ids]


def build_vectors(task: Task, scratch: Path) -> Search:
    from citadel import Field, Index

    model, codec, ef = (*sys.argv[3].split(), "int8", "0")[:3]
    options: dict[str, Any] = {"ef": int(ef)} if int(ef) else {}
    documents, queries = task.routed(model, "documents"), task.routed(model, "queries")
    semantic = {side: _semantic(task, model, side) for side in ("documents", "queries")}
    fields = {"lexical": Field(0 if documents.vectors is None else documents.vectors.shape[1], codec)}
    given = {"ids": np.array([str(number) for number in range(len(documents))]), "offsets": documents.offsets,
             "keys": documents.keys, "weights": documents.weights}  # fmt: skip
    if documents.vectors is not None:
        given["vectors"] = documents.vectors
    if semantic["documents"] is not None:
        fields["semantic"], given["semantic"] = Field(semantic["documents"].shape[1]), semantic["documents"]
    router = "centroid" if int(ef) else ROUTERS[model]
    if router == "centroid":
        given = {name: rows for name, rows in given.items() if name not in ("keys", "weights")}
    index = Index.create(scratch / "index", fields=fields, router=router, fingerprint="peers")
    index.add_vectors(given)
    searcher = index.commit().merge().searcher(threads=1)

    def search(query: int) -> list[int]:
        rows = queries.rows(query)
        vectors = None if queries.vectors is None else queries.vectors[rows]
        if router == "centroid":
            return [int(id) for id in searcher.search_vectors(vectors=vectors, k=K, **options).ids]
        pooled = None if semantic["queries"] is None else semantic["queries"][query]
        return [
            int(id)
            for id in searcher.search_vectors(
                queries.keys[rows], queries.weights[rows], vectors, pooled, K
            ).ids
        ]

    return search


def _semantic(task: Task, model: str, side: str) -> Any:
    with np.load(task.folder / f"{model}-{side}.npz", allow_pickle=False) as arrays:
        return arrays.get("semantic")


if __name__ == "__main__":
    one_core()
    run_peer(f"citadel {sys.argv[3]}", build_bm25 if sys.argv[3] == "bm25" else build_vectors)
