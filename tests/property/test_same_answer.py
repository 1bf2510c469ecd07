"""Results do not depend on engine, instruction set, segments, threads or commits."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, seed, settings
from hypothesis import strategies as st

from citadel import _native
from tests.property.worlds import ROUTERS, World, answers, bare_options, built, plan, up_to_ties, worlds

NIGHT = os.environ.get("CITADEL_NIGHT") == "1"
SEED = int(os.environ.get("CITADEL_SEED", "0"))
EXAMPLES = settings(max_examples=150 if NIGHT else 60, deadline=None, print_blob=True)
EXACT = ("fp16", "int8")  # pq codes depend on the documents present when the codebook was trained


@pytest.fixture(autouse=True)
def restored_instruction_set() -> Iterator[None]:
    before = _native.instruction_set()
    yield
    _native.use_instruction_set(before)


@st.composite
def cuts(draw: st.DrawFn, world: World) -> list[list[dict]]:
    """Split the world's documents into one to four batches."""
    bounds = sorted(draw(st.lists(st.integers(0, world.count), max_size=3)))
    documents, borders = world.documents(), [0, *bounds, world.count]
    return [documents[start:stop] for start, stop in itertools.pairwise(borders) if stop > start]


@seed(SEED)
@settings(EXAMPLES, max_examples=1_000 if NIGHT else 300)
@given(st.data(), worlds(), st.sampled_from([0, 1, 3, 1000]))
def test_engines_and_instruction_sets_agree(data: st.DataObject, world: World, k: int) -> None:
    with built(world, data.draw(cuts(world))) as index:
        index.delete([f"d{n}" for n in data.draw(st.sets(st.integers(0, world.count), max_size=3))])
        index.commit()
        slow = answers(world, index, k, engine="reference")
        for name in _native.instruction_sets():
            _native.use_instruction_set(name)
            assert answers(world, index, k) == slow, name


@seed(SEED)
@EXAMPLES
@given(
    st.data(), worlds(("static", "dynamic"), semantics=("fp16", "int8")), st.integers(1, 6), st.integers(1, 6)
)
def test_engines_agree_with_few_candidates(
    data: st.DataObject, world: World, k: int, candidates: int
) -> None:
    """With few candidates the result of reranking depends on which they are."""
    with built(world, data.draw(cuts(world))) as index:
        fast, slow = index.searcher(threads=1)._engine, index.searcher(engine="reference")._engine
        for query in world.queries():
            query_plan = plan(index.searcher().snapshot, query)
            options = bare_options(k, "rerank", candidates)
            actual, expected = (engine.search(engine.prepare(query_plan), options) for engine in (fast, slow))
            assert actual.numbers.tolist() == expected.numbers.tolist()
            assert actual.scores.tobytes() == expected.scores.tobytes()


@seed(SEED)
@EXAMPLES
@given(st.data(), worlds(codecs=EXACT))
def test_segments_order_and_merge_do_not_change_results(data: st.DataObject, world: World) -> None:
    documents = world.documents()
    shuffled = data.draw(st.permutations(documents))
    parts = data.draw(cuts(world))
    with built(world, [documents]) as one, built(world, parts) as several, built(world, [shuffled]) as other:
        truth = answers(world, one)
        assert answers(world, several) == truth
        assert up_to_ties(answers(world, other)) == up_to_ties(truth)
        assert answers(world, several.merge()) == truth


@seed(SEED)
@EXAMPLES
@given(st.data(), worlds(codecs=EXACT))
def test_deleting_equals_never_adding(data: st.DataObject, world: World) -> None:
    deleted = data.draw(st.sets(st.integers(0, world.count - 1)))
    kept = [document for number, document in enumerate(world.documents()) if number not in deleted]
    with built(world, [kept]) as never, built(world, data.draw(cuts(world))) as index:
        assert index.delete([f"d{number}" for number in deleted]) == len(deleted)
        index.commit()
        truth = answers(world, never)
        assert len(index) == len(never) == len(kept)
        assert answers(world, index) == truth
        assert answers(world, index.merge()) == truth


@seed(SEED)
@EXAMPLES
@given(st.data(), worlds(codecs=EXACT))
def test_replacing_equals_deleting_and_adding(data: st.DataObject, world: World) -> None:
    changed = sorted(data.draw(st.sets(st.integers(0, world.count - 1), min_size=1)))
    fresh = [world.document(number, version=1) for number in changed]
    kept = [document for number, document in enumerate(world.documents()) if number not in changed]
    together = data.draw(st.booleans())
    batches = [[*world.documents(), *fresh]] if together else [world.documents(), fresh]
    with built(world, batches) as replaced, built(world, [[*kept, *fresh]]) as plain:
        assert len(replaced) == world.count
        assert answers(world, replaced) == answers(world, plain)


