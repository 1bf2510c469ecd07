"""No token routing, only the pooled vector under the key SEM: DPR and other bi-encoders."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from citadel.errors import UsageError
from citadel.routing.base import Router, no_rows
from citadel.types import RoutedTokens, TokenVectors


@dataclass(frozen=True, kw_only=True)
class NoRouter(Router):
    """Tokens have no keys; the score is the dot product of the semantic vectors.

    >>> import numpy as np
    >>> text = TokenVectors(np.array([7, 9], np.uint32), semantic=np.array([1, 2], np.float32))
    >>> routed = NoRouter().route_query(text)
    >>> len(routed), routed.semantic.tolist()
    (0, [1.0, 2.0])
    """

    name: ClassVar[str] = "none"
    lexical: ClassVar[bool] = False
    uses_vectors: ClassVar[bool] = False
    has_weights: ClassVar[bool] = False

    semantic: bool = True

    def __post_init__(self) -> None:
        if not self.semantic:
            raise UsageError(
                "the router 'none' has only the semantic vector: leave semantic on, or choose another router"
            )

    def _query(self, text: TokenVectors) -> RoutedTokens:
        if text.semantic is None:
            raise UsageError("the router 'none' needs a semantic vector: use an encoder that gives one")
        return no_rows()

    _document = _query
