"""All-to-all routing: every token under the single key ANY (ColBERT)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from citadel.routing.base import ANY, Router, one_key_each, token_rows
from citadel.types import Floats, RoutedTokens, TokenVectors


@dataclass(frozen=True, kw_only=True)
class AllToAllRouter(Router):
    """Token → {(ANY, 1)} with unit vectors: the score is a sum of maximum cosines, without a floor.

    >>> text = TokenVectors(np.array([7], np.uint32), np.array([[3, 4]], np.float32))
    >>> AllToAllRouter().route_query(text).vectors.round(1).tolist()
    [[0.6000000238418579, 0.800000011920929]]
    """

    name: ClassVar[str] = "all_to_all"
    has_weights: ClassVar[bool] = False
    unit_vectors: ClassVar[bool] = True

    def _query(self, text: TokenVectors) -> RoutedTokens:
        vectors = token_rows(text.vectors, text, "token vectors", self.name)
        return one_key_each(np.full(len(text), ANY, np.uint32), unit(vectors))

    _document = _query


def unit(vectors: Floats) -> Floats:
    """Scale rows to length 1, in float64 so that no square overflows; a zero row stays zero.

    >>> unit(np.array([[0, 5], [0, 0]], np.float32)).tolist()
    [[0.0, 1.0], [0.0, 0.0]]
    """
    lengths = np.linalg.norm(vectors.astype(np.float64), axis=1, keepdims=True)  # [T, 1]
    return (vectors / np.where(lengths > 0, lengths, 1)).astype(np.float32)  # [T, d]
