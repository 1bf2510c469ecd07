"""BM25 as Lucene computes it: terms with counts, without a model or vectors."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from citadel.routing.base import Router
from citadel.settings import DEFAULT_B, DEFAULT_K1, check_bm25
from citadel.types import RoutedTokens, TokenVectors


def idf(documents: int, frequency: int) -> float:
    """Inverse document frequency, ln(1 + (N − df + ½) / (df + ½)); positive for every term.

    >>> round(idf(documents=3, frequency=1), 4)
    0.9808
    """
    return math.log1p((documents - frequency + 0.5) / (frequency + 0.5))


def length_norm(average: float, k1: float, b: float) -> tuple[float, float]:
    """(base, slope) of the length normalisation: the denominator is tf + base + slope · dl.

    >>> length_norm(average=4.0, k1=1.0, b=0.5)
    (0.5, 0.125)
    """
    return k1 * (1 - b), k1 * b / average if average else 0.0


def tf_part(tf: float, length: float, average: float, k1: float = DEFAULT_K1, b: float = DEFAULT_B) -> float:
    """Term frequency component, tf / (tf + k1 (1 − b + b · dl / avgdl)).

    >>> tf_part(tf=2, length=4, average=4.0, k1=1.0)
    0.6666666666666666
    """
    base, slope = length_norm(average, k1, b)
    return tf / (tf + base + slope * length)


@dataclass(frozen=True)
class Collection:
    """Collection statistics over all live documents: N, total length, and df by key.

    >>> one, two = (TokenVectors(np.array(ids, np.uint32)) for ids in ([3, 3, 5], [5]))
    >>> Collection.of([one, two])
    Collection(documents=2, total_length=4, frequencies={3: 1, 5: 2})
    """

    documents: int = 0
    total_length: int = 0
    frequencies: Mapping[int, int] = field(default_factory=dict)

    @classmethod
    def of(cls, texts: Iterable[TokenVectors]) -> Collection:
        """Count the statistics of these texts."""
        ids = [text.token_ids.tolist() for text in texts]
        frequencies = Counter(key for document in ids for key in sorted(set(document)))
        return cls(len(ids), sum(map(len, ids)), dict(frequencies))

    @property
    def average(self) -> float:
        """avgdl; 0 for an empty collection."""
        return self.total_length / self.documents if self.documents else 0.0


@dataclass(frozen=True, kw_only=True)
class Bm25Router(Router):
    """Query term → (term id, idf); document term → (term id, tf part).

    The index stores tf and computes the rest at search time.

    >>> text = TokenVectors(np.array([3, 3, 5], np.uint32))
    >>> router = Bm25Router(collection=Collection.of([text]), k1=1.0)
    >>> router.route_document(text).weights.round(2).tolist()
    [0.6700000166893005, 0.5]
    """

    name: ClassVar[str] = "bm25"
    uses_vectors: ClassVar[bool] = False

    collection: Collection = field(default_factory=Collection)
    k1: float = DEFAULT_K1
    b: float = DEFAULT_B

    def __post_init__(self) -> None:
        check_bm25(self.k1, self.b)

    def _query(self, text: TokenVectors) -> RoutedTokens:
        known, documents = self.collection.frequencies, self.collection.documents
        weights = [idf(documents, known.get(key, 0)) for key in text.token_ids.tolist()]  # [T]
        order = np.arange(len(text), dtype=np.uint32)
        return RoutedTokens(text.token_ids.astype(np.uint32), np.array(weights, np.float32), tokens=order)

    def _document(self, text: TokenVectors) -> RoutedTokens:
        keys, counts = np.unique(text.token_ids, return_counts=True)  # [P], [P]
        parts = [tf_part(tf, len(text), self.collection.average, self.k1, self.b) for tf in counts.tolist()]
        return RoutedTokens(keys.astype(np.uint32), np.array(parts, np.float32))
