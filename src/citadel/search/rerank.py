"""Reranking: a function of the query and the texts of the best hits gives them new scores."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from citadel.errors import Cancelled, RerankError, UsageError
from citadel.search.hits import Hits
from citadel.search.ranked_hits import RankedHits, Row
from citadel.search.request import check_page
from citadel.text.values import unwrapped
from citadel.types import Hit, Ranking, ScorePart

Rerank = Callable[[str, list[str]], Any]  # query, texts → a score per text
_MAX_TEXT = 100_000  # characters of a text; no cross-encoder reads more
_NAME = "rerank"


class RerankPage:
    """A reranker, how many hits it scores, and which of them are returned."""

    def __init__(self, rerank: Rerank, rerank_k: int, k: int, offset: int, min_score: float | None) -> None:
        if not callable(rerank):
            raise UsageError(
                f"rerank must be a function of a query and a list of texts, not {type(rerank).__name__}"
            )
        number = unwrapped(rerank_k)
        if isinstance(number, bool) or not isinstance(number, int) or number < 1:
            raise UsageError(f"rerank_k must be a whole number of 1 or more, not {rerank_k!r}")
        self._rerank = rerank
        self._k, self._offset, self._min_score = check_page(
            unwrapped(k), unwrapped(offset), unwrapped(min_score)
        )
        self.depth = max(number, self._k + self._offset) if self._k else 0

    def hits(self, query: str, hits: Hits) -> RankedHits:
        """The requested page of hits, ordered by the reranker; equal scores keep their order."""
        scores = call_reranker(self._rerank, query, hits)
        order = sorted(range(len(scores)), key=lambda index: -scores[index])
        if self._min_score is not None:
            order = [index for index in order if scores[index] >= self._min_score]
        ranked = list(enumerate(order, 1))[self._offset : self._offset + self._k]
        rows = [_row(hits, index, rank, scores[index]) for rank, index in ranked]
        return RankedHits(rows, self._offset, hits.query_cut, hits.tau, hits.shards)

    def ranking(self, queries: Mapping[str, str], ranking: Ranking) -> Ranking:
        """The same for the hits of many queries."""
        pairs = ((queries[id], hits) for id, hits in ranking)
        reranked = [self.hits(query, hits) for query, hits in pairs if isinstance(hits, Hits)]
        return Ranking(ranking.query_ids, tuple(reranked))


def _row(hits: Hits, index: int, rank: int, score: float) -> Row:
    hit = hits[index]
    first = hit.parts or (ScorePart("search", hit.score, hit.rank, 0.0),)
    parts = tuple(ScorePart(part.name, part.score, part.rank, 0.0) for part in first)
    return Row(hit.id, score, ((hits, index),), (*parts, ScorePart(_NAME, score, rank, score)))


def call_reranker(rerank: Rerank, query: str, hits: Hits) -> list[float]:
    """Call a reranker and check its scores."""
    texts = _texts(hits)
    if not texts:
        return []
    try:
        scores = list(rerank(query, texts))
    except Cancelled:
        raise
    except Exception as error:
        raise RerankError(
            f"rerank raised {type(error).__name__} for {len(texts)} texts: {str(error) or 'no message'}"
        ) from error
    if len(scores) != len(texts):
        raise RerankError(f"rerank returned {len(scores)} scores for {len(texts)} texts: return one per text")
    return [_score(score, position) for position, score in enumerate(scores, 1)]


def _score(given: Any, position: int) -> float:
    try:
        if isinstance(given, str | bytes | bool):
            raise TypeError
        score = float(given)  # also numpy scalars and tensors of one element
    except (TypeError, ValueError, OverflowError):
        raise RerankError(
            f"rerank returned no number for text {position}: return one score per text"
        ) from None
    if not math.isfinite(score):
        raise RerankError(f"rerank returned {score} for text {position}: return finite scores")
    return score


def _texts(hits: Sequence[Hit]) -> list[str]:
    """Title and text of each hit; of a long document the passage that matched."""
    assert isinstance(hits, Hits)
    texts = []
    for index, (_, title, text, _) in enumerate(hits.fields(0, len(hits), _MAX_TEXT)):
        passage = hits.best_passage(index)
        texts.append(f"{title} {text if passage is None else passage.text}".strip())
    return texts
