"""Dynamic routing: every token under the few keys the model activates most (CITADEL)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from citadel.errors import UsageError
from citadel.routing.base import Router, token_rows
from citadel.types import Floats, Keys, RoutedTokens, TokenVectors


@dataclass(frozen=True, kw_only=True)
class DynamicRouter(Router):
    """Token → its top-K (query) or top-L (document) keys of φ; document weights ≤ τ are dropped.

    >>> phi = np.array([[0.0, 0.5, 2.0, 0.5]], np.float32)
    >>> text = TokenVectors(np.array([7], np.uint32), np.ones((1, 4), np.float32), phi)
    >>> DynamicRouter().route_query(text).keys.tolist()
    [2]
    >>> DynamicRouter(document_keys=2).route_document(text).keys.tolist()
    [2, 1]
    >>> DynamicRouter(tau=0.5).route_document(text).keys.tolist()
    [2]
    """

    name: ClassVar[str] = "dynamic"
    floor: ClassVar[bool] = True

    semantic: bool = True
    query_keys: int = 1  # K
    document_keys: int = 5  # L
    tau: float = 0.0

    def __post_init__(self) -> None:
        if self.query_keys < 1 or self.document_keys < 1:
            raise UsageError("a token needs at least one key: set query_keys and document_keys to 1 or more")
        if not 0 <= self.tau <= float(np.finfo(np.float32).max):
            raise UsageError(f"tau {self.tau} is out of range: give a finite fp32 number of 0 or more")

    def _query(self, text: TokenVectors) -> RoutedTokens:
        return self._route(text, self.query_keys, 0.0)

    def _document(self, text: TokenVectors) -> RoutedTokens:
        return self._route(text, self.document_keys, self.tau)

    def _route(self, text: TokenVectors, limit: int, tau: float) -> RoutedTokens:
        phi = token_rows(text.activations, text, "activations", self.name)  # [T, V]
        vectors = token_rows(text.vectors, text, "token vectors", self.name)  # [T, d]
        chosen = [top_keys(row, limit, tau) for row in phi]
        tokens = np.repeat(np.arange(len(text), dtype=np.uint32), [len(keys) for keys in chosen])  # [P]
        keys = np.concatenate([np.empty(0, np.uint32), *chosen])  # [P]
        return RoutedTokens(keys, phi[tokens, keys], vectors[tokens], tokens=tokens)


def top_keys(phi: Floats, limit: int, tau: float = 0.0) -> Keys:
    """Up to `limit` keys with the largest φ above τ, best first; ties go to the lower key.

    >>> top_keys(np.array([1, 3, 1, 0], np.float32), 2).tolist()
    [1, 0]
    """
    phi = phi.astype(np.float32, copy=False)  # [V]
    # Ascending, so that a stable sort puts the lower key first.
    live = np.flatnonzero(phi > np.float32(max(tau, 0.0)))
    best = np.argsort(-phi[live], kind="stable")[:limit]
    return live[best].astype(np.uint32)
