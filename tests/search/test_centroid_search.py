"""Search of centroid indexes: engines agree, candidates and exact scores are those of the formula."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import citadel
from citadel import _native
from citadel.errors import Cancelled
from citadel.index.quantize import decode
from citadel.routing import CentroidRouter, imputed_score, score
from citadel.search.centroid_reference import CentroidReference
from citadel.search.plan import NPROBE, Options
from citadel.types import Floats, RoutedTokens, TokenVectors
from tests.support.centroid_indexes import DIMENSION, mixed, query


@pytest.fixture(scope="module", params=["int8", "residual1", "residual2", "residual4"])
def index(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> citadel.Index:
    return mixed(tmp_path_factory.mktemp("centroid") / "i", request.param)


@pytest.fixture
def instruction_set(request: pytest.FixtureRequest) -> Iterator[str]:
    before = _native.instruction_set()
    _native.use_instruction_set(request.param)
    yield request.param
    _native.use_instruction_set(before)


OPTIONS: list[dict[str, Any]] = [
    {},
    {"semantic_mode": "exact"},
    {"ef": 15},
    {"ef": 60, "filter": {"year": {"$gte": 1}}},
    {"ef": 1, "k": 100},
    {"ef": 12, "filter": {"year": 3}, "k": 3},
]


def answers(searcher: citadel.Searcher) -> list[tuple[list[str], list[float]]]:
    found = []
    for number, count in ((0, 8), (1, 1), (2, 33), (3, 64), (4, 0)):
        for options in OPTIONS:
            hits = searcher.search_vectors(vectors=query(number, count), **{"k": 7, **options})
            found.append((hits.ids, hits.scores))
    return found


@pytest.mark.parametrize("instruction_set", _native.instruction_sets(), indirect=True)
def test_every_instruction_set_gives_the_reference_result(index: citadel.Index, instruction_set: str) -> None:
    assert answers(index.searcher()) == answers(index.searcher(engine="reference"))


def test_torch_gives_the_same_result(index: citadel.Index) -> None:
    pytest.importorskip("torch")
    assert answers(index.searcher(engine="gpu")) == answers(index.searcher())


@pytest.mark.parametrize("engine", ["native", "reference", "gpu"])
@pytest.mark.parametrize("exponent", [1, 100, 120, 124])
def test_a_large_query_is_scored_as_a_small_one(index: citadel.Index, engine: str, exponent: int) -> None:
    """Powers of two change no bits, even where the sums of a rotation would exceed fp32."""
    if engine == "gpu":
        pytest.importorskip("torch")
    flat = np.full((1, DIMENSION), 1.5, np.float32)
    searcher = index.searcher(engine=engine)
    for rows in (flat, query(4, 1), np.concatenate([flat, -flat, query(5, 1)])):
        small = searcher.search_vectors(vectors=rows, k=9, semantic_mode="exact")
        large_rows = np.ldexp(rows, exponent)
        large = searcher.search_vectors(vectors=large_rows, k=9, semantic_mode="exact")
        scores = np.array(small.scores)
        assert np.isfinite(scores).all()
        assert (large.ids, large.scores) == (small.ids, np.ldexp(scores, exponent).tolist())
        explained = searcher.explain_vectors(large.ids[0], vectors=large_rows)
        assert explained.score == pytest.approx(large.scores[0])


def test_threads_and_batches_give_the_same_result(index: citadel.Index) -> None:
    queries = {str(number): {"vectors": query(number)} for number in range(9)}
    one, many = index.searcher(threads=1), index.searcher(threads=4)
    for options in ({"semantic_mode": "exact"}, {"ef": 20}):
        batch = many.search_vectors_batch(queries, k=6, **options)
        for id, hits in batch:
            alone = one.search_vectors(vectors=queries[id]["vectors"], k=6, **options)
            assert [(hit.id, hit.score) for hit in hits] == [(hit.id, hit.score) for hit in alone]


def decoded(index: citadel.Index) -> dict[str, Floats]:
    snapshot, vectors = index._snapshot, {}
    for segment in snapshot.segments:
        keys = segment.token_centroids(0, segment.tokens)
        rows = decode(segment.encoded(0, segment.tokens), keys, snapshot.centroids)
        for number in snapshot.live_numbers(segment):
            start, stop = segment.token_starts[number : number + 2]
            vectors[segment.ids([number])[0]] = rows[start:stop]
    return vectors


def all_to_all(rows: Floats) -> RoutedTokens:
    return RoutedTokens(np.zeros(len(rows), np.uint32), np.ones(len(rows), np.float32), rows)


def test_exact_is_the_formula_over_the_stored_vectors(index: citadel.Index) -> None:
    vectors = decoded(index)
    for number in range(5):
        rows = query(number)
        expected = {
            id: score(all_to_all(rows), all_to_all(own), False) for id, own in vectors.items() if len(own)
        }
        hits = index.searcher().search_vectors(vectors=rows, k=1000, semantic_mode="exact")
        assert sorted(hits.ids) == sorted(expected)
        for hit in hits:  # the engine rounds the query to int8
            assert hit.score == pytest.approx(expected[hit.id], abs=0.08)


def test_candidates_are_ordered_by_the_imputed_score(index: citadel.Index) -> None:
    """Stage 1 is the formula of the router over centroids in place of vectors, up to a constant per query."""
    snapshot = index._snapshot
    book = snapshot.centroids
    assert book is not None
    position = next(i for i, segment in enumerate(snapshot.segments) if segment.meta.has_centroids)
    segment = snapshot.segments[position]
    rows, nprobe = query(5), 3
    totals = dict(
        zip(
            *(part.tolist() for part in CentroidReference(snapshot)._touched(segment, rows, nprobe)),
            strict=True,
        )
    )
    text = TokenVectors(np.zeros(len(rows), np.uint32), rows)
    routed = CentroidRouter(centroids=book.centroids, nprobe=nprobe).route_query(text)
    constants = set()
    for number in range(segment.passages):
        start, stop = segment.token_starts[number : number + 2].tolist()
        keys = segment.token_centroids(start, stop)
        document = RoutedTokens(keys, np.ones(len(keys), np.float32), book.centroids[keys])
        expected = imputed_score(routed, document, book.centroids)
        assert (expected is None) == (number not in totals)
        if expected is not None:
            constants.add(round(expected - totals[number], 1))
    assert max(constants) - min(constants) <= 0.11


def test_a_search_with_few_candidates_finds_most_of_the_exact_hits(index: citadel.Index) -> None:
    searcher = index.searcher()
    shares = []
    for number in range(20):
        exact = searcher.search_vectors(vectors=query(number, 16), k=5, semantic_mode="exact").ids
        fast = searcher.search_vectors(vectors=query(number, 16), k=5, ef=40).ids
        shares.append(len(set(exact) & set(fast)) / 5)
    assert np.mean(shares) > 0.9


def test_probes_are_the_largest_products(index: citadel.Index) -> None:
    book = index._snapshot.centroids
    assert book is not None
    native = _native.CentroidBook(
        book.codes, book.scales.view(np.uint16), book.buckets, book.bucket_scale, book.step
    )
    prepared = _native.TokenQuery(query(1, 40), native)
    products = prepared.products()
    expected = np.argsort(-products, axis=1, kind="stable")[:, :5]
    assert (prepared.probes(5) == expected).all()
    assert np.allclose(products, query(1, 40) @ book.centroids.T, atol=0.02)


def test_a_deleted_document_is_no_hit(index: citadel.Index) -> None:
    hits = index.searcher().search_vectors(vectors=query(0), k=1000, semantic_mode="exact")
    assert not {"d3", "d40", "d41"} & set(hits.ids)


def test_groups_offsets_and_scores(index: citadel.Index) -> None:
    searcher = index.searcher()
    everything = searcher.search_vectors(vectors=query(2), k=10, semantic_mode="exact")
    page = searcher.search_vectors(vectors=query(2), k=4, offset=3, semantic_mode="exact")
    assert page.ids == everything.ids[3:7]
    best = searcher.search_vectors(vectors=query(2), k=5, group_by="year", semantic_mode="exact")
    ranking = searcher.search_vectors(vectors=query(2), k=100, semantic_mode="exact")
    years = list(dict.fromkeys(hit.metadata["year"] for hit in ranking))
    assert [hit.metadata["year"] for hit in best] == years
    least = everything.scores[2]
    assert len(searcher.search_vectors(vectors=query(2), k=10, min_score=least, semantic_mode="exact")) == 3


def test_a_cancelled_search_raises(index: citadel.Index) -> None:
    cancel = _native.Cancel()
    cancel.set()
    for engine in ("native", "reference"):
        with pytest.raises(Cancelled):
            index.searcher(engine=engine).search_vectors(vectors=query(0), cancel=cancel)


def test_options_of_a_centroid_index(index: citadel.Index) -> None:
    from citadel.search.plan import plan_options

    assert plan_options(index._snapshot, 10, "auto", None) == Options(10, "rerank", 256, NPROBE, 0, 256)
    assert plan_options(index._snapshot, 10, "exact", None, 20).semantic == "exact"


def test_explanations_add_up_to_the_score(index: citadel.Index) -> None:
    searcher = index.searcher()
    for hit in searcher.search_vectors(vectors=query(6), k=3):
        explained = searcher.explain_vectors(hit.id, vectors=query(6))
        assert explained.score == pytest.approx(hit.score)
        assert math.fsum(match.gain for match in explained.matches) == pytest.approx(hit.score, abs=1e-5)
        assert len(explained.matches) == 8
        assert all(match.gain == match.postings[0].product for match in explained.matches)
