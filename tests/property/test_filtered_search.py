"""A filtered search returns the best k of the matching documents: every router, codec, mode and engine."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, seed
from hypothesis import strategies as st

import citadel
from citadel import _native
from citadel.filter.match import matches
from citadel.filter.parse import parse_filter
from tests.property.test_same_answer import EXAMPLES, SEED, cuts, restored_instruction_set  # noqa: F401
from tests.property.worlds import World, answers, bare_options, built, plan, worlds

FILTERS: tuple[dict[str, Any], ...] = (
    {},
    {"number": {"$gte": 3}},
    {"number": {"$in": [1, 5]}, "parity": "even"},
    {"$or": [{"number": 0}, {"tags": {"$contains": "b"}}]},
    {"$not": {"parity": "odd"}},
    {"tags": {"$not_contains": "a"}},
    {"missing": {"$exists": True}},
    {"missing": {"$ne": "x"}},
)


def metadata(number: int) -> dict[str, Any]:
    values: dict[str, Any] = {"number": number % 7, "tags": ["a", "b", "c"][: number % 4]}
    return values | ({} if number % 5 == 0 else {"parity": "even" if number % 2 == 0 else "odd"})


def with_metadata(batches: list[list[dict[str, Any]]]) -> list[list[dict[str, Any]]]:
    return [[document | metadata(int(document["id"][1:])) for document in batch] for batch in batches]


def filtered(answer: list[tuple[list[str], list[float]]], filter: dict[str, Any], k: int) -> list[Any]:
    """The matching hits of complete rankings."""
    kept = parse_filter(filter)
    pairs = ([(id, score) for id, score in zip(*hits, strict=True)] for hits in answer)
    return [[(id, score) for id, score in hits if matches(kept, metadata(int(id[1:])))][:k] for hits in pairs]


@seed(SEED)
@EXAMPLES
@given(st.data(), worlds(), st.sampled_from(FILTERS), st.sampled_from([0, 1, 3, 1000]))
def test_filtering_equals_ranking_then_filtering(
    data: st.DataObject, world: World, filter: dict[str, Any], k: int
) -> None:
    """With 1,000 candidates `rerank` ranks every document here, so it is exact too."""
    with built(world, with_metadata(data.draw(cuts(world)))) as index:
        index.delete([f"d{n}" for n in data.draw(st.sets(st.integers(0, world.count), max_size=3))])
        index.commit()
        expected = filtered(answers(world, index, engine="reference"), filter, k)
        assert pairs(answers(world, index, k, engine="reference", filter=filter)) == expected
        for name in _native.instruction_sets():
            _native.use_instruction_set(name)
            assert pairs(answers(world, index, k, filter=filter)) == expected, name
        assert pairs(answers(world, index.merge(), k, filter=filter)) == expected


def pairs(answer: list[tuple[list[str], list[float]]]) -> list[Any]:
    return [list(zip(*hits, strict=True)) for hits in answer]


@seed(SEED)
@EXAMPLES
@given(
    st.data(),
    worlds(("static", "dynamic"), semantics=("fp16", "int8")),
    st.sampled_from(FILTERS),
    st.integers(1, 6),
    st.integers(1, 6),
)
def test_engines_count_candidates_over_allowed_documents(
    data: st.DataObject, world: World, filter: dict[str, Any], k: int, candidates: int
) -> None:
    with built(world, with_metadata(data.draw(cuts(world)))) as index:
        index.delete([f"d{n}" for n in data.draw(st.sets(st.integers(0, world.count), max_size=3))])
        index.commit()
        snapshot = index.searcher().snapshot
        masks = snapshot.allowed(parse_filter(filter))
        engines = [index.searcher(threads=1, engine=name)._engine for name in ("native", "reference")]
        for query in world.queries():
            results = [
                engine.search(
                    engine.prepare(plan(snapshot, query)),
                    bare_options(k, "rerank", candidates),
                    None,
                    engine.prepare_filter(masks),
                )
                for engine in engines
            ]
            assert results[0].numbers.tolist() == results[1].numbers.tolist()
            assert results[0].scores.tobytes() == results[1].scores.tobytes()


@pytest.mark.parametrize("router", ["bm25", "dynamic", "none"])
def test_few_allowed_documents_among_many(router: str) -> None:
    """One document in 500 takes the path that scores only the postings of allowed documents."""
    world = World(router, "int8", 8, None if router in ("bm25", "none") else "int8", seed=SEED, count=2000)
    documents = [document | {"n": number} for number, document in enumerate(world.documents())]
    with built(world, [documents[:1500], documents[1500:]]) as index:
        chosen = sorted({7, 300, 301, 1499, 1500, 1999} | set(range(600, 620)))
        every = answers(world, index, 2000, engine="reference")
        found = answers(world, index, 10, filter={"n": {"$in": chosen}})
        wanted = {f"d{n}" for n in chosen}
        for (ids, scores), hits in zip(every, found, strict=True):
            kept = [(id, score) for id, score in zip(ids, scores, strict=True) if id in wanted][:10]
            assert list(zip(*hits, strict=True)) == kept


@pytest.mark.parametrize("mode", ["exact", "off", "rerank"])
def test_gpu_engine_filters_like_the_reference(mode: str) -> None:
    """In plain torch on the CPU; a filtered `rerank` on a GPU is exact."""
    pytest.importorskip("torch")
    world = World("dynamic", "int8", 8, "int8", seed=SEED, count=60)
    documents = with_metadata([world.documents()])[0]
    with built(world, [documents[:40], documents[40:]]) as index:
        index.delete(["d3", "d41"])
        index.commit()
        gpu, slow = index.searcher(engine="gpu", device="cpu"), index.searcher(engine="reference")
        for filter in FILTERS:
            for query in world.queries():
                options: dict[str, Any] = {"k": 5, "filter": filter}
                one = gpu.search_vectors(**query, semantic_mode=mode, **options)
                same = "exact" if mode == "rerank" else mode
                two = slow.search_vectors(**query, semantic_mode=same, **options)
                assert one.ids == two.ids
                assert np.allclose(one.scores, two.scores)


def test_batch_takes_a_filter() -> None:
    world = World("bm25", seed=SEED, count=60)
    with built(world, with_metadata([world.documents()])) as index:
        searcher = index.searcher()
        queries = [str(query["query"]) for query in world.queries()]
        ranking = searcher.search_batch(queries, k=5, filter={"parity": "even"})
        alone = [searcher.search(query, k=5, filter={"parity": "even"}) for query in queries]
        assert [hits.ids for hits in alone] == [[hit.id for hit in hits] for _, hits in ranking]
        with pytest.raises(citadel.FilterError, match="parity"):
            searcher.search(queries[0], filter={"parity": {"$gt": 3}})
