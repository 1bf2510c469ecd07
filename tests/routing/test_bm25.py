"""Components of BM25 on small examples."""

from __future__ import annotations

import math

import numpy as np
import pytest

from citadel.routing import Collection, get_router, idf, length_norm, rank, tf_part
from citadel.types import TokenVectors

THE, CAT, DOG, SAT = range(4)


def text(*ids: int) -> TokenVectors:
    return TokenVectors(np.array(ids, np.uint32))


DOCUMENTS = [text(THE, CAT, SAT), text(THE, DOG, SAT, SAT), text(THE, THE)]


def test_idf_decreases_with_frequency_and_stays_positive() -> None:
    assert idf(3, 1) == pytest.approx(math.log(1 + 2.5 / 1.5))
    assert idf(3, 3) == pytest.approx(math.log(1 + 0.5 / 3.5))
    assert idf(10**9, 10**9) > 0


def test_tf_part_at_average_length_is_tf_over_tf_plus_k1() -> None:
    assert tf_part(2, 4, 4.0, k1=1.0, b=0.5) == 2 / 3
    assert tf_part(2, 8, 4.0, k1=1.0, b=0.5) == 2 / 3.5  # twice as long: k1 · (0.5 + 0.5 · 2)
    assert tf_part(2, 8, 4.0, k1=1.0, b=0.0) == 2 / 3


def test_length_norm() -> None:
    base, slope = length_norm(4.0, k1=1.0, b=0.5)
    assert (base, slope) == (0.5, 0.125)
    assert length_norm(0.0, k1=1.0, b=0.5) == (0.5, 0.0)  # empty collection: no division by zero


def test_collection_statistics() -> None:
    collection = Collection.of(DOCUMENTS)
    assert (collection.documents, collection.total_length, collection.average) == (3, 9, 3.0)
    assert collection.frequencies == {THE: 3, CAT: 1, SAT: 2, DOG: 1}
    assert Collection().average == 0.0


def test_repeated_query_term_counts_twice() -> None:
    router = get_router("bm25", collection=Collection.of(DOCUMENTS))
    routed = [router.route_document(document) for document in DOCUMENTS]
    [(once, value)] = rank(router.route_query(text(CAT)), routed, router.floor, k=3)
    [(twice, double)] = rank(router.route_query(text(CAT, CAT)), routed, router.floor, k=3)
    assert (once, twice) == (0, 0)
    assert double == pytest.approx(2 * value)


def test_unknown_term_matches_nothing() -> None:
    router = get_router("bm25", collection=Collection.of(DOCUMENTS))
    routed = [router.route_document(document) for document in DOCUMENTS]
    assert rank(router.route_query(text(99)), routed, router.floor, k=3) == []
