"""The router interface: each token of a text goes to a few (key, weight) pairs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from citadel.errors import InputError, UsageError
from citadel.types import Floats, Keys, RoutedTokens, TokenVectors

ANY = 0  # the only key of all_to_all


@dataclass(frozen=True, kw_only=True)
class Router(ABC):
    """Base of all routers; class attributes describe the postings, so that nothing depends on router names.

    >>> from citadel.routing import get_router
    >>> static = get_router("static")
    >>> static.floor, static.has_weights, static.kind
    (True, False, 'vectors')
    """

    name: ClassVar[str]
    lexical: ClassVar[bool] = True  # tokens have keys, so there is a lexical field
    uses_vectors: ClassVar[bool] = True  # False: v ≡ 1
    has_weights: ClassVar[bool] = True  # some weight may differ from 1
    unit_vectors: ClassVar[bool] = False  # token vectors are scaled to length 1
    floor: ClassVar[bool] = False  # a query token whose best match is negative scores 0

    semantic: bool = False  # keep the pooled vector if the encoder gives one

    @property
    def kind(self) -> str:
        """Kind of posting in the index format: vectors, sparse, bm25 or none."""
        return "vectors" if self.uses_vectors else self.name

    def route_query(self, text: TokenVectors) -> RoutedTokens:
        """Route a query."""
        return self._with_semantic(self._query(text), text)

    def route_document(self, text: TokenVectors) -> RoutedTokens:
        """Route a document."""
        return self._with_semantic(self._document(text), text)

    @abstractmethod
    def _query(self, text: TokenVectors) -> RoutedTokens: ...

    @abstractmethod
    def _document(self, text: TokenVectors) -> RoutedTokens: ...

    def _with_semantic(self, routed: RoutedTokens, text: TokenVectors) -> RoutedTokens:
        if not self.semantic or text.semantic is None:
            return routed
        return replace(routed, semantic=finite(text.semantic, "semantic vector's numbers"))


def finite(values: Floats, what: str) -> Floats:
    """Convert to fp32; NaN and infinity are errors, because either would corrupt rankings.

    >>> import numpy as np
    >>> finite(np.array([1.0]), "activations")
    array([1.], dtype=float32)
    """
    values = np.asarray(values, np.float32)
    if not np.isfinite(values).all():
        raise InputError(f"the {what} hold NaN or infinity: encode the text again or leave it out")
    return values


def token_rows(values: Floats | None, text: TokenVectors, what: str, router: str) -> Floats:
    """Check that `values` has one row per token; the error names the input that the router lacks."""
    if values is None:
        raise UsageError(
            f"the router {router!r} needs {what}: use an encoder that gives them, or another router"
        )
    if values.ndim != 2 or len(values) != len(text):
        raise InputError(
            f"{what} of shape {values.shape} do not match {len(text)} tokens: give one row per token"
        )
    return finite(values, what)  # [T, d] or [T, V]


def one_key_each(keys: Keys, vectors: Floats) -> RoutedTokens:
    """Route every token to one key with weight 1."""
    order = np.arange(len(keys), dtype=np.uint32)
    return RoutedTokens(keys.astype(np.uint32), np.ones(len(keys), np.float32), vectors, tokens=order)


def no_rows() -> RoutedTokens:
    """Routed text whose tokens have no keys."""
    return RoutedTokens(np.empty(0, np.uint32), np.empty(0, np.float32), tokens=np.empty(0, np.uint32))
