"""Fusion of rankings: weighted sums of normalised scores, or of reciprocal ranks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from citadel.errors import InputError, UsageError
from citadel.search.ranked_hits import RankedHits, Row, Source, columns
from citadel.text.values import unwrapped
from citadel.types import Hit, Ranking, ScorePart

METHODS = ("linear", "rrf")
RANK_CONSTANT = 60  # of reciprocal rank fusion (Cormack et al., 2009)
_Found = tuple[int, float, float]  # index in the ranking, score, gain


class Fusion:
    """A checked method with its weights, which are divided by their sum.

    >>> Fusion(("model", "bm25"), "linear", [3, 1]).weights
    [0.75, 0.25]
    """

    def __init__(self, names: Sequence[str], method: str, weights: Sequence[float] | None = None) -> None:
        if method not in METHODS:
            raise UsageError(f"unknown fusion method {method!r}: choose one of {', '.join(METHODS)}")
        self.names, self.method = list(names), method
        self.weights = _check_weights(weights, len(self.names))

    def rows(self, results: Sequence[Sequence[Hit]]) -> list[Row]:
        """All hits of one query's rankings, best first; equal scores keep the order of the rankings."""
        found: dict[str, list[_Found | None]] = {}
        for number, (hits, weight) in enumerate(zip(results, self.weights, strict=True)):
            ids, scores = columns(hits) if weight else ([], [])
            gains = self._gains(ids, scores, weight)
            for index, (id, score, gain) in enumerate(zip(ids, scores, gains, strict=True)):
                parts = found.setdefault(id, [None] * len(results))
                if parts[number] is None:  # of an id that occurs twice, the first counts
                    parts[number] = (index, score, gain)
        rows = [self._row(id, parts, results) for id, parts in found.items()]
        return sorted(rows, key=lambda row: -row.score)

    def _gains(self, ids: Sequence[str], scores: Sequence[float], weight: float) -> list[float]:
        if self.method == "rrf":
            return [weight / (RANK_CONSTANT + rank) for rank in range(1, len(scores) + 1)]
        if not scores:
            return []
        if not all(map(math.isfinite, scores)):
            wrong = next(id for id, score in zip(ids, scores, strict=True) if not math.isfinite(score))
            raise InputError(
                f'the score of {wrong!r} is not finite: use method="rrf", which reads ranks only'
            )
        lowest, highest = min(scores), max(scores)
        if highest == lowest:
            return [weight] * len(scores)
        width = highest - lowest
        return [weight * ((score - lowest) / width) for score in scores]

    def _row(self, id: str, found: Sequence[_Found | None], results: Sequence[Sequence[Hit]]) -> Row:
        sources: list[Source] = []
        parts: list[ScorePart] = []
        for name, own, hits in zip(self.names, found, results, strict=True):
            if own is None:
                parts.append(ScorePart(name, None, None, 0.0))
            else:
                sources.append((hits, own[0]))
                parts.append(ScorePart(name, own[1], own[0] + 1, own[2]))
        return Row(id, math.fsum(part.gain for part in parts), tuple(sources), tuple(parts))


def fuse(
    rankings: Sequence[Ranking],
    method: str = "linear",
    weights: Sequence[float] | None = None,
    *,
    k: int | None = None,
    names: Sequence[str] | None = None,
) -> Ranking:
    """Fuse rankings of the same queries into one; keep the best `k` hits of each query, or all.

    `linear` scales the scores of each query and ranking from 0 (its last hit) to 1 (its first) and adds them
    up; a document that a ranking lacks gets 0 there. `rrf`, reciprocal rank fusion, adds 1 / (60 + rank)
    instead. `weights`, one per ranking, are divided by their sum; they are equal by default. A query that a
    ranking lacks has no hits there. `hit.parts` has the score, rank and gain of each ranking under `names`.

    >>> from citadel import Hit, Ranking, fuse
    >>> model = Ranking(("q1",), ((Hit("d1", 30.0, 1), Hit("d2", 28.0, 2), Hit("d3", 20.0, 3)),))
    >>> bm25 = Ranking(("q1",), ((Hit("d2", 9.0, 1), Hit("d4", 1.0, 2)),))
    >>> [(hit.id, round(hit.score, 2)) for hit in fuse([model, bm25], weights=[0.7, 0.3])["q1"]]
    [('d2', 0.86), ('d1', 0.7), ('d3', 0.0), ('d4', 0.0)]
    >>> [hit.id for hit in fuse([model, bm25], method="rrf", k=2)["q1"]]
    ['d2', 'd1']
    """
    given = list(rankings) if isinstance(rankings, list | tuple) else []
    if not given or not all(isinstance(ranking, Ranking) for ranking in given):
        raise UsageError("fuse takes a list of at least one Ranking, such as those of search_batch")
    fusion = Fusion(check_names(names, len(given)), method, weights)
    limit = _check_limit(k)
    queries = list(dict.fromkeys(query for ranking in given for query in ranking.query_ids))
    fused = []
    for query in queries:
        results = [ranking[query] if query in ranking else () for ranking in given]  # noqa: SIM401
        fused.append(RankedHits(fusion.rows(results)[:limit], query_cut=any(map(is_cut, results))))
    return Ranking(tuple(queries), tuple(fused))


def is_cut(hits: Sequence[Hit]) -> bool:
    """Whether the query of these hits was longer than a model reads."""
    return bool(getattr(hits, "query_cut", False))


def check_names(names: Sequence[str] | None, count: int) -> list[str]:
    """Check the names of the parts; without any, they are numbered from 1."""
    if names is None:
        return [str(number) for number in range(1, count + 1)]
    given = [] if isinstance(names, str) else list(names)
    if len(given) != count or len(set(given)) != count or not all(isinstance(name, str) for name in given):
        raise UsageError(f"names must be {count} different strings, one per ranking")
    return given


def _check_weights(weights: Sequence[float] | None, count: int) -> list[float]:
    """Check the weights and divide them by their sum."""
    if weights is None:
        return [1 / count] * count
    try:
        given: list[Any] = [unwrapped(weight) for weight in weights]
    except TypeError:
        raise UsageError(f"weights must be {count} numbers, one per ranking, not {weights!r}") from None
    if len(given) != count:
        raise UsageError(f"{len(given)} weights for {count} rankings: give one per ranking")
    for weight in given:
        is_number = isinstance(weight, int | float) and not isinstance(weight, bool)
        if not is_number or not 0 <= weight < 1e30:
            raise UsageError(f"a weight must be a finite number of 0 or more, not {weight!r}")
    total = math.fsum(given)
    if total == 0:
        raise UsageError("the weights sum to 0: give at least one ranking a weight above 0")
    return [weight / total for weight in given]


def _check_limit(k: int | None) -> int | None:
    if k is not None and (isinstance(k, bool) or not isinstance(k, int) or k < 0):
        raise UsageError(f"k must be a whole number of 0 or more, or None, not {k!r}")
    return k
