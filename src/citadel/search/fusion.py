"""Fusion of rankings: weighted sums of normalised scores, or of reciprocal ranks."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any, overload

from citadel.errors import InputError, UsageError
from citadel.search.hits import Hits
from citadel.search.ranked_hits import RankedHits, Row, Source, columns, fewest_shards, id_of, score_of
from citadel.text.values import unwrapped
from citadel.types import Hit, Ranking, ScorePart

METHODS = ("linear", "rrf")
RANK_CONSTANT = 60  # of reciprocal rank fusion (Cormack et al., 2009)
Key = int | str  # of a document: its number in one index, or its id


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

    def rows(self, results: Sequence[Sequence[Hit]], same_index: bool = False) -> FusedRows:
        """All hits of one query's rankings, best first; equal scores keep the order of the rankings.

        Hits of the `same_index` are known by number, so that only the ids of the requested rows are read.
        """
        keys, gains = [], []
        for hits, weight in zip(results, self.weights, strict=True):
            own, scores = _columns(hits, same_index) if weight else ([], [])
            keys.append(own)
            gains.append(self._gains(hits, scores, weight))
        return FusedRows(self.names, results, keys, gains)

    def _gains(self, hits: Sequence[Hit], scores: Sequence[float], weight: float) -> list[float]:
        if self.method == "rrf":
            return [weight / (RANK_CONSTANT + rank) for rank in range(1, len(scores) + 1)]
        if not scores:
            return []
        if not all(map(math.isfinite, scores)):
            wrong = next(index for index, score in enumerate(scores) if not math.isfinite(score))
            raise InputError(
                f'the score of {hits[wrong].id!r} is not finite: use method="rrf", which reads ranks only'
            )
        lowest, highest = min(scores), max(scores)
        if highest == lowest:
            return [weight] * len(scores)
        width = highest - lowest
        return [weight * ((score - lowest) / width) for score in scores]


class FusedRows(Sequence[Row]):
    """The rows of fused rankings, best first, each made when it is asked for."""

    def __init__(
        self,
        names: Sequence[str],
        results: Sequence[Sequence[Hit]],
        keys: Sequence[Sequence[Key]],
        gains: Sequence[Sequence[float]],
    ) -> None:
        """`keys` and `gains` of each ranking: what is the same document, and what each hit adds."""
        self._names, self._results = names, results
        # Reversed, so that of a key that occurs twice the first counts.
        self._positions = [dict(zip(reversed(own), range(len(own) - 1, -1, -1), strict=True)) for own in keys]
        self._gains = [
            dict(zip(reversed(own), reversed(part), strict=True))
            for own, part in zip(keys, gains, strict=True)
        ]
        found = list(dict.fromkeys(itertools.chain.from_iterable(keys)))
        self._scores = {key: self._score(key) for key in found}
        self._order = sorted(found, key=self._scores.__getitem__, reverse=True)  # stable

    def _score(self, key: Key) -> float:
        return math.fsum([gains[key] for gains in self._gains if key in gains])

    def __len__(self) -> int:
        return len(self._order)

    @overload
    def __getitem__(self, index: int) -> Row: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Row]: ...
    def __getitem__(self, index: int | slice) -> Row | Sequence[Row]:
        if isinstance(index, slice):
            return [self._row(key) for key in self._order[index]]
        return self._row(self._order[index])

    def _row(self, key: Key) -> Row:
        sources: list[Source] = []
        parts: list[ScorePart] = []
        for name, positions, gains, hits in zip(
            self._names, self._positions, self._gains, self._results, strict=True
        ):
            index = positions.get(key)
            if index is None:
                parts.append(ScorePart(name, None, None, 0.0))
            else:
                sources.append((hits, index))
                parts.append(ScorePart(name, score_of(hits, index), index + 1, gains[key]))
        return Row(id_of(*sources[0]), self._scores[key], tuple(sources), tuple(parts))


def _columns(hits: Sequence[Hit], same_index: bool) -> tuple[Sequence[Key], list[float]]:
    if same_index and isinstance(hits, Hits):
        return hits.numbers, hits.scores
    return columns(hits)


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
        cut, shards = any(map(is_cut, results)), fewest_shards(results)
        fused.append(RankedHits(fusion.rows(results)[:limit], query_cut=cut, shards=shards))
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
