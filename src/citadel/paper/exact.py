"""Measure without the native engine: exact scores by torch, computed index size.

Dot products are counted as in the engine: every posting of a query token's list, and one per semantic vector.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from citadel.bench.exact import ExactSearch, RoutedRows, best, flatten
from citadel.encode.config import ModelConfig
from citadel.errors import UsageError
from citadel.index.packing import POSTINGS_PER_BLOCK
from citadel.model.encoder import find_device
from citadel.paper.counts import query_cost
from citadel.paper.engine import IndexLists
from citadel.paper.system import MeasuredEncoder, Variant, pruned
from citadel.routing import get_router
from citadel.settings import SUBVECTOR
from citadel.types import Document, Hit, Ranking, RoutedTokens

SCORES_PER_BATCH = {"cuda": 1 << 28, "cpu": 1 << 24}


class ExactSystem:
    """All documents in memory as encoded; scores are not quantised."""

    engine = "torch-exact"

    def __init__(self, encoder: MeasuredEncoder | None, device: str = "auto") -> None:
        if encoder is None:
            raise UsageError("bm25 needs the native engine: build the native module, or name a model")
        self._encoder, self._device = encoder, find_device(device)
        self._ids: list[str] = []
        self._routed: list[RoutedTokens] = []

    def add(self, documents: Sequence[Document], routed: Sequence[RoutedTokens]) -> None:
        """Add documents."""
        self._ids += [document.id for document in documents]
        self._routed += routed

    def finish(self) -> None:
        """Do nothing: there is nothing to commit."""

    def lists(self, variant: Variant) -> IndexLists:
        """Size and list lengths that a variant's index would have."""
        texts = [pruned(text, variant.tau) for text in self._routed]
        keys = np.concatenate([np.zeros(0, np.uint32), *(text.keys for text in texts)])
        documents = np.repeat(np.arange(len(texts)), [len(text) for text in texts])
        sizes = {int(key): count for key, count in Counter(keys.tolist()).items()}
        size = index_bytes(self._encoder.config, variant.codec, keys, documents)
        semantic = len(texts) * semantic_bytes(self._encoder.config)
        return IndexLists(len(texts), len(keys), size + semantic, sizes)

    def search(
        self, variant: Variant, queries: Sequence[tuple[str, str]], routed: Sequence[RoutedTokens], k: int
    ) -> tuple[Ranking, list[dict[str, int]]]:
        """Search all queries; return their hits and the costs that the engine would have."""
        prepared = [self._without_semantic(text, variant) for text in routed]
        documents = [self._without_semantic(pruned(text, variant.tau), variant) for text in self._routed]
        device = str(self._device)
        search = ExactSearch(flatten(documents, device=device), get_router(self._encoder.config.router).floor)
        hits: list[tuple[Hit, ...]] = []
        step = max(1, SCORES_PER_BATCH.get(self._device.type, 1 << 24) // max(len(documents), 1))
        for start in range(0, len(prepared), step):
            hits += self._hits(search, flatten(prepared[start : start + step], device=device), k)
        sizes, scanned = self.lists(variant).sizes, len(documents) if self._semantic(variant) else 0
        costs = [query_cost(text.keys, sizes)._asdict() for text in routed]
        ranking = Ranking(tuple(id for id, _ in queries), tuple(hits))
        return ranking, [
            {**cost, "semantic_products": scanned, "dot_products": cost["token_products"] + scanned}
            for cost in costs
        ]

    def _hits(self, search: ExactSearch, queries: RoutedRows, k: int) -> Iterator[tuple[Hit, ...]]:
        values, numbers = (part.cpu().tolist() for part in best(search.scores(queries), k, search.count))
        for scores, documents in zip(values, numbers, strict=True):
            valid = [(number, score) for number, score in zip(documents, scores, strict=True) if number >= 0]
            yield tuple(Hit(self._ids[number], score, rank) for rank, (number, score) in enumerate(valid, 1))

    def _semantic(self, variant: Variant) -> bool:
        if variant.semantic not in ("auto", "exact", "off"):
            raise UsageError(f"--semantic {variant.semantic} needs the engine: choose exact or off")
        return self._encoder.config.has_semantic and variant.semantic != "off"

    def _without_semantic(self, text: RoutedTokens, variant: Variant) -> RoutedTokens:
        if self._semantic(variant) or text.semantic is None:
            return text
        return RoutedTokens(text.keys, text.weights, text.vectors)

    def latency(
        self, variant: Variant, texts: Sequence[str], routed: Sequence[RoutedTokens]
    ) -> dict[str, Any]:
        """Return nothing: torch's latency says nothing about the engine's."""
        del variant, texts, routed
        return {}

    def close(self) -> None:
        """Free the memory."""
        self._routed.clear()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def index_bytes(
    config: ModelConfig, codec: str, keys: NDArray[np.uint32], documents: NDArray[np.int64]
) -> int:
    """Bytes of the lists and codes of an index (docs/reference/file-format.md)."""
    if config.router == "none":
        return 0
    order = np.lexsort((documents, keys))
    lists, first = np.unique(keys[order], return_index=True)
    sizes = np.diff([*first, len(keys)])  # [K]
    per_posting = _posting_bytes(config, codec)
    fixed = 4 * len(lists) + 2 * 8 * (len(lists) + 1)  # KEYS, LIST_STARTS, BLOCK_STARTS
    return fixed + len(keys) * per_posting + packed_bytes(documents[order], sizes)


def semantic_bytes(config: ModelConfig) -> int:
    """Bytes of one semantic vector: int8 with a scale.

    >>> semantic_bytes(ModelConfig("none", token_dimension=0, semantic_dimension=128))
    130
    """
    return config.semantic_dimension + 2 if config.has_semantic else 0


def _posting_bytes(config: ModelConfig, codec: str) -> int:
    if config.router == "sparse":
        return 2
    width = config.token_dimension
    weights = 1 if config.router == "dynamic" else 0
    return weights + {"fp16": 2 * width, "int8": width + 2}.get(codec, width // SUBVECTOR.get(codec, 1))


def packed_bytes(documents: NDArray[np.int64], sizes: NDArray[np.int64]) -> int:
    """Bytes of delta-packed document numbers and their block tables.

    >>> packed_bytes(np.array([0, 3, 5]), np.array([3]))  # 1 for two deltas, 28 for the block tables
    29
    """
    starts = np.cumsum(sizes, dtype=np.int64) - sizes
    within = np.arange(len(documents)) - np.repeat(starts, sizes)  # [P]
    opens = within % POSTINGS_PER_BLOCK == 0
    deltas = np.where(opens, 0, np.diff(documents, prepend=0))
    blocks = np.flatnonzero(opens)
    largest = np.maximum.reduceat(deltas, blocks) if len(blocks) else np.zeros(0, np.int64)
    bits = np.ceil(np.log2(largest + 1)).astype(np.int64)
    lengths = np.diff([*blocks, len(documents)]) - 1
    return int(((bits * lengths + 7) // 8).sum()) + 8 + 12 * len(blocks) + 8
