"""The score formula on small examples."""

from __future__ import annotations

import numpy as np
import pytest

from citadel.errors import InputError, UsageError
from citadel.routing import rank, score
from citadel.types import RoutedTokens


def routed(
    rows: list[tuple[int, float, list[float]]], semantic: list[float] | None = None, width: int = 2
) -> RoutedTokens:
    return RoutedTokens(
        np.array([key for key, _, _ in rows], np.uint32),
        np.array([weight for _, weight, _ in rows], np.float32),
        np.array([vector for _, _, vector in rows], np.float32).reshape(len(rows), width),
        None if semantic is None else np.array(semantic, np.float32),
    )


DOCUMENT = routed([(1, 2.0, [1, 0]), (1, 1.0, [0, 3]), (2, 1.0, [-1, 0])])


def test_best_weighted_product_under_a_key_counts() -> None:
    query = routed([(1, 0.5, [1, 1])])
    assert score(query, DOCUMENT, floor=False) == 1.5  # max(0.5 · 2 · 1, 0.5 · 1 · 3)


def test_every_query_row_adds_its_maximum() -> None:
    query = routed([(1, 1.0, [1, 0]), (1, 1.0, [0, 1])])
    assert score(query, DOCUMENT, floor=False) == 5.0  # 2 + 3


def test_token_with_several_keys_matches_under_each() -> None:
    query = routed([(1, 1.0, [1, 0]), (2, 1.0, [1, 0])])
    assert score(query, DOCUMENT, floor=False) == 1.0  # 2 - 1
    assert score(query, DOCUMENT, floor=True) == 2.0  # the floor acts on each row, before the sum


def test_floored_match_scores_zero_and_no_match_none() -> None:
    assert score(routed([(2, 1.0, [1, 0])]), DOCUMENT, floor=True) == 0.0
    assert score(routed([(3, 1.0, [1, 0])]), DOCUMENT, floor=True) is None
    assert score(routed([]), DOCUMENT, floor=True) is None


def test_semantic_part_is_added_without_a_floor() -> None:
    query, document = routed([(3, 1.0, [1, 0])], [1, 2]), routed([(1, 1.0, [1, 0])], [1, -1])
    assert score(query, document, floor=True) == -1.0


def test_semantic_vector_on_one_side_is_ignored() -> None:
    assert score(routed([], [1, 2]), DOCUMENT, floor=True) is None


def test_sums_are_exact_in_float64() -> None:
    query = routed([(1, 1.0, [33554432, 0]), (1, 1.0, [1, 0])])  # 2²⁵: fp32 would lose the 1
    assert score(query, routed([(1, 1.0, [1, 0])]), floor=False) == 33554433


def test_rank_orders_by_score_then_number() -> None:
    query = routed([(1, 1.0, [1, 0])])
    weak, strong, none = (routed([(key, 1.0, [value, 0])]) for key, value in ((1, 1), (1, 2), (9, 5)))
    documents = [weak, none, strong, weak]
    assert rank(query, documents, floor=True, k=9) == [(2, 2.0), (0, 1.0), (3, 1.0)]
    assert rank(query, documents, floor=True, k=2) == [(2, 2.0), (0, 1.0)]
    assert rank(query, documents, floor=True, k=0) == []
    assert rank(query, [], floor=True, k=3) == []


def test_rank_rejects_negative_k() -> None:
    with pytest.raises(UsageError, match="k is -1"):
        rank(DOCUMENT, [], floor=True, k=-1)


def test_mismatched_vectors_are_errors() -> None:
    bare = RoutedTokens(np.array([1], np.uint32), np.array([1], np.float32))
    with pytest.raises(UsageError, match="token vectors"):
        score(bare, DOCUMENT, floor=True)
    with pytest.raises(InputError, match="dimensions 3 and 2 do not match"):
        score(routed([(1, 1.0, [1, 0, 0])], width=3), DOCUMENT, floor=True)
