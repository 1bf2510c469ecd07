"""A filtered search returns the best k of the matching documents: every router, codec, mode and engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, seed, settings
from hypothesis import strategies as st

import citadel
from citadel import _native
from citadel.filter.match import matches
from citadel.filter.parse import parse_filter
from tests.property.test_same_answer import EXACT, EXAMPLES, NIGHT, SEED, cuts, restored_instruction_set  # noqa: F401
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
filters = st.one_of(
    st.sampled_from(FILTERS),
    st.builds(
        lambda numbers, is_negated: {"order": {"$nin" if is_negated else "$in": numbers}},
        st.lists(st.integers(0, 24), max_size=6),
        st.booleans(),
    ),
)


def metadata(number: int) -> dict[str, Any]:
    values: dict[str, Any] = {"number": number % 7, "order": number, "tags": ["a", "b", "c"][: number % 4]}
    return values | ({} if number % 5 == 0 else {"parity": "even" if number % 2 == 0 else "odd"})


def with_metadata(batches: list[list[dict[str, Any]]]) -> list[list[dict[str, Any]]]:
    return [[document | metadata(int(document["id"][1:])) for document in batch] for batch in batches]


def filtered(answer: list[tuple[list[str], list[float]]], filter: dict[str, Any], k: int) -> list[Any]:
    """The matching hits of complete rankings."""
    kept = parse_filter(filter)
    pairs = ([(id, score) for id, score in zip(*hits, strict=True)] for hits in answer)
    return [[(id, score) for id, score in hits if matches(kept, metadata(int(id[1:])))][:k] for hits in pairs]


@st.composite
def scenes(draw: st.DrawFn, /, **options: Any) -> Scene:
    world = draw(worlds(**options))
    deleted = draw(st.sets(st.integers(0, world.count), max_size=3))
    tau = draw(st.sampled_from([None, 0.5, 1.5])) if world.router == "dynamic" else None
    return Scene(world, with_metadata(draw(cuts(world))), deleted, draw(filters), tau)


@dataclass(frozen=True)
class Scene:
    """An index, deletions, a filter and a τ raised at search time."""

    world: World
    batches: list[list[dict[str, Any]]]
    deleted: set[int]
    filter: dict[str, Any]
    tau: float | None

    @property
    def options(self) -> dict[str, Any]:
        return {} if self.tau is None else {"tau": self.tau}

    @contextmanager
    def index(self) -> Iterator[citadel.Index]:
        with built(self.world, self.batches, None if self.tau is None else 0.1) as index:
            index.delete([f"d{number}" for number in self.deleted])
            yield index.commit()


COUNTS = (
    pytest.param(40, id="40"),
    pytest.param(500, id="500", marks=pytest.mark.slow),
    pytest.param(1_000, id="1000", marks=pytest.mark.night),
)


def for_all(*strategies: st.SearchStrategy[Any]) -> Callable[[Callable[..., None]], Any]:
    """Check a property with few examples in the quick tests, and with many in the others."""

    def decorate(check: Callable[..., None]) -> Any:
        def test(count: int) -> None:
            seed(SEED)(settings(EXAMPLES, max_examples=count)(given(*strategies)(check)))()

        return pytest.mark.parametrize("count", COUNTS)(test)

    return decorate


@for_all(scenes(), st.sampled_from([0, 1, 3, -1, -2, 1000]))
def test_filtering_equals_ranking_then_filtering(scene: Scene, k: int) -> None:
    """With 1,000 candidates `rerank` ranks every document here, so it is exact too."""
    world, filter = scene.world, scene.filter
    k = k if k >= 0 else world.count - 1 - k  # also as many documents as there are, and one more
    with scene.index() as index:
        everything = answers(world, index, engine="reference", **scene.options)
        expected = filtered(everything, filter, k)
        options = scene.options | {"filter": filter}
        assert pairs(answers(world, index, k, engine="reference", **options)) == expected
        for name in _native.instruction_sets():
            _native.use_instruction_set(name)
            assert pairs(answers(world, index, k, **options)) == expected, name
        assert pairs(answers(world, index, k, threads=3, **options)) == expected
        assert batch_pairs(scene, index, k) == expected
        assert pairs(answers(world, index.merge(), k, **options)) == expected


def batch_pairs(scene: Scene, index: citadel.Index, k: int) -> list[Any]:
    """The same searches as batches, in the order of `answers`."""
    world, searcher = scene.world, index.searcher(threads=3)
    if world.router == "bm25":
        texts = {str(n): query["query"] for n, query in enumerate(world.queries())}
        ranking = searcher.search_batch(texts, k, filter=scene.filter)
        return [[(hit.id, hit.score) for hit in hits] for _, hits in ranking]
    queries = {str(number): query for number, query in enumerate(world.queries())}
    modes = [
        [hits for _, hits in searcher.search_vectors_batch(
            queries, k, semantic_mode=mode, filter=scene.filter, **scene.options
        )]
        for mode in world.modes
    ]  # fmt: skip
    by_query = [hits for column in zip(*modes, strict=True) for hits in column]
    return [[(hit.id, hit.score) for hit in hits] for hits in by_query]


def pairs(answer: list[tuple[list[str], list[float]]]) -> list[Any]:
    return [list(zip(*hits, strict=True)) for hits in answer]


@for_all(scenes(routers=("static", "dynamic", "all_to_all", "none", "sparse"), codecs=EXACT))
def test_filtering_equals_an_index_of_the_matching_documents(scene: Scene) -> None:
    """Scores of vectors do not depend on the other documents of an index."""
    kept = parse_filter(scene.filter)
    chosen = [
        document
        for batch in scene.batches
        for document in batch
        if matches(kept, metadata(number_of(document))) and number_of(document) not in scene.deleted
    ]
    tau = None if scene.tau is None else 0.1
    with scene.index() as index, built(scene.world, [chosen] if chosen else [], tau) as small:
        options = scene.options
        assert answers(scene.world, index, filter=scene.filter, **options) == answers(
            scene.world, small, **options
        )


def number_of(document: dict[str, Any]) -> int:
    return int(document["id"][1:])


@for_all(
    scenes(routers=("static", "dynamic", "none"), semantics=("fp16", "int8")),
    st.integers(0, 6),
    st.integers(1, 6),
    st.sampled_from([0, 40]),
)
def test_engines_count_candidates_over_allowed_documents(
    scene: Scene, k: int, candidates: int, floor: int
) -> None:
    with scene.index() as index:
        snapshot = index.searcher().snapshot
        masks = snapshot.allowed(parse_filter(scene.filter))
        engines = [index.searcher(threads=1, engine=name)._engine for name in ("native", "reference")]
        options = bare_options(k, "rerank", candidates)._replace(weight_floor=floor)
        for query in scene.world.queries():
            results = [
                engine.search(
                    engine.prepare(plan(snapshot, query)), options, None, engine.prepare_filter(masks)
                )
                for engine in engines
            ]
            assert results[0].numbers.tolist() == results[1].numbers.tolist()
            assert results[0].scores.tobytes() == results[1].scores.tobytes()


@pytest.mark.parametrize(("below", "mode"), [(4, "rerank"), (5, "exact")])
def test_auto_is_exact_where_few_documents_are_allowed(
    below: int, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four of 28 documents in an index that `auto` reranks without a filter."""
    monkeypatch.setattr("citadel.search.plan.EXACT_BELOW", 10)
    monkeypatch.setattr("citadel.search.request.EXACT_ALLOWED", below)
    world = World("dynamic", "int8", 8, "int8", seed=SEED, count=28)
    with built(world, with_metadata([world.documents()])) as index:
        requests = index.searcher()._requests
        assert requests.make(5, "auto", None).options.semantic == "rerank"
        assert requests.make(5, "auto", None, filter={"number": 3}).options.semantic == mode
        assert requests.make(5, "rerank", None, filter={"number": 3}).options.semantic == "rerank"


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


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@seed(SEED)
@settings(EXAMPLES, max_examples=500 if NIGHT else 40)
@given(
    scene=scenes(routers=("static", "dynamic", "all_to_all", "none", "sparse")),
    k=st.sampled_from([0, 1, 5, 1000]),
)
def test_gpu_engine_filters_like_the_reference(device: str, scene: Scene, k: int) -> None:
    """To the bit, in plain torch on the CPU and on a GPU; a filtered `rerank` on a GPU is exact."""
    torch = pytest.importorskip("torch")
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    with scene.index() as index:
        gpu, slow = index.searcher(engine="gpu", device=device), index.searcher(engine="reference")
        options = scene.options | {"k": k, "filter": scene.filter}
        for query in scene.world.queries():
            for mode in scene.world.modes:
                one = gpu.search_vectors(**query, semantic_mode=mode, **options)
                same = "exact" if mode == "rerank" else mode
                two = slow.search_vectors(**query, semantic_mode=same, **options)
                assert (one.ids, one.scores) == (two.ids, two.scores)


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
