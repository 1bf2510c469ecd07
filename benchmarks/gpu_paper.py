"""The paper's pipeline in plain torch, as in its code: one list at a time, a buffer over the corpus, a top k.

fp16 vectors; for each query token the products with its list, the best per document scattered into a buffer
of all documents and added to the scores; then every semantic vector; then the top k of all documents.
"""

from __future__ import annotations

import torch
from torch import Tensor

from citadel.search.gpu.lists import DeviceLists
from citadel.search.plan import Plan


class PaperPipeline:
    """Random fp16 vectors over the document numbers of a synthetic index."""

    def __init__(self, lists: DeviceLists, dimension: int, documents: int, semantic: int) -> None:
        self._lists, self._documents, device = lists, documents, lists.documents.device
        self._vectors = torch.empty(len(lists.documents), dimension, dtype=torch.float16, device=device)
        for start in range(0, len(self._vectors), 1 << 24):
            self._vectors[start : start + (1 << 24)].normal_()
        self._semantic = torch.randn(documents, semantic, device=device).half()

    def search(self, plan: Plan, k: int, semantic: bool) -> Tensor:
        """The best k documents."""
        device = self._vectors.device
        if semantic:
            scores = (self._semantic @ torch.from_numpy(plan.semantic).to(device).half()).float()
        else:
            scores = torch.zeros(self._documents, device=device)
        assert plan.vectors is not None
        for key, vector in zip(
            plan.keys.tolist(), torch.from_numpy(plan.vectors).to(device).half(), strict=True
        ):
            start = int(self._lists.starts[key])
            stop = start + int(self._lists.sizes[key])
            values = (self._vectors[start:stop] @ vector).float().relu_()
            best = torch.zeros(self._documents, device=device)
            best.scatter_reduce_(0, self._lists.documents[start:stop].long(), values, "amax")
            scores += best
        return torch.topk(scores, min(k, self._documents)).indices.cpu()
