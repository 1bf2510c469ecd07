"""Explain a match in a centroid index: which document token is nearest to each query token."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from citadel.explain.query import ExplainedQuery
from citadel.explain.result import Match, Posting
from citadel.explain.tokens import ANY_NAME, DocumentTokens, Positions
from citadel.index.segment import Segment
from citadel.index.snapshot import Snapshot
from citadel.routing.base import ANY
from citadel.search.centroid_reference import QueryTokens, maxsim
from citadel.types import Floats, Keys

_TOKENS_SHOWN = 3  # document tokens per query token
_WORDS = 3  # of a centroid's name


def centroid_matches(
    snapshot: Snapshot, segment: Segment, passage: int, query: ExplainedQuery, tokens: DocumentTokens
) -> tuple[np.float32 | None, list[Match]]:
    """The score of a passage, and for each query token the nearest tokens of the passage, best first.

    The key of a match is the centroid of its nearest token."""
    start, stop = segment.token_starts[passage : passage + 2].tolist()
    if start == stop or query.plan.vectors is None or not len(query.plan.vectors):
        return None, [_no_match(query, row) for row in range(len(query.rows))]
    products = QueryTokens(query.plan.vectors, snapshot.centroids).products(segment, start, stop)
    score, centroids = maxsim(products), segment.token_centroids(start, stop)
    positions = tokens.postings(ANY, stop - start)
    names = CentroidNames(segment, tokens, positions, centroids)
    return score, [
        _match(query, row, own, float(score), positions, centroids, names) for row, own in enumerate(products)
    ]


def _match(
    query: ExplainedQuery,
    row: int,
    products: Floats,
    score: float,
    positions: Sequence[Positions],
    centroids: Keys,
    names: CentroidNames,
) -> Match:
    best = np.argsort(-products, kind="stable")[:_TOKENS_SHOWN].tolist()
    key, gain = int(centroids[best[0]]), float(products[best[0]])
    postings = tuple(Posting(positions[token], 1.0, 1, float(products[token])) for token in best)
    weight = float(query.plan.weights[row])
    return Match(
        query.rows[row].tokens, key, names.of(key), weight, gain, gain / score if score else None, postings
    )


def _no_match(query: ExplainedQuery, row: int) -> Match:
    return Match(query.rows[row].tokens, None, ANY_NAME, float(query.plan.weights[row]), 0.0, None, ())


class CentroidNames:
    """Names of centroids: the words of the document's tokens that are nearest to each."""

    def __init__(
        self, segment: Segment, tokens: DocumentTokens, positions: Sequence[Positions], centroids: Keys
    ) -> None:
        self._has_centroids = segment.meta.has_centroids
        texts = {token.position: token.token for token in tokens.tokens}
        self._words: dict[int, list[str]] = {}
        for own, centroid in zip(positions, centroids.tolist(), strict=True):
            words = self._words.setdefault(centroid, [])
            words += [word for position in own if (word := texts.get(position)) and word not in words]

    def of(self, centroid: int) -> str | None:
        """The name of a centroid; None without the document's words."""
        if not self._has_centroids:
            return ANY_NAME
        return " ".join(self._words.get(centroid, [])[:_WORDS]) or None
