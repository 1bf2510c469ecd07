"""The torch search compared with the scoring formula, for every router, with ties by lower number."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from citadel.routing.formula import rank, score
from citadel.types import RoutedTokens

torch = pytest.importorskip("torch", reason="torch is not installed: `pip install citadel-ir[train]`")
from citadel.bench import exact  # noqa: E402
from citadel.bench.exact import BLOCK, ExactSearch, best, flatten  # noqa: E402

KEYS = 4
WIDTH = 3


@st.composite
def texts(draw: st.DrawFn, vectors: bool, semantic: bool, min_size: int = 0) -> RoutedTokens:
    """Texts of small integers, so that many scores are tied and sums are exact."""
    size = draw(st.integers(min_size, 5))
    numbers = st.integers(-3, 3)
    keys = draw(
        st.lists(st.integers(0, KEYS - 1), min_size=size, max_size=size, unique=not vectors and size <= KEYS)
    )
    weights = draw(st.lists(st.integers(1, 3), min_size=size, max_size=size))
    rows = draw(st.lists(st.tuples(*[numbers] * WIDTH), min_size=size, max_size=size))
    pooled = draw(st.tuples(*[numbers] * WIDTH))
    return RoutedTokens(
        np.array(keys, np.uint32),
        np.array(weights, np.float32),
        np.array(rows, np.float32).reshape(size, WIDTH) if vectors else None,
        np.array(pooled, np.float32) if semantic else None,
    )


@st.composite
def worlds(draw: st.DrawFn) -> tuple[list[RoutedTokens], list[RoutedTokens], bool]:
    vectors, semantic, floor = draw(st.booleans()), draw(st.booleans()), draw(st.booleans())
    text = texts(vectors, semantic)
    return draw(st.lists(text, min_size=1, max_size=3)), draw(st.lists(text, min_size=1, max_size=9)), floor


@given(worlds(), st.integers(1, 12), st.sampled_from([1, 4, 1 << 20]))
def test_ranking_equals_the_formula(
    world: tuple[list[RoutedTokens], list[RoutedTokens], bool], k: int, max_products: int
) -> None:
    queries, passages, floor = world
    before, exact.MAX_PRODUCTS = exact.MAX_PRODUCTS, max_products  # also in pieces
    try:
        search = ExactSearch(flatten(passages, torch.float64), floor)
        scores, numbers = search.search(flatten(queries, torch.float64), k)
    finally:
        exact.MAX_PRODUCTS = before
    for row, query in enumerate(queries):
        expected = rank(query, passages, floor, k)
        actual = [(n, s) for n, s in zip(numbers[row].tolist(), scores[row].tolist(), strict=True) if n >= 0]
        assert actual == expected


def test_scores_of_all_to_all_and_none_equal_the_formula() -> None:
    """ColBERT has one key for all tokens and no floor; DPR has no keys."""
    rng = np.random.default_rng(1)

    def text(tokens: int) -> RoutedTokens:
        zero = np.zeros(tokens, np.uint32)
        rows = rng.normal(size=(tokens, 2)).astype(np.float32)
        return RoutedTokens(zero, np.ones(tokens, np.float32), rows, rng.normal(size=2).astype(np.float32))

    queries, passages = [text(3), text(1)], [text(4), text(2), text(5)]
    scores = ExactSearch(flatten(passages, torch.float64), floor=False).scores(
        flatten(queries, torch.float64)
    )
    for row, query in enumerate(queries):
        for column, passage in enumerate(passages):
            assert scores[row, column].item() == pytest.approx(score(query, passage, floor=False), abs=1e-12)
    dense = [
        RoutedTokens(np.empty(0, np.uint32), np.empty(0, np.float32), semantic=t.semantic) for t in passages
    ]
    dense_scores = ExactSearch(flatten(dense, torch.float64), floor=False).scores(
        flatten(dense[:1], torch.float64)
    )
    assert dense_scores[0, 1].item() == pytest.approx(score(dense[0], dense[1], floor=False), abs=1e-12)


@given(st.lists(st.integers(0, 3), min_size=1, max_size=3 * BLOCK), st.integers(1, 40))
def test_best_of_many_blocks_with_ties(values: list[int], k: int) -> None:
    width = -(-len(values) // BLOCK) * BLOCK
    row = torch.tensor([values + [-np.inf] * (width - len(values))], dtype=torch.float64)
    _, numbers = best(row, k, len(values))
    assert numbers[0].tolist() == sorted(range(len(values)), key=lambda n: (-values[n], n))[:k]
