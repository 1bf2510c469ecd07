"""faiss: candidates from IVF-PQ over the ColBERT model's token vectors, ranked by exact MaxSim."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from harness import K, Search, Task, max_sim, one_core, run_peer

PROBES = 16
TOKENS = 256  # nearest document tokens of each query token
SUBVECTOR = 4  # dimensions per byte: 2 bits per dimension, as the paper's nbits = 2


def build(task: Task, scratch: Path) -> Search:
    import faiss

    faiss.omp_set_num_threads(1)
    documents, queries = task.routed("colbert", "documents"), task.routed("colbert", "queries")
    assert documents.vectors is not None
    count, width = documents.vectors.shape
    lists = int(4 * np.sqrt(count))
    coarse = faiss.IndexFlatIP(width)
    index = faiss.IndexIVFPQ(coarse, width, lists, width // SUBVECTOR, 8, faiss.METRIC_INNER_PRODUCT)
    sample = np.random.default_rng(0).permutation(count)[: 64 * lists]
    index.train(documents.vectors[sample])
    index.add(documents.vectors)
    index.nprobe = PROBES
    faiss.write_index(index, str(scratch / "tokens.faiss"))
    np.save(scratch / "vectors.npy", documents.vectors.astype(np.float16))
    owners = np.repeat(np.arange(len(documents)), np.diff(documents.offsets))

    def search(query: int) -> list[int]:
        vectors = queries.matrix(query)
        _, tokens = index.search(vectors, TOKENS)
        candidates = np.unique(owners[tokens[tokens >= 0]])
        scores = max_sim(vectors, documents, candidates.tolist())
        return [int(number) for number in candidates[np.argsort(-scores, kind="stable")[:K]]]

    return search


if __name__ == "__main__":
    one_core()
    run_peer("faiss IVF-PQ + MaxSim", build)
