"""The paper's pipeline in plain torch, as its code has it: lists one by one, a buffer as wide as the corpus, a sort.

fp16 vectors; for each query token the products with its list, the best a document scattered into a buffer of all
documents, which is added to the scores; then every semantic vector; then the top k of everything.
"""

from __future__ import annotations

import torch
from torch import Tensor

from citadel.search.gpu.lists import Lists
from citadel.search.plan import Plan


class PaperPipeline:
    """Lists with fp16 vectors of random contents over the documents' numbers of a synthetic index."""

    def __init__(self, lists: Lists, dimension: int, documents: int, semantic: int) -> None:
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
        for key, vector in zip(plan.keys.tolist(), torch.from_numpy(plan.vectors).to(device).half(), strict=True):
            start = int(self._lists.starts[key])
            stop = start + int(self._lists.sizes[key])
            values = (self._vectors[start:stop] @ vector).float().relu_()
            best = torch.zeros(self._documents, device=device)
            best.scatter_reduce_(0, self._lists.documents[start:stop].long(), values, "amax")
            scores += best
        return torch.topk(scores, min(k, self._documents)).indices.cpu()
