"""Whether the GPU's engine, run on a CPU, answers as the numpy one does: scores to the last bit."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import citadel
from citadel.search.card.device import use_triton
from citadel.search.gpu import GpuEngine
from citadel.search.plan import Options, plan_vectors
from citadel.search.reference import ReferenceEngine
from tests.property.worlds import World, built

FLOOR = ("static", "dynamic")


def engines(index: citadel.Index, router: str, width: int = 256) -> tuple[ReferenceEngine, GpuEngine]:
    snapshot, floor = index.searcher(engine="reference").snapshot, router in FLOOR
    fast = GpuEngine(snapshot, floor, "cpu", width)
    [engine] = fast.cards
    if use_triton(engine.card.device):
        from citadel.search.card.fused import FusedSearch

        engine.kernels = FusedSearch(engine.card, floor, postings=4, swept=8)  # small, so that everything spans blocks
    return ReferenceEngine(snapshot, floor, (0, 0)), fast


def answers(engine: Any, index: citadel.Index, queries: Sequence[dict[str, Any]], options: Options) -> list[Any]:
    plans = [
        plan_vectors(index.settings, *map(query.get, ("keys", "weights", "vectors", "semantic"))) for query in queries
    ]
    found = engine.search_batch([engine.prepare(plan) for plan in plans], options)
    return [(scored.numbers.tolist(), scored.scores.tolist()) for scored in found]


def check(world: World, options: Options, cuts: Sequence[int] = (), gone: Sequence[int] = (), width: int = 256) -> None:
    """Build the world in one commit a part, delete some, and compare both engines' answers to its queries."""
    borders, documents = [0, *cuts, world.count], world.documents()
    parts = [documents[start:stop] for start, stop in itertools.pairwise(borders)]
    with built(world, parts) as index:
        index.delete([f"d{number}" for number in gone])
        index.commit()
        slow, fast = engines(index, world.router, width)
        queries = [world.query(number) for number in range(4)]
        wanted = answers(slow, index, queries, options)
        for count in (4, 3, 4):  # the others in the room that the first has left
            assert answers(fast, index, queries[:count], options) == wanted[:count], (world, options)
