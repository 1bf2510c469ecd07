"""Centroid routing: every token under the nearest of an index's centroids (ColBERT-v2, PLAID)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from citadel.errors import UsageError
from citadel.routing.all_to_all import unit
from citadel.routing.base import ANY, Router, finite, one_key_each, token_rows
from citadel.types import Floats, Keys, RoutedTokens, TokenVectors


@dataclass(frozen=True, kw_only=True)
class CentroidRouter(Router):
    """Document token → its nearest centroid; query token → the `nprobe` centroids of the largest product.

    The score is that of `all_to_all`; the keys only tell which documents are worth scoring. Without
    centroids, as in an index with too few tokens to train them, every token is under ANY.

    >>> text = TokenVectors(np.array([7], np.uint32), np.array([[3, 4]], np.float32))
    >>> router = CentroidRouter(centroids=np.eye(2, dtype=np.float32), nprobe=2)
    >>> router.route_document(text).keys.tolist(), router.route_query(text).keys.tolist()
    ([1], [1, 0])
    """

    name: ClassVar[str] = "centroid"
    has_weights: ClassVar[bool] = False
    unit_vectors: ClassVar[bool] = True

    centroids: Floats | None = field(default=None, compare=False, repr=False)  # [K, d]
    nprobe: int = 1

    def __post_init__(self) -> None:
        if self.nprobe < 1:
            raise UsageError(f"nprobe is {self.nprobe}: probe 1 centroid or more")
        if self.semantic:
            raise UsageError("the router 'centroid' has no semantic vector: leave semantic off")
        if self.centroids is not None and (self.centroids.ndim != 2 or not len(self.centroids)):
            raise UsageError(f"centroids of shape {self.centroids.shape} are not a table: give one per row")

    @property
    def kind(self) -> str:
        """Lists of centroids, and codes in token order."""
        return "centroid"

    def _query(self, text: TokenVectors) -> RoutedTokens:
        vectors = unit(token_rows(text.vectors, text, "token vectors", self.name))
        if self.centroids is None:
            return one_key_each(np.full(len(text), ANY, np.uint32), vectors)
        keys = probed_centroids(vectors @ finite(self.centroids, "centroids").T, self.nprobe)  # [T, nprobe]
        tokens = np.repeat(np.arange(len(text), dtype=np.uint32), keys.shape[1])
        ones = np.ones(len(tokens), np.float32)
        return RoutedTokens(keys.reshape(-1), ones, vectors[tokens], tokens=tokens)

    def _document(self, text: TokenVectors) -> RoutedTokens:
        vectors = unit(token_rows(text.vectors, text, "token vectors", self.name))
        keys = np.full(len(text), ANY, np.uint32)
        if self.centroids is not None:
            keys = nearest_centroids(vectors, finite(self.centroids, "centroids"))
        return one_key_each(keys, vectors)


def probed_centroids(products: Floats, nprobe: int) -> Keys:
    """The centroids of the largest products of each row [n, K], best first; ties go to the lower one.

    >>> probed_centroids(np.array([[0.1, 0.5, 0.5]], np.float32), 2).tolist()
    [[1, 2]]
    """
    order: NDArray[np.int64] = np.argsort(-products, axis=1, kind="stable")
    return order[:, :nprobe].astype(np.uint32)


def nearest_centroids(vectors: Floats, centroids: Floats) -> Keys:
    """The nearest centroid of each vector [n, d] by Euclidean distance; ties go to the lower one.

    >>> nearest_centroids(np.array([[2.0, 0.0]], np.float32), np.array([[9, 0], [1, 0]], np.float32)).tolist()
    [1]
    """
    half_norms = 0.5 * np.einsum("kd,kd->k", centroids, centroids)
    nearest: NDArray[np.int64] = np.argmax(vectors @ centroids.T - half_norms, axis=1)
    return nearest.astype(np.uint32)
