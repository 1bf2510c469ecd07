"""Compare the GPU engine, run on a CPU, with the numpy engine: scores must be bit-equal."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any
from unittest import mock

import numpy as np

import citadel
from citadel.search.gpu.device import use_triton
from citadel.search.gpu.device_engine import DeviceEngine
from citadel.search.gpu.engine import GpuEngine
from citadel.search.plan import Options, plan_vectors
from citadel.search.reference import ReferenceEngine
from tests.property.worlds import World, built

FLOOR = ("static", "dynamic")


def engines(index: citadel.Index, router: str, width: int = 256) -> tuple[ReferenceEngine, GpuEngine]:
    snapshot, floor = index.searcher(engine="reference").snapshot, router in FLOOR
    fast = GpuEngine(snapshot, floor, "cpu", width)
    use_small_blocks(fast.engines, floor)
    return ReferenceEngine(snapshot, floor, (0, 0)), fast


def use_small_blocks(engines: Sequence[DeviceEngine], floor: bool) -> None:
    """Make lists and ranges span several blocks of the kernels."""
    for engine in engines:
        if use_triton(engine.index.device):
            from citadel.search.gpu.triton_search import TritonSearch

            engine.kernels = TritonSearch(engine.index, floor, postings=4, tile=8)


def answers(
    engine: Any,
    index: citadel.Index,
    queries: Sequence[dict[str, Any]],
    options: Options,
    allowed: Any = None,
) -> list[Any]:
    plans = [
        plan_vectors(index.settings, *map(query.get, ("keys", "weights", "vectors", "semantic")))
        for query in queries
    ]
    results = engine.search_batch([engine.prepare(plan) for plan in plans], options, None, allowed)
    return [(scored.numbers.tolist(), scored.scores.tolist()) for scored in results]


def check(
    world: World, options: Options, cuts: Sequence[int] = (), deleted: Sequence[int] = (), width: int = 256
) -> None:
    """Build the world with one commit per part, delete documents, and compare both engines."""
    borders, documents = [0, *cuts, world.count], world.documents()
    parts = [documents[start:stop] for start, stop in itertools.pairwise(borders)]
    with built(world, parts) as index:
        index.delete([f"d{number}" for number in deleted])
        index.commit()
        compare(index, world, options, width)


def check_mixed(world: World, options: Options) -> None:
    """Like `check`, for an index whose first segment predates its codebook: int8, then pq."""
    documents = world.documents()
    with built(world, []) as index:
        for floor, part in ((1 << 16, documents[:5]), (1, documents[5:])):
            with mock.patch("citadel.index.spill.SAMPLE_FLOOR", floor):
                world.add(index, part)
                index.commit()
        compare(index, world, options, 256, ["int8", world.codec])


def compare(
    index: citadel.Index, world: World, options: Options, width: int, codecs: Sequence[str] | None = None
) -> None:
    slow, fast = engines(index, world.router, width)
    if codecs is not None:
        assert [own.rows.codec for own in fast.engines[0].index.lists if own is not None] == codecs
    queries = [world.query(number) for number in range(4)]
    expected = answers(slow, index, queries, options)
    for count in (4, 3, 4, 1):  # later ones reuse the workspace of the first
        assert answers(fast, index, queries[:count], options) == expected[:count], (world, options)
    compare_filtered(index, world, options, slow, fast)


def compare_filtered(
    index: citadel.Index, world: World, options: Options, slow: ReferenceEngine, fast: GpuEngine
) -> None:
    """Allow every third document; `rerank` with a filter is exact on a GPU."""
    segments = index.searcher(engine="reference").snapshot.segments
    masks = [np.arange(segment.documents) % 3 == 1 for segment in segments]
    exact = options._replace(semantic="exact" if options.semantic == "rerank" else options.semantic)
    queries = [world.query(number) for number in range(2)]
    expected = answers(slow, index, queries, exact, slow.prepare_filter(masks))
    allowed = fast.prepare_filter(masks)
    use_small_blocks(allowed.engines, world.router in FLOOR)
    assert answers(fast, index, queries, options, allowed) == expected, (world, options)
