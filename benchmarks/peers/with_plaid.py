"""fast-plaid, the PLAID index of PyLate: ColBERT vectors, residuals of 2 or 4 bits (argument 3)."""

from __future__ import annotations

import sys
from pathlib import Path

from harness import K, Search, Task, one_core, run_peer

PROBES, SCORED = 32, 4096  # centroids per query token; documents scored by their centroids


def build(task: Task, scratch: Path) -> Search:
    import torch
    from fast_plaid.search import FastPlaid

    torch.set_num_threads(1)
    documents, queries = task.routed("colbert", "documents"), task.routed("colbert", "queries")
    # Empty documents are rejected.
    filled = [number for number in range(len(documents)) if len(documents.matrix(number))]
    index = FastPlaid(str(scratch), device="cpu")
    index.create([torch.from_numpy(documents.matrix(number)) for number in filled], nbits=int(sys.argv[3]))

    def search(query: int) -> list[int]:
        vectors = torch.from_numpy(queries.matrix(query))[None]
        [hits] = index.search(vectors, top_k=K, n_ivf_probe=PROBES, n_full_scores=SCORED, show_progress=False)
        return [filled[number] for number, _ in hits]

    return search


if __name__ == "__main__":
    one_core()
    run_peer(f"fast-plaid {sys.argv[3]} bits", build)