@seed(SEED)
@EXAMPLES
@given(st.data(), worlds(("static", "dynamic", "all_to_all"), ("pq2", "pq1")))
def test_merge_under_one_codebook_keeps_results(data: st.DataObject, world: World) -> None:
    first = [
        world.document(0) | {"keys": [0, 1], "vectors": np.eye(2, world.dimension), "weights": None},
        *world.documents()[1:3],
    ]
    with built(world, [first, *data.draw(cuts(world))]) as index:
        index.delete([f"d{n}" for n in data.draw(st.sets(st.integers(0, world.count), max_size=3))])
        before = answers(world, index.commit())
        assert set(index.stats()["codecs"]) <= {world.codec}
        assert answers(world, index.merge()) == before


@seed(SEED)
@EXAMPLES
@given(worlds(("dynamic",)), st.integers(1, 130))
def test_raising_tau_equals_building_with_it(world: World, steps: int) -> None:
    """pq worlds use int8 here, because the pruned index would train another codebook."""
    world = (
        world
        if world.codec in EXACT
        else World("dynamic", "int8", 8, world.semantic, world.seed, world.count)
    )
    tau = round(steps * 0.02, 2)
    with built(world, [world.documents()]) as index, built(world, [world.documents()], tau) as pruned:
        raised = answers(world, index, tau=tau)
        assert raised == answers(world, pruned)
        assert raised == answers(world, index, engine="reference", tau=tau)


@seed(SEED)
@EXAMPLES
@given(worlds(("static", "dynamic", "none"), semantics=("fp16", "int8")))
def test_reranking_all_candidates_is_exact(world: World) -> None:
    with built(world, [world.documents()]) as index:
        searcher = index.searcher()
        for query in world.queries():
            exact, rerank = (
                world.search(searcher, query, semantic_mode=mode) for mode in ("exact", "rerank")
            )
            assert (exact.ids, exact.scores) == (rerank.ids, rerank.scores)


@pytest.mark.parametrize("scale", [1e-44, 1e-38, 1e-20, 1e20, 1e34])
@pytest.mark.parametrize("codec", ["fp16", "int8", "pq2", "pq1"])
def test_engines_agree_on_extreme_magnitudes(codec: str, scale: float) -> None:
    """Down to the smallest fp32 numbers, for which quantisation steps become 0."""
    world = World("static", codec, 8, "int8" if codec == "int8" else "fp16", seed=SEED, count=20)
    with built(world, [world.documents()]) as index:
        for query in world.queries():
            small = {
                name: (np.asarray(query[name]) * scale).astype(np.float32) for name in ("vectors", "semantic")
            }
            slow = world.search(index.searcher(engine="reference"), query | small)
            for name in _native.instruction_sets():
                _native.use_instruction_set(name)
                fast = world.search(index.searcher(), query | small)
                assert (fast.ids, fast.scores) == (slow.ids, slow.scores), name


@pytest.mark.parametrize("router", ROUTERS)
def test_thread_count_does_not_change_results(router: str) -> None:
    world = World(router, "int8", 8, None if router in ("bm25", "none") else "int8", seed=SEED, count=200)
    with built(world, [world.documents()[:150], world.documents()[150:]]) as index:
        assert answers(world, index, 20, threads=2) == answers(world, index, 20, threads=1)


def test_batch_equals_single_searches() -> None:
    world = World("bm25", seed=SEED, count=60)
    with built(world, [world.documents()]) as index:
        searcher = index.searcher(threads=2)
        texts = [str(world.query(number)["query"]) for number in range(300)]
        ranking = searcher.search_batch(texts, k=7)
        assert ranking.query_ids[:3] == ("1", "2", "3")
        assert [[(h.id, h.score) for h in hits] for _, hits in ranking] == [
            [(hit.id, hit.score) for hit in searcher.search(text, k=7)] for text in texts
        ]


def test_document_that_spans_many_blocks() -> None:
    """A document has more postings than a block, so that its maximum spans blocks."""
    world = World("static", "int8", 4)
    random = np.random.default_rng(SEED)
    documents = [
        {"id": f"d{n}", "keys": np.zeros(size, int), "vectors": random.normal(size=(size, 4))}
        for n, size in enumerate([130, 1, 300, 127, 1, 128, 129])
    ]
    query = {"keys": [0, 0], "vectors": random.normal(size=(2, 4))}
    with built(world, [documents]) as index:
        fast, slow = (world.search(index.searcher(engine=name), query) for name in ("native", "reference"))
        assert (fast.ids, fast.scores) == (slow.ids, slow.scores)
        merged = world.search(index.merge().searcher(), query)
        assert (merged.ids, merged.scores) == (slow.ids, slow.scores)
