"""Ties by position in the collection, for a sharded index, whose document numbers follow its shards."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from citadel.index.snapshot import Snapshot
from citadel.search.plan import Options, Plan, TermStatistics
from citadel.types import Scored

if TYPE_CHECKING:
    from citadel._native import Cancel
    from citadel.search.engine import Engine

_GROWTH = 4  # of k while ties cross its border


class PositionOrder:
    """An engine whose ties are broken by position in the collection.

    The wrapped engine is asked for one passage more than needed. While the last one is tied with the k-th,
    some passages of the tie may be missing, so it is asked for more."""

    def __init__(self, engine: Engine[Any], snapshot: Snapshot) -> None:
        self._engine, self._snapshot = engine, snapshot

    def prepare(self, plan: Plan) -> Any:
        return self._engine.prepare(plan)

    def prepare_terms(self, terms: list[bytes], repeats: list[int], statistics: TermStatistics) -> Any:
        return self._engine.prepare_terms(terms, repeats, statistics)

    def prepare_filter(self, masks: Sequence[NDArray[np.bool_]]) -> Any:
        return self._engine.prepare_filter(masks)

    def search(
        self, query: Any, options: Options, cancel: Cancel | None = None, allowed: Any = None
    ) -> Scored:
        """The best k passages of one query."""
        asked = self._more(options)
        scored = self._engine.search(query, asked, cancel, allowed)
        return self._ordered(scored, query, options, asked, cancel, allowed)

    def search_batch(
        self, queries: Sequence[Any], options: Options, cancel: Cancel | None = None, allowed: Any = None
    ) -> list[Scored]:
        """The best k passages of each query."""
        asked = self._more(options)
        results = self._engine.search_batch(queries, asked, cancel, allowed)
        pairs = zip(results, queries, strict=True)
        return [self._ordered(scored, query, options, asked, cancel, allowed) for scored, query in pairs]

    def _more(self, options: Options, factor: int = 1) -> Options:
        if not options.k:
            return options
        return Options(min(factor * options.k + 1, self._snapshot.live_passages), *options[1:])

    def _ordered(
        self,
        scored: Scored,
        query: Any,
        options: Options,
        asked: Options,
        cancel: Cancel | None,
        allowed: Any,
    ) -> Scored:
        k, factor, products = options.k, 1, scored.dot_products
        while k < asked.k == len(scored.numbers) and scored.scores[-1] == scored.scores[k - 1]:
            if asked.k == self._snapshot.live_passages:
                break  # all passages are listed
            factor *= _GROWTH
            asked = self._more(options, factor)
            scored = self._engine.search(query, asked, cancel, allowed)
            products += scored.dot_products
        numbers, scores = scored.numbers, scored.scores
        if np.count_nonzero(scores[1:] == scores[:-1]):  # faster than `any`
            order = np.lexsort((numbers, self._snapshot.positions(numbers), -scores))
            numbers, scores = numbers[order], scores[order]
        return Scored(numbers[:k], scores[:k], products)
