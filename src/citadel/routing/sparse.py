"""Sparse routing: the weight of a key is its largest activation over all tokens (SPLADE)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from citadel.routing.base import Router, token_rows
from citadel.types import RoutedTokens, TokenVectors


@dataclass(frozen=True, kw_only=True)
class SparseRouter(Router):
    """Key → max over tokens of φ (Eq. 7), one row per key above 0, in key order.

    A row belongs to the whole text, so `tokens` is None.

    >>> phi = np.array([[0, 1, 0], [0, 3, 2]], np.float32)
    >>> routed = SparseRouter().route_document(TokenVectors(np.array([7, 9], np.uint32), activations=phi))
    >>> dict(zip(routed.keys.tolist(), routed.weights.tolist()))
    {1: 3.0, 2: 2.0}
    """

    name: ClassVar[str] = "sparse"
    uses_vectors: ClassVar[bool] = False

    def _query(self, text: TokenVectors) -> RoutedTokens:
        phi = token_rows(text.activations, text, "activations", self.name)  # [T, V]
        pooled = phi.max(axis=0, initial=0.0)  # [V]
        keys = np.flatnonzero(pooled > 0).astype(np.uint32)  # [P]
        return RoutedTokens(keys, pooled[keys])

    _document = _query
