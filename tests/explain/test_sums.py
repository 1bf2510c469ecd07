"""The gains of an explanation add up to the engine's score, for every router, codec and semantic mode."""

from __future__ import annotations

import math
import os
from typing import Any

import numpy as np
import pytest
from hypothesis import given, seed, settings
from hypothesis import strategies as st

import citadel
from citadel.explain import Explanation
from citadel.search.searcher import Searcher
from tests.property.worlds import ROUTERS, STEP, World, built, worlds

NIGHT = os.environ.get("CITADEL_NIGHT") == "1"
SEED = int(os.environ.get("CITADEL_SEED", "0"))


def explain(world: World, searcher: Searcher, query: dict[str, Any], id: str, **options: Any) -> Explanation:
    if world.router == "bm25":
        return searcher.explain(query["query"], id)
    return searcher.explain_vectors(id, **query, **options)


def check_parts(world: World, explanation: Explanation, score: float | None) -> None:
    """Compare with the engine's score, which is None for a document that a search does not return."""
    assert explanation.score == score
    parts = [match.gain for match in explanation.matches] + (
        [explanation.semantic.gain] if explanation.semantic else []
    )
    if score is None:
        assert not any(match.is_matched for match in explanation.matches) and explanation.semantic is None
        return
    scale = math.fsum(map(abs, parts))
    assert math.fsum(parts) == pytest.approx(score, rel=1e-6, abs=1e-6 * scale)
    shares = [match.share for match in explanation.matches] + (
        [explanation.semantic.share] if explanation.semantic else []
    )
    if score:
        assert math.fsum(share for share in shares if share is not None) * score == pytest.approx(
            score, rel=1e-6, abs=1e-6 * scale
        )
    else:
        assert set(shares) <= {None}
    for match in explanation.matches:
        check_match(world, match)


def check_match(world: World, match: citadel.explain.Match) -> None:
    products = [posting.product for posting in match.postings]
    assert products == sorted(products, reverse=True)
    best = products[0] if products else 0.0
    floored = world.router in ("dynamic", "static")
    assert match.gain == (max(best, 0.0) if floored else best)


@seed(SEED)
@settings(max_examples=500 if NIGHT else 120, deadline=None, print_blob=True)
@given(st.data(), worlds())
def test_gains_add_up_to_the_engine_score(data: st.DataObject, world: World) -> None:
    cut = data.draw(st.integers(0, world.count))
    batches = [batch for batch in (world.documents()[:cut], world.documents()[cut:]) if batch]
    with built(world, batches) as index:
        index.delete([f"d{n}" for n in data.draw(st.sets(st.integers(0, world.count - 1), max_size=2))])
        searcher = index.commit().searcher(threads=1)
        for query in world.queries():
            for mode in world.modes:
                options: dict[str, Any] = {} if world.router == "bm25" else {"semantic_mode": mode}
                hits = world.search(searcher, query, **options)
                scores = dict(zip(hits.ids, hits.scores, strict=True))
                for number in range(world.count):
                    if (id := f"d{number}") in index:
                        check_parts(world, explain(world, searcher, query, id, **options), scores.get(id))


@seed(SEED)
@settings(max_examples=150 if NIGHT else 40, deadline=None, print_blob=True)
@given(worlds(("dynamic",)), st.integers(1, 130))
def test_gains_add_up_at_a_raised_tau(world: World, steps: int) -> None:
    tau = round(steps * STEP, 2)
    with built(world, [world.documents()]) as index:
        searcher = index.searcher(threads=1)
        for query in world.queries():
            hits = world.search(searcher, query, tau=tau)
            scores = dict(zip(hits.ids, hits.scores, strict=True))
            for number in range(world.count):
                explanation = searcher.explain_vectors(f"d{number}", **query, tau=tau)
                assert explanation.tau == hits.tau
                check_parts(world, explanation, scores.get(f"d{number}"))
                weights = [posting.weight for match in explanation.matches for posting in match.postings]
                assert all(np.float32(weight) > np.float32(tau) for weight in weights)


@pytest.mark.parametrize("router", ROUTERS)
def test_gains_add_up_in_lists_of_several_blocks(router: str) -> None:
    """A document's postings may span two blocks."""
    world = World(router, "int8", 8, "int8" if router != "bm25" else None, SEED, count=400)
    with built(world, [world.documents()]) as index:
        searcher = index.searcher(threads=1)
        for query in world.queries():
            hits = world.search(searcher, query)
            scores = dict(zip(hits.ids, hits.scores, strict=True))
            for number in range(0, 400, 7):
                check_parts(world, explain(world, searcher, query, f"d{number}"), scores.get(f"d{number}"))
