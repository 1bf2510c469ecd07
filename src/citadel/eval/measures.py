"""Evaluation measures, computed by ir-measures (extra [eval])."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from citadel.errors import InputError, UsageError
from citadel.types import Ranking

DEFAULT_MEASURES = ("nDCG@10", "RR@10", "R@1000")
MAX_CUTOFF = 1_000_000
# In order of preference; the other providers of ir-measures start external programs.
PROVIDERS = ("pytrec_eval", "msmarco", "judged")

Qrels = Mapping[str, Mapping[str, int]]


def evaluate(
    run: Ranking, qrels: Qrels, measures: str | Sequence[str] = DEFAULT_MEASURES, relevant: int = 1
) -> dict[str, float]:
    """Compute the mean of each measure over the judged queries; a query missing from the run scores 0.

    `relevant` is the lowest grade that counts as relevant for binary measures: 2 for TREC DL.

    >>> from citadel.types import Hit
    >>> run = Ranking(("q1",), ((Hit("d1", 2.0, 1), Hit("d2", 1.0, 2)),))
    >>> evaluate(run, {"q1": {"d2": 1}, "q2": {"d1": 1}}, "RR@10 P@1")
    {'RR@10': 0.25, 'P@1': 0.0}
    """
    by_query = evaluate_queries(run, qrels, measures, relevant)
    return {name: sum(values.values()) / len(values) for name, values in by_query.items()}


def evaluate_queries(
    run: Ranking, qrels: Qrels, measures: str | Sequence[str] = DEFAULT_MEASURES, relevant: int = 1
) -> dict[str, dict[str, float]]:
    """Compute measure → judged query → value, in the order of `measures` and of `qrels`.

    >>> from citadel.types import Hit
    >>> run = Ranking(("q1", "unjudged"), ((Hit("d1", 2.0, 1),), (Hit("d1", 2.0, 1),)))
    >>> evaluate_queries(run, {"q1": {"d1": 1}, "q2": {"d1": 1}}, ["RR@10"])
    {'RR@10': {'q1': 1.0, 'q2': 0.0}}
    """
    library = _library()
    names = measures.split() if isinstance(measures, str) else list(measures)
    parsed = {name: with_grade(parse_measure(name), relevant) for name in names}
    if not parsed:
        raise UsageError("no measure to compute: name one, such as nDCG@10")
    if not qrels:
        raise InputError("no judged query: name a qrels file that fits the run")
    judged = {query: dict(grades) for query, grades in qrels.items()}
    provider = library.providers.FallbackProvider([getattr(library, name) for name in PROVIDERS])
    metrics = provider.iter_calc(parsed.values(), judged, surrogate_scores(run, judged))
    values = {(metric.measure, metric.query_id): float(metric.value) for metric in metrics}
    return {name: {query: values.get((parsed[name], query), 0.0) for query in judged} for name in names}


def surrogate_scores(run: Ranking, judged: Mapping[str, object]) -> dict[str, dict[str, float]]:
    """Return judged query → document → a score that falls by 1 per rank.

    trec_eval breaks ties by descending document id and the MS MARCO script by ascending id. Distinct scores
    make both measure the ranking as it is.

    >>> from citadel.types import Hit
    >>> surrogate_scores(Ranking(("q1",), ((Hit("d1", 0.5, 1), Hit("d2", 0.5, 2)),)), {"q1": {}})
    {'q1': {'d1': 2.0, 'd2': 1.0}}
    """
    scores: dict[str, dict[str, float]] = {}
    for query, hits in run:
        if query not in judged:
            continue
        if query in scores:
            raise InputError(f"query {query!r} is listed twice in the run: give every query its own id")
        scores[query] = {hit.id: float(len(hits) - index) for index, hit in enumerate(hits)}
        if len(scores[query]) != len(hits):
            raise InputError(f"a document is listed twice under query {query!r}: keep one")
    return scores


def parse_measure(name: str) -> Any:
    """Parse the name of a measure.

    >>> parse_measure("nDCG@10")
    nDCG@10
    """
    library = _library()
    try:
        measure = library.parse_measure(name)
        measure.validate_params()
        supported = any(getattr(library, provider).supports(measure) for provider in PROVIDERS)
    except Exception:  # a bad name raises one of several types, AssertionError among them
        supported = False
    if not supported or not all(_in_range(measure.params.get(key, 1)) for key in ("cutoff", "rel")):
        raise UsageError(
            f"unknown measure {name!r}: use names of ir-measures, such as nDCG@10, RR@10, R@1000 or AP"
        )
    return measure


def with_grade(measure: Any, relevant: int) -> Any:
    """Set the lowest relevant grade of a binary measure, unless its name already sets one.

    >>> with_grade(parse_measure("R@1000"), 2), with_grade(parse_measure("nDCG@10"), 2)
    (R(rel=2)@1000, nDCG@10)
    """
    known = measure.SUPPORTED_PARAMS
    return (
        measure(rel=relevant) if relevant != 1 and "rel" in known and "rel" not in measure.params else measure
    )


def _in_range(value: object) -> bool:
    # trec_eval aborts the whole process for a cutoff of 0.
    return type(value) is int and 1 <= value <= MAX_CUTOFF


def _library() -> Any:
    try:
        import ir_measures
    except ImportError:
        install = "run `pip install 'citadel-ir[eval]'`, or '.[eval]' in a clone"
        raise UsageError(f"measures need the package ir-measures: {install}") from None
    return ir_measures
