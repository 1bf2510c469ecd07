"""The score of each router equals its textbook formula in plain Python."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from citadel.routing import Collection, get_router, score
from citadel.types import TokenVectors
from tests.oracle.texts import KEYS, texts

Text = Any  # a TokenVectors of which no part is None
TOLERANCE = 1e-6  # routed weights and unit vectors are fp32


def routed_score(name: str, query: Text, document: Text, **options: object) -> float | None:
    router = get_router(name, **options)
    return score(router.route_query(query), router.route_document(document), router.floor)


def dot(left: np.ndarray, right: np.ndarray) -> float:
    return math.fsum(float(a) * float(b) for a, b in zip(left, right, strict=True))


def close(actual: float | None, expected: float | None) -> bool:
    if actual is None or expected is None:
        return actual is expected
    return math.isclose(actual, expected, rel_tol=TOLERANCE, abs_tol=TOLERANCE)


# DPR


@given(texts(), texts())
def test_none_is_dpr(query: Text, document: Text) -> None:
    assert close(routed_score("none", query, document), dot(query.semantic, document.semantic))


# ColBERT


def cosine(left: np.ndarray, right: np.ndarray) -> float:
    length = math.sqrt(dot(left, left)) * math.sqrt(dot(right, right))
    return dot(left, right) / length if length else 0.0


def colbert(query: Text, document: Text) -> float | None:
    if not len(query) or not len(document):
        return None
    return math.fsum(max(cosine(q, d) for d in document.vectors) for q in query.vectors)


@given(texts(), texts())
def test_all_to_all_is_colbert(query: Text, document: Text) -> None:
    assert close(routed_score("all_to_all", query, document), colbert(query, document))


# COIL


def coil(query: Text, document: Text) -> float | None:
    total, matched = 0.0, False
    for key, q in zip(query.token_ids, query.vectors, strict=True):
        products = [
            dot(q, d) for other, d in zip(document.token_ids, document.vectors, strict=True) if other == key
        ]
        total += max(0.0, *products) if products else 0.0
        matched = matched or bool(products)
    return total if matched else None


@given(texts(), texts())
def test_static_without_semantic_is_coil_tok(query: Text, document: Text) -> None:
    assert close(routed_score("static", query, document, semantic=False), coil(query, document))


@given(texts(), texts())
def test_static_is_coil_full(query: Text, document: Text) -> None:
    expected = (coil(query, document) or 0.0) + dot(query.semantic, document.semantic)
    assert close(routed_score("static", query, document), expected)


# CITADEL


def top(phi: np.ndarray, limit: int) -> list[tuple[int, float]]:
    """The first `limit` keys by descending φ, then ascending key, with φ > 0."""
    ranked = sorted(((-float(weight), key) for key, weight in enumerate(phi)))[:limit]
    return [(key, -negated) for negated, key in ranked if negated < 0]


def citadel(query: Text, document: Text, K: int, L: int, tau: float) -> float | None:
    total, matched = 0.0, False
    for i in range(len(query)):
        for key, w_q in top(query.activations[i], K):
            products = [
                dot(w_q * query.vectors[i].astype(float), w_d * document.vectors[j].astype(float))
                for j in range(len(document))
                for other, w_d in top(document.activations[j], L)
                if other == key and w_d > tau
            ]
            total += max(0.0, *products) if products else 0.0
            matched = matched or bool(products)
    return total if matched else None


@given(texts(), texts(), st.integers(1, 3), st.integers(1, KEYS), st.sampled_from([0.0, 0.5, 1.0, 1.5]))
def test_dynamic_is_citadel(query: Text, document: Text, K: int, L: int, tau: float) -> None:
    actual = routed_score("dynamic", query, document, semantic=False, query_keys=K, document_keys=L, tau=tau)
    assert close(actual, citadel(query, document, K, L, tau))


@given(texts(), texts())
def test_dynamic_adds_the_semantic_part(query: Text, document: Text) -> None:
    expected = (citadel(query, document, 1, 5, 0.0) or 0.0) + dot(query.semantic, document.semantic)
    assert close(routed_score("dynamic", query, document), expected)


# SPLADE


def pooled(text: Text) -> list[float]:
    return [max((float(row[key]) for row in text.activations), default=0.0) for key in range(KEYS)]


def splade(query: Text, document: Text) -> float | None:
    pairs = [(q, d) for q, d in zip(pooled(query), pooled(document), strict=True) if q > 0 and d > 0]
    return sum(q * d for q, d in pairs) if pairs else None


@given(texts(), texts())
def test_sparse_is_splade(query: Text, document: Text) -> None:
    assert close(routed_score("sparse", query, document), splade(query, document))


# BM25


def lucene(
    query: list[int], document: list[int], collection: list[list[int]], k1: float, b: float
) -> float | None:
    counts, average = Counter(document), sum(map(len, collection)) / len(collection)
    total = 0.0
    for term in query:
        if tf := counts[term]:
            df = sum(term in other for other in collection)
            idf = math.log(1 + (len(collection) - df + 0.5) / (df + 0.5))
            total += idf * tf / (tf + k1 * (1 - b + b * len(document) / average))
    return total if set(query) & set(document) else None


ids = st.lists(st.integers(0, KEYS), max_size=8)


@given(
    ids,
    st.lists(ids, min_size=1, max_size=5),
    st.sampled_from([(0.9, 0.4), (1.2, 0.75), (0.0, 0.0), (2.0, 1.0)]),
)
def test_bm25_is_lucene(
    query: list[int], collection: list[list[int]], constants: tuple[float, float]
) -> None:
    k1, b = constants
    given_texts = [TokenVectors(np.array(text, np.uint32)) for text in collection]
    query_text = TokenVectors(np.array(query, np.uint32))
    counted = Collection.of(given_texts)
    for text, document in zip(collection, given_texts, strict=True):
        actual = routed_score("bm25", query_text, document, collection=counted, k1=k1, b=b)
        assert close(actual, lucene(query, text, collection, k1, b))


def test_close_distinguishes_a_missing_score() -> None:
    assert not close(None, 0.0)
    assert not close(1.0, 1.001)
    assert close(None, None)
