"""The index ranks by the formula (citadel.routing.formula), up to the precision of the codec."""

from __future__ import annotations

import os
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, seed, settings
from hypothesis import strategies as st

from citadel.routing import Bm25Router, Collection, get_router, rank
from citadel.text.analyser import get_analyser
from citadel.types import RoutedTokens, TokenVectors
from tests.property.worlds import WORDS, World, built, worlds

NIGHT = os.environ.get("CITADEL_NIGHT") == "1"
SEED = int(os.environ.get("CITADEL_SEED", "0"))
EXAMPLES = settings(max_examples=250 if NIGHT else 60, deadline=None, print_blob=True)
ENGINES = st.sampled_from(["native", "reference"])


@seed(SEED)
@EXAMPLES
@given(worlds(("static", "dynamic", "all_to_all", "sparse"), ("fp16",), (None, "fp16")), ENGINES)
def test_fp16_scores_agree_with_the_formula(world: World, engine: str) -> None:
    """Scores are within 1e-3 of the sum of absolute parts, because the parts themselves may cancel."""
    floor = get_router(world.router).floor
    documents = [world.routed(document) for document in world.documents()]
    sizes = [absolute(document) for document in documents]
    with built(world, [world.documents()]) as index:
        searcher = index.searcher(engine=engine)
        for query in world.queries():
            hits = world.search(searcher, query)
            expected = {f"d{n}": value for n, value in rank(world.routed(query), documents, floor, k=1000)}
            assert set(hits.ids) == set(expected)
            largest = {
                f"d{n}": value for n, value in rank(absolute(world.routed(query)), sizes, floor, k=1000)
            }
            for id, score in zip(hits.ids, hits.scores, strict=True):
                assert abs(score - expected[id]) <= 1e-3 * largest[id], (id, score, expected[id])


def absolute(text: RoutedTokens) -> RoutedTokens:
    """The same text with absolute values, whose score bounds the parts of the true score."""
    vectors, semantic = (None if part is None else np.abs(part) for part in (text.vectors, text.semantic))
    return replace(text, vectors=vectors, semantic=semantic)


@pytest.mark.parametrize("engine", ["native", "reference"])
@pytest.mark.parametrize("router", ["static", "dynamic", "all_to_all"])
def test_int8_agrees_on_the_top_100(router: str, engine: str) -> None:
    world = World(router, "int8", 32, "int8", seed=SEED, count=500)
    documents, floor = [world.routed(document) for document in world.documents()], get_router(router).floor
    overlaps = []
    with built(world, [world.documents()]) as index:
        for number in range(20):
            query = world.query(number)
            hits = world.search(index.searcher(engine=engine), query, k=100).ids
            expected = [f"d{n}" for n, _ in rank(world.routed(query), documents, floor, k=100)]
            overlaps.append(len(set(hits) & set(expected)) / len(expected))
    assert np.mean(overlaps) >= 0.99


def token_ids(text: str) -> TokenVectors:
    """Terms of a text as indices into WORDS; an unknown term has the index after the last."""
    terms = get_analyser("plain").terms(text)
    return TokenVectors(np.array([WORDS.index(t) if t in WORDS else len(WORDS) for t in terms], np.uint32))


@seed(SEED)
@EXAMPLES
@given(worlds(("bm25",)), ENGINES)
def test_bm25_scores_agree_with_the_formula(world: World, engine: str) -> None:
    texts = [token_ids(document["text"]) for document in world.documents()]
    router = Bm25Router(collection=Collection.of(texts))
    documents = [router.route_document(text) for text in texts]
    with built(world, [world.documents()]) as index:
        searcher = index.searcher(engine=engine)
        for query in world.queries():
            hits = world.search(searcher, query)
            expected = {
                f"d{n}": v
                for n, v in rank(router.route_query(token_ids(query["query"])), documents, False, 1000)
            }
            assert set(hits.ids) == set(expected)
            np.testing.assert_allclose(hits.scores, [expected[id] for id in hits.ids], rtol=1e-5)
            assert hits.scores == sorted(hits.scores, reverse=True)
