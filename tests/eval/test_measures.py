"""Measures on rankings of two documents, and which queries count."""

from __future__ import annotations

import math
import sys

import pytest

from citadel.errors import InputError, UsageError
from citadel.eval.measures import evaluate, evaluate_queries
from citadel.types import Hit, Ranking

pytest.importorskip("ir_measures", reason="the extra [eval] is not installed")


def ranked(**hits: list[tuple[str, float]]) -> Ranking:
    lists = (
        tuple(Hit(name, score, rank) for rank, (name, score) in enumerate(row, 1)) for row in hits.values()
    )
    return Ranking(tuple(hits), tuple(lists))


RUN = ranked(q1=[("a", 2.0), ("b", 1.0)])


def test_measures_by_hand() -> None:
    result = evaluate(RUN, {"q1": {"b": 1}}, "RR@10 P@1 P@2 R@1 R@1000 nDCG@10 AP")
    assert result == pytest.approx(
        {
            "RR@10": 1 / 2,
            "P@1": 0,
            "P@2": 1 / 2,
            "R@1": 0,
            "R@1000": 1,
            "nDCG@10": 1 / math.log2(3),
            "AP": 1 / 2,
        }
    )


def test_default_measures() -> None:
    assert list(evaluate(RUN, {"q1": {"a": 1}})) == ["nDCG@10", "RR@10", "R@1000"]


def test_judged_query_missing_from_the_run_scores_zero() -> None:
    qrels = {"q1": {"a": 1}, "q2": {"a": 1}, "q3": {"a": 0}}
    assert evaluate_queries(RUN, qrels, "RR@10 nDCG@10") == {
        "RR@10": {"q1": 1.0, "q2": 0.0, "q3": 0.0},
        "nDCG@10": {"q1": 1.0, "q2": 0.0, "q3": 0.0},
    }
    assert evaluate(RUN, qrels, "RR@10 nDCG@10") == pytest.approx({"RR@10": 1 / 3, "nDCG@10": 1 / 3})


def test_unjudged_query_is_ignored() -> None:
    run = ranked(q1=[("a", 2.0)], q2=[("b", 1.0)])
    assert evaluate(run, {"q1": {"a": 1}}, ["RR@10"]) == {"RR@10": 1.0}


def test_query_without_hits_scores_zero() -> None:
    assert evaluate(ranked(q1=[]), {"q1": {"a": 1}}, "nDCG@10 RR@10") == {"nDCG@10": 0.0, "RR@10": 0.0}


@pytest.mark.parametrize(("first", "second"), [("a", "b"), ("b", "a")])
def test_ties_keep_the_order_of_the_run(first: str, second: str) -> None:
    run = ranked(q1=[(first, 1.0), (second, 1.0)])
    measures = "P@1 RR@10 RR nDCG@1 AP"  # trec_eval would rank b first, the MS MARCO script a
    assert evaluate(run, {"q1": {first: 1}}, measures) == dict.fromkeys(measures.split(), 1.0)
    assert evaluate(run, {"q1": {second: 1}}, "P@1 RR@10 RR") == {"P@1": 0.0, "RR@10": 0.5, "RR": 0.5}


def test_scores_equal_in_fp32_keep_the_order_of_the_run() -> None:
    run = ranked(q1=[("a", 1.0 + 1e-12), ("b", 1.0)])
    assert evaluate(run, {"q1": {"a": 1}}, "P@1") == {"P@1": 1.0}


def test_grade_threshold() -> None:
    assert evaluate(RUN, {"q1": {"a": 1, "b": 2}}, "RR(rel=2)@10 R(rel=2)@1") == {
        "RR(rel=2)@10": 0.5,
        "R(rel=2)@1": 0,
    }


def test_aliases_of_a_measure() -> None:
    assert evaluate(RUN, {"q1": {"b": 1}}, ["RR@10", "MRR@10"]) == {"RR@10": 0.5, "MRR@10": 0.5}


BAD = [
    "foo",
    "nDCG@",
    "nDCG@x",
    "P",
    "AP@0",
    "nDCG@0",
    "nDCG@-1",
    "nDCG@1.5",
    "nDCG@True",
    "R(rel=0)@10",
    "nDCG(x=1)@10",
]
BAD += [
    "nDCG@99999999999999999999",
    "__import__('os')",
    "(" * 500,
    "1",
    "",
    "alpha_nDCG@10",
    "ERR@10",
    "\x00",
    "nDCG@10;AP",
]


@pytest.mark.parametrize("name", BAD)
def test_unknown_measure_is_named(name: str) -> None:
    with pytest.raises(UsageError) as caught:
        evaluate(RUN, {"q1": {"a": 1}}, ["nDCG@10", name])
    assert f"unknown measure {name!r}" in str(caught.value)


def test_no_measure_or_no_judged_query() -> None:
    with pytest.raises(UsageError, match="no measure"):
        evaluate(RUN, {"q1": {"a": 1}}, "")
    with pytest.raises(InputError, match="no judged query"):
        evaluate(RUN, {}, "AP")


def test_repeated_query_or_document_is_rejected() -> None:
    twice = Ranking(("q1", "q1"), ((Hit("a", 1.0, 1),), (Hit("b", 1.0, 1),)))
    with pytest.raises(InputError, match="query 'q1' is listed twice"):
        evaluate(twice, {"q1": {"a": 1}}, "AP")
    with pytest.raises(InputError, match="a document is listed twice under query 'q1'"):
        evaluate(ranked(q1=[("a", 2.0), ("a", 1.0)]), {"q1": {"a": 1}}, "AP")


def test_missing_ir_measures_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ir_measures", None)
    with pytest.raises(UsageError, match=r"pip install 'citadel-ir\[eval\]'"):
        evaluate(RUN, {"q1": {"a": 1}}, "AP")
