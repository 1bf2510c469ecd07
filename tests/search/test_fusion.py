"""`citadel.fuse`: known sums, missing hits and queries, and weights that cannot be used."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import citadel
from citadel import Hit, Ranking, fuse


def ranking(**queries: dict[str, float]) -> Ranking:
    hits = [
        tuple(Hit(id, score, rank) for rank, (id, score) in enumerate(scores.items(), 1))
        for scores in queries.values()
    ]
    return Ranking(tuple(queries), tuple(hits))


MODEL = ranking(q1={"a": 30.0, "b": 28.0, "c": 20.0})
BM25 = ranking(q1={"b": 9.0, "d": 5.0, "e": 1.0})
SCORES = st.dictionaries(st.sampled_from("abcdefgh"), st.floats(-1e6, 1e6), max_size=6)


def scores(fused: Ranking, query: str = "q1") -> dict[str, float]:
    return {hit.id: hit.score for hit in fused[query]}


def test_linear_adds_scores_scaled_from_0_to_1() -> None:
    fused = fuse([MODEL, BM25], weights=[0.6, 0.4])
    expected = {"b": 0.6 * 0.8 + 0.4, "a": 0.6, "d": 0.4 * 0.5, "c": 0.0, "e": 0.0}
    assert scores(fused) == pytest.approx(expected)
    assert [hit.id for hit in fused["q1"]] == list(expected)
    assert [hit.rank for hit in fused["q1"]] == [1, 2, 3, 4, 5]


def test_rrf_adds_reciprocal_ranks() -> None:
    fused = fuse([MODEL, BM25], method="rrf")
    expected = {"b": (1 / 62 + 1 / 61) / 2, "a": 1 / 122, "d": 1 / 124, "c": 1 / 126, "e": 1 / 126}
    assert scores(fused) == pytest.approx(expected)


def test_parts_add_up_to_the_score() -> None:
    [hit, *_] = fuse([MODEL, BM25], names=["model", "bm25"])["q1"]
    assert [(part.name, part.score, part.rank) for part in hit.parts] == [
        ("model", 28.0, 2),
        ("bm25", 9.0, 1),
    ]
    assert sum(part.gain for part in hit.parts) == pytest.approx(hit.score)
    assert hit.to_dict()["parts"][1] == {"name": "bm25", "score": 9.0, "rank": 1, "gain": 0.5}
    alone = fuse([MODEL, BM25])["q1"][1]
    assert alone.parts[1] == citadel.ScorePart("2", None, None, 0.0)


def test_weights_are_relative() -> None:
    assert scores(fuse([MODEL, BM25], weights=list(np.array([6, 4])))) == scores(
        fuse([MODEL, BM25], weights=(0.6, 0.4))
    )


@pytest.mark.parametrize("method", ["linear", "rrf"])
def test_a_ranking_of_weight_0_changes_nothing(method: str) -> None:
    assert [hit.id for hit in fuse([MODEL, BM25], method, [1, 0])["q1"]] == ["a", "b", "c"]


def test_equal_scores_count_as_the_best() -> None:
    assert scores(fuse([ranking(q1={"a": 2.0, "b": 2.0})])) == {"a": 1.0, "b": 1.0}


def test_a_query_that_a_ranking_lacks_has_no_hits_there() -> None:
    fused = fuse([MODEL, ranking(q2={"x": 1.0})])
    assert fused.query_ids == ("q1", "q2")
    assert scores(fused, "q2") == {"x": 0.5}
    assert len(fuse([ranking(q1={}), ranking(q1={})])["q1"]) == 0


def test_k_keeps_the_best_hits() -> None:
    assert [hit.id for hit in fuse([MODEL, BM25], k=2)["q1"]] == ["b", "a"]
    assert len(fuse([MODEL, BM25], k=0)["q1"]) == 0


def test_fused_rankings_can_be_fused_again() -> None:
    fused = fuse([MODEL, BM25])
    assert scores(fuse([fused])) == pytest.approx({"b": 1.0, "a": 5 / 9, "d": 0.25 / 0.9, "c": 0.0, "e": 0.0})


@given(first=SCORES, second=SCORES, weight=st.floats(0, 1), method=st.sampled_from(["linear", "rrf"]))
def test_fused_scores_are_ordered_and_bounded(
    first: dict[str, float], second: dict[str, float], weight: float, method: str
) -> None:
    hits = fuse([ranking(q=first), ranking(q=second)], method, [weight, 1 - weight])["q"]
    values = [hit.score for hit in hits]
    assert values == sorted(values, reverse=True)
    assert all(0 <= value <= 1 + 1e-9 for value in values)
    known = (set(first) if weight else set()) | (set(second) if weight < 1 else set())
    assert {hit.id for hit in hits} == known


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"method": "max"}, "unknown fusion method 'max': choose one of linear, rrf"),
        ({"weights": [1.0]}, "1 weights for 2 rankings"),
        ({"weights": [0, 0]}, "the weights sum to 0"),
        ({"weights": [1, -1]}, "finite number of 0 or more, not -1"),
        ({"weights": [1, float("nan")]}, "finite number of 0 or more, not nan"),
        ({"weights": [1, float("inf")]}, "finite number of 0 or more, not inf"),
        ({"weights": [1, True]}, "not True"),
        ({"weights": [1, "2"]}, "not '2'"),
        ({"weights": 0.5}, "weights must be 2 numbers"),
        ({"names": ["a"]}, "names must be 2 different strings"),
        ({"names": ["a", "a"]}, "names must be 2 different strings"),
        ({"k": -1}, "k must be a whole number"),
        ({"k": 1.5}, "k must be a whole number"),
    ],
)
def test_bad_arguments_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(citadel.UsageError, match=message):
        fuse([MODEL, BM25], **arguments)


@pytest.mark.parametrize("rankings", [[], MODEL, [MODEL, MODEL["q1"]], None])
def test_only_rankings_can_be_fused(rankings: Any) -> None:
    with pytest.raises(citadel.UsageError, match="fuse takes a list of at least one Ranking"):
        fuse(rankings)


def test_an_infinite_score_has_no_linear_scale() -> None:
    infinite = ranking(q1={"a": float("inf"), "b": 1.0})
    with pytest.raises(citadel.InputError, match="the score of 'a' is not finite: use method=\"rrf\""):
        fuse([infinite])
    assert len(fuse([infinite], method="rrf")["q1"]) == 2


def test_fused_hits_know_how_many_shards_answered(tmp_path: Path) -> None:
    index = citadel.Index.create(tmp_path, model="bm25")
    index.add([{"id": "d1", "text": "rome"}])
    rankings = [index.commit().searcher().search_batch({"q": "rome"}) for _ in range(2)]
    for ranking, shards in zip(rankings, [(3, 4), (2, 4)], strict=True):
        ranking["q"]._scored = ranking["q"]._scored._replace(shards=shards)  # type: ignore[attr-defined]
    [fused] = citadel.fuse(rankings).hits
    assert fused.shards == (2, 4)  # type: ignore[attr-defined]
