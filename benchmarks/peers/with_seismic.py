"""Seismic: approximate search over the SPLADE model's vectors, with the settings of its README."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from harness import K, Search, Task, one_core, run_peer

QUERY_CUT, HEAP_FACTOR = 10, 0.7


def build(task: Task, scratch: Path) -> Search:
    import seismic

    kind = seismic.get_seismic_string()
    documents, queries = task.routed("splade", "documents"), task.routed("splade", "queries")
    dataset = seismic.SeismicDataset()
    for number in range(len(documents)):
        rows = documents.rows(number)
        dataset.add_document(str(number), documents.keys[rows].astype(kind), documents.weights[rows])
    index = seismic.SeismicIndex.build_from_dataset(dataset, num_threads=1)
    index.save(str(scratch / "splade"))

    def search(query: int) -> list[int]:
        rows = queries.rows(query)
        names, values = queries.keys[rows].astype(kind), queries.weights[rows]
        hits = index.search(str(query), names, values, K, QUERY_CUT, HEAP_FACTOR)
        order = np.argsort([-score for _, score, _ in hits], kind="stable")
        return [int(hits[position][2]) for position in order]

    return search


if __name__ == "__main__":
    one_core()
    run_peer("seismic", build)
