"""Static routing: every token under its own id (COIL)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from citadel.routing.base import Router, one_key_each, token_rows
from citadel.types import RoutedTokens, TokenVectors


@dataclass(frozen=True, kw_only=True)
class StaticRouter(Router):
    """Token → {(its own id, 1)}; COIL-full with the semantic vector, COIL-tok without.

    >>> import numpy as np
    >>> text = TokenVectors(np.array([7, 9], np.uint32), np.ones((2, 4), np.float32))
    >>> StaticRouter().route_document(text).keys.tolist()
    [7, 9]
    """

    name: ClassVar[str] = "static"
    has_weights: ClassVar[bool] = False
    floor: ClassVar[bool] = True

    semantic: bool = True

    def _query(self, text: TokenVectors) -> RoutedTokens:
        return one_key_each(text.token_ids, token_rows(text.vectors, text, "token vectors", self.name))

    _document = _query
