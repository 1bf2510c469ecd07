"""The semantic mode `graph`: exact scores, good overlap, no deleted or disallowed document."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import citadel
from citadel.errors import UsageError
from citadel.search.plan import plan_options
from tests.property.test_passages import long_documents
from tests.property.worlds import World, built
from tests.support import graphs

DOCUMENTS = graphs.DOCUMENTS
KINDS = [("vectors", "int8"), ("vectors", "fp16"), ("none", "int8")]


@pytest.fixture(params=KINDS, ids="-".join)
def world(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[citadel.Index, str]:
    kind, codec = request.param
    return graphs.build(tmp_path / "index", kind, codec), kind


@pytest.fixture
def index(tmp_path: Path) -> citadel.Index:
    return graphs.build(tmp_path / "index")


def scores(hits: citadel.Hits) -> dict[str, float]:
    return dict(zip(hits.ids, hits.scores, strict=True))


def overlap(searcher: citadel.Searcher, kind: str, ef: int | None, **options: Any) -> float:
    """The share of the exact top 10 over 20 queries; checks every score."""
    shares = []
    for number in range(20):
        query = graphs.query(number, kind)
        whole = scores(searcher.search_vectors(**query, k=graphs.DOCUMENTS, semantic_mode="exact", **options))
        exact = list(whole)[:10]
        graph = searcher.search_vectors(**query, k=10, semantic_mode="graph", ef=ef, **options)
        assert len(graph.ids) == len(exact)
        assert scores(graph) == {id: whole[id] for id in graph.ids}
        assert list(graph.scores) == sorted(graph.scores, reverse=True)
        shares.append(len(set(exact) & set(graph.ids)) / 10)
    return float(np.mean(shares))


def test_scores_are_exact_and_the_best_documents_are_returned(world: tuple[citadel.Index, str]) -> None:
    index, kind = world
    searcher = index.searcher(threads=1)
    assert overlap(searcher, kind, None) > 0.9
    assert overlap(searcher, kind, 300) > 0.97


def test_a_larger_ef_finds_more(index: citadel.Index) -> None:
    searcher = index.searcher(threads=1)
    few, many = (
        [
            searcher.search_vectors(**graphs.query(n), k=10, semantic_mode="graph", ef=ef).scores[-1]
            for n in range(20)
        ]
        for ef in (10, 200)
    )
    assert np.mean(few) < np.mean(many)


def test_batches_and_threads_return_the_same(index: citadel.Index) -> None:
    queries = {str(number): graphs.query(number) for number in range(10)}
    one, two = (
        index.searcher(threads=threads).search_vectors_batch(queries, 10, semantic_mode="graph")
        for threads in (1, 2)
    )
    single = [
        index.searcher(threads=1).search_vectors(**query, k=10, semantic_mode="graph")
        for query in queries.values()
    ]
    ids = [[[hit.id for hit in hits] for hits in part] for part in (one.hits, two.hits, single)]
    assert ids[0] == ids[1] == ids[2]


def test_deleted_documents_are_never_returned(index: citadel.Index) -> None:
    index.delete([f"d{number}" for number in range(0, graphs.DOCUMENTS, 5)])
    index.commit()
    assert index.searcher().snapshot.segments[0].record.graph_file is not None
    searcher = index.searcher(threads=1)
    assert overlap(searcher, "vectors", 200) > 0.9
    for number in range(20):
        ids = searcher.search_vectors(**graphs.query(number), k=50, semantic_mode="graph").ids
        assert len(ids) == 50
        assert all(int(id[1:]) % 5 for id in ids)


@pytest.mark.parametrize("below", [DOCUMENTS * 19 // 20, DOCUMENTS // 2, DOCUMENTS // 5])
def test_filtered_walks_find_the_best_allowed_documents(index: citadel.Index, below: int) -> None:
    searcher, allowed = index.searcher(threads=1), {"number": {"$lt": below}}
    assert overlap(searcher, "vectors", 200, filter=allowed) > 0.9
    for _ in range(2):  # the second search finds what the first has kept
        hits = searcher.search_vectors(**graphs.query(4), k=50, semantic_mode="graph", filter=allowed)
        assert len(hits.ids) == 50
        assert all(int(id[1:]) < below for id in hits.ids)


def test_fewer_allowed_documents_than_k_are_all_returned(index: citadel.Index) -> None:
    searcher = index.searcher(threads=1)
    for count in (0, 1, 7, 40):
        allowed = {"number": {"$lt": count}}
        for mode in ("graph", "auto"):
            hits = searcher.search_vectors(**graphs.query(5), k=50, semantic_mode=mode, filter=allowed)
            assert sorted(hits.ids) == sorted(f"d{number}" for number in range(count))


def test_filters_hold_inside_the_graph(index: citadel.Index) -> None:
    searcher = index.searcher(threads=1)
    assert overlap(searcher, "vectors", 200, filter={"parity": 1}) > 0.9
    few = searcher.search_vectors(
        **graphs.query(1), k=10, semantic_mode="graph", filter={"parity": {"$gte": 2}}
    )
    assert few.ids == []


def test_pages_and_minimum_scores_work_as_in_other_modes(index: citadel.Index) -> None:
    searcher = index.searcher(threads=1)
    query = graphs.query(3)
    whole = searcher.search_vectors(**query, k=30, semantic_mode="graph", ef=200)
    page = searcher.search_vectors(**query, k=10, offset=20, semantic_mode="graph", ef=200)
    assert page.ids == whole.ids[20:]
    floor = whole.scores[4]
    assert (
        searcher.search_vectors(**query, k=30, semantic_mode="graph", ef=200, min_score=floor).ids
        == (whole.ids[:5])
    )


def test_k_beyond_the_index_returns_all_documents(index: citadel.Index) -> None:
    hits = index.searcher().search_vectors(**graphs.query(0), k=10**6, semantic_mode="graph")
    assert len(hits.ids) == graphs.DOCUMENTS


def test_segments_without_a_graph_are_scanned(index: citadel.Index) -> None:
    index.add_vectors([graphs.document(number) for number in range(graphs.DOCUMENTS, graphs.DOCUMENTS + 50)])
    index.commit()
    records = [segment.record for segment in index.searcher().snapshot.segments]
    assert [record.graph_file is not None for record in records] == [True, False]
    searcher = index.searcher(threads=1)
    exact, graph = (
        searcher.search_vectors(**graphs.given(graphs.DOCUMENTS + 7), k=5, semantic_mode=mode, ef=200)
        for mode in ("exact", "graph")
    )
    assert graph.ids[0] == exact.ids[0] == f"d{graphs.DOCUMENTS + 7}"


def test_an_index_without_graphs_is_searched_exactly(tmp_path: Path) -> None:
    index = graphs.create(tmp_path / "index")
    index.add_vectors([graphs.document(number) for number in range(50)])
    searcher = index.commit().searcher()
    exact, graph = (
        searcher.search_vectors(**graphs.query(1), k=10, semantic_mode=mode) for mode in ("exact", "graph")
    )
    assert scores(exact) == scores(graph)


def test_the_reference_engine_takes_the_mode(index: citadel.Index) -> None:
    native, reference = (index.searcher(engine=engine) for engine in ("native", "reference"))
    exact = native.search_vectors(**graphs.query(2), k=10, semantic_mode="exact")
    assert reference.search_vectors(**graphs.query(2), k=10, semantic_mode="graph").ids == exact.ids


def test_auto_leaves_the_choice_to_the_engine(index: citadel.Index) -> None:
    snapshot = index.searcher().snapshot
    assert plan_options(snapshot, 10, "auto", None).semantic == "auto"
    auto, exact = (
        index.searcher().search_vectors(**graphs.query(2), k=10, semantic_mode=mode)
        for mode in ("auto", "exact")
    )
    assert scores(auto) == scores(exact)  # a scan is faster here


@pytest.mark.parametrize("ef", [0, -1, True, 2.5, "10"])
def test_a_bad_ef_is_refused(index: citadel.Index, ef: Any) -> None:
    with pytest.raises(UsageError, match="ef must be a whole number of 1 or more"):
        index.searcher().search_vectors(**graphs.query(0), semantic_mode="graph", ef=ef)


def test_effort_sets_ef(index: citadel.Index) -> None:
    snapshot = index.searcher().snapshot
    efforts = (None, 0, 0.25, 0.5, 0.75, 1)
    widths = [plan_options(snapshot, 10, "graph", None, None, effort).ef for effort in efforts]
    assert widths == [48, 12, 24, 48, 96, 192]
    assert plan_options(snapshot, 100, "graph", None, None, 1.0).ef == 800
    query = graphs.query(3)
    least, most = (
        index.searcher(threads=1).search_vectors(**query, k=10, semantic_mode="graph", effort=effort)
        for effort in (0, 1)
    )
    assert least.dot_products < most.dot_products


@pytest.mark.parametrize("effort", [-0.1, 1.01, True, float("nan"), "1"])
def test_a_bad_effort_is_refused(index: citadel.Index, effort: Any) -> None:
    searcher = index.searcher()
    with pytest.raises(UsageError, match="effort must be a number from 0 to 1"):
        searcher.search_vectors(**graphs.query(0), effort=effort)
    with pytest.raises(UsageError, match="give one of them"):
        searcher.search_vectors(**graphs.query(0), effort=0.5, ef=10)


def test_a_cancelled_search_stops(index: citadel.Index) -> None:
    from citadel._native import Cancel

    cancel = Cancel()
    cancel.set()
    with pytest.raises(citadel.errors.Cancelled):
        index.searcher().search_vectors(**graphs.query(0), semantic_mode="graph", cancel=cancel)


@pytest.mark.parametrize("k", [1, 3, 10])
def test_graph_over_passages_returns_documents(k: int, tmp_path: Path) -> None:
    """Rows of a graph are passages; with a wide search the result is that of `exact`."""
    world = World("dynamic", "int8", 8, "int8", seed=3, count=120)
    with built(world, []) as index:
        index.add_vectors(long_documents(world, index, [1 + number % 3 for number in range(40)], 0))
        index.commit()
        index.delete(["d0", "d7"])
        index.commit()
        assert index.optimize(min_documents=1) == 1
        index.check(deep=True)
        searcher = index.searcher()
        for query in world.queries():
            exact = searcher.search_vectors(**query, k=k, semantic_mode="exact")
            graph = searcher.search_vectors(**query, k=k, semantic_mode="graph", ef=1000)
            assert (graph.ids, graph.scores) == (exact.ids, exact.scores)
            assert [hit.passage for hit in graph] == [hit.passage for hit in exact]


def test_a_document_that_matches_many_words_is_found_far_from_the_others(tmp_path: Path) -> None:
    """Each of its lists has 500 heavier documents, and no similar document links to it."""
    words, heavier = np.arange(8), 500
    vector = np.ones((1, graphs.DIMENSION), np.float32) / np.sqrt(np.float32(graphs.DIMENSION))

    def document(number: int, keys: Any, weight: float, semantic: Any) -> dict[str, Any]:
        rows = {"keys": np.asarray(keys), "weights": np.full(len(keys), weight)}
        return {"id": f"d{number}", **rows, "vectors": vector.repeat(len(keys), 0), "semantic": semantic}

    topic = np.ones(graphs.SEMANTIC, np.float32)
    random = np.random.default_rng(0).normal(size=(len(words) * heavier, graphs.SEMANTIC)).astype(np.float32)
    documents = [document(n, [n % len(words)], 2.0, topic + row) for n, row in enumerate(random)]
    index = graphs.create(tmp_path / "index")
    index.add_vectors([*documents, document(len(documents), words, 1.0, -topic)])
    assert index.optimize(min_documents=1) == 1
    query = {"keys": words, "weights": np.full(8, 20.0), "vectors": vector.repeat(8, 0), "semantic": topic}
    searcher = index.searcher(threads=1)
    exact, graph = (
        searcher.search_vectors(**query, k=10, semantic_mode=mode, ef=ef)
        for mode, ef in (("exact", None), ("graph", 16))
    )
    assert exact.ids[0] == f"d{len(documents)}"
    assert graph.ids[0] == exact.ids[0]
