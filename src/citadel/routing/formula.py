"""The score of any router, exact and slow. It is the oracle: every fast path must agree with it.

    s(q,d) = Σ_i Σ_{(k,w) ∈ ρ(q_i)}  agg_{ j : (k,w') ∈ ρ(d_j) }  w · w' · ⟨v_qi, v_dj⟩   +   ⟨c_q, c_d⟩

agg is the maximum, or max(0, ·) with the floor (Eq. 5). All arithmetic is float64; the sum is rounded once.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from citadel.errors import InputError, UsageError
from citadel.types import Floats, RoutedTokens


def score(query: RoutedTokens, document: RoutedTokens, floor: bool) -> float | None:
    """s(q,d), or None if no key matches and there is no semantic part.

    >>> one, two = np.array([1], np.uint32), np.array([2], np.uint32)
    >>> query = RoutedTokens(one, np.array([2.0], np.float32))
    >>> score(query, RoutedTokens(one, np.array([1.5], np.float32)), floor=False)
    3.0
    >>> score(query, RoutedTokens(two, np.array([1.5], np.float32)), floor=False) is None
    True
    """
    best = [products.max() for products in matches(query, document) if len(products)]
    parts = [max(0.0, value) for value in best] if floor else best
    if query.semantic is not None and document.semantic is not None:
        parts.append(dot(document.semantic[None], query.semantic)[0])
    return math.fsum(parts) if parts else None


def imputed_score(query: RoutedTokens, document: RoutedTokens, centroids: Floats) -> float | None:
    """The score of a query routed by `centroid`: the best match of each token, with missing ones imputed.

    A token that has no match under its keys adds the smallest product with their centroids [K, d]. Tokens
    under other centroids are at most about as near. None if no key matches.

    >>> two, eye = np.array([0, 1], np.uint32), np.eye(2, dtype=np.float32)
    >>> query = RoutedTokens(two, np.ones(2, np.float32), eye, tokens=two)
    >>> one = RoutedTokens(two[:1], np.ones(1, np.float32), np.array([[0.8, 0.0]], np.float32))
    >>> round(imputed_score(query, one, centroids=0.5 * eye), 6)
    1.3
    """
    assert query.tokens is not None
    assert query.vectors is not None
    products, parts, has_match = list(matches(query, document)), [], False
    for token in np.unique(query.tokens):
        rows = np.flatnonzero(query.tokens == token)
        own = [products[row].max() for row in rows if len(products[row])]
        has_match |= bool(own)
        bound = dot(centroids[query.keys[rows]], query.vectors[rows[0]]) * query.weights[rows]
        parts.append(max(own) if own else bound.min())
    return math.fsum(parts) if has_match else None


def rank(
    query: RoutedTokens, documents: Iterable[RoutedTokens], floor: bool, k: int
) -> list[tuple[int, float]]:
    """The k best (document number, score) pairs, best first; ties go to the lower number.

    >>> one = np.array([1], np.uint32)
    >>> light, heavy = (RoutedTokens(one, np.array([w], np.float32)) for w in (1, 2))
    >>> rank(light, [light, heavy, light], floor=False, k=2)
    [(1, 2.0), (0, 1.0)]
    """
    if k < 0:
        raise UsageError(f"k is {k}: give 0 or more")
    scores = [(number, score(query, document, floor)) for number, document in enumerate(documents)]
    scored = [(number, value) for number, value in scores if value is not None]
    return sorted(scored, key=lambda pair: (-pair[1], pair[0]))[:k]


def matches(query: RoutedTokens, document: RoutedTokens) -> Iterable[NDArray[np.float64]]:
    """Products w · w' · ⟨v, v'⟩ of each query row with the document rows under the same key."""
    for row, key in enumerate(query.keys):
        same = document.keys == key  # [P]
        weights = document.weights[same].astype(np.float64) * np.float64(query.weights[row])
        yield weights * inner(query, row, document, same)


def inner(
    query: RoutedTokens, row: int, document: RoutedTokens, mask: NDArray[np.bool_]
) -> NDArray[np.float64]:
    """⟨v, v'⟩ of one query row with the masked document rows; 1 if the router has no vectors."""
    if (query.vectors is None) != (document.vectors is None):
        raise UsageError("one side has token vectors and the other has none: route both with the same router")
    if query.vectors is None or document.vectors is None:
        return np.ones(int(mask.sum()), np.float64)
    return dot(document.vectors[mask], query.vectors[row])


def dot(rows: Floats, vector: Floats) -> NDArray[np.float64]:
    """Inner products in float64, where products of fp32 numbers are exact."""
    if rows.shape[-1] != len(vector):
        raise InputError(
            f"vectors of dimensions {len(vector)} and {rows.shape[-1]} do not match: use one model for both"
        )
    products: NDArray[np.float64] = rows.astype(np.float64) @ vector.astype(np.float64)
    return products
