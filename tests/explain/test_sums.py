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


def check_parts(world: World, found: Explanation, score: float | None) -> None:
    """`score` is the engine's; None for a document that a search does not return."""
    assert found.score == score
    parts = [match.gain for match in found.matches] + ([found.semantic.gain] if found.semantic else [])
    if score is None:
        assert not any(match.met for match in found.matches) and found.semantic is None
        return
    size = math.fsum(map(abs, parts))
    assert math.fsum(parts) == pytest.approx(score, rel=1e-6, abs=1e-6 * size)
    shares = [match.share for match in found.matches] + ([found.semantic.share] if found.semantic else [])
    if score:
        assert math.fsum(share for share in shares if share is not None) * score == pytest.approx(
            score, rel=1e-6, abs=1e-6 * size
        )
    else:
        assert set(shares) <= {None}
    for match in found.matches:
        check_match(world, match)


def check_match(world: World, match: citadel.explain.Match) -> None:
    products = [posting.product for posting in match.postings]
    assert products == sorted(products, reverse=True)
    best = products[0] if products else 0.0
    floored = world.router in ("dynamic", "static")
    assert match.gain == (max(best, 0.0) if floored else best)


@seed(SEED)
@settings(max_examples=3000 if NIGHT else 120, deadline=None, print_blob=True)
@given(st.data(), worlds())
def test_the_parts_add_up_to_the_engines_score(data: st.DataObject, world: World) -> None:
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
@settings(max_examples=500 if NIGHT else 40, deadline=None, print_blob=True)
@given(worlds(("dynamic",)), st.integers(1, 130))
def test_a_raised_tau(world: World, steps: int) -> None:
    tau = round(steps * STEP, 2)
    with built(world, [world.documents()]) as index:
        searcher = index.searcher(threads=1)
        for query in world.queries():
            hits = world.search(searcher, query, tau=tau)
            scores = dict(zip(hits.ids, hits.scores, strict=True))
            for number in range(world.count):
                found = searcher.explain_vectors(f"d{number}", **query, tau=tau)
                assert found.tau == hits.tau
                check_parts(world, found, scores.get(f"d{number}"))
                weights = [posting.weight for match in found.matches for posting in match.postings]
                assert all(np.float32(weight) > np.float32(tau) for weight in weights)


@pytest.mark.parametrize("router", ROUTERS)
def test_a_long_list(router: str) -> None:
    """Lists of several blocks, where a document's postings may span two blocks."""
    world = World(router, "int8", 8, "int8" if router != "bm25" else None, SEED, count=400)
    with built(world, [world.documents()]) as index:
        searcher = index.searcher(threads=1)
        for query in world.queries():
            hits = world.search(searcher, query)
            scores = dict(zip(hits.ids, hits.scores, strict=True))
            for number in range(0, 400, 7):
                check_parts(world, explain(world, searcher, query, f"d{number}"), scores.get(f"d{number}"))
