"""The reference engine of centroid indexes, in numpy: defines the results of the others, bit for bit."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from citadel.errors import Cancelled, UsageError
from citadel.index.centroid_book import CentroidBook
from citadel.index.quantize import Encoded
from citadel.index.segment import Segment
from citadel.index.snapshot import Snapshot
from citadel.index.trellis import rotated_scaled
from citadel.routing.centroid import probed_centroids
from citadel.search.centroid import token_rows
from citadel.search.plan import Options, Plan, TermStatistics
from citadel.search.reference import AllowedDocuments, PostingRun, dots, quantized
from citadel.search.topk import best
from citadel.types import Floats, Keys, Scored

if TYPE_CHECKING:
    from citadel._native import Cancel


class QueryTokens:
    """The vectors of a query's tokens [n, d], and their products with centroids and stored tokens."""

    def __init__(self, vectors: Floats, book: CentroidBook | None) -> None:
        self.vectors, self._book = vectors, book

    @cached_property
    def centroids(self) -> Floats:
        """The products with the centroids: [n, K]."""
        assert self._book is not None
        centroids = Encoded("int8", self._book.codes, self._book.scales)
        return np.stack([dots(vector, centroids) for vector in self.vectors])

    def products(self, segment: Segment, start: int, stop: int) -> Floats:
        """The products with stored tokens start … stop − 1: [n, stop − start]."""
        encoded, book = segment.encoded(start, stop), self._book
        if not segment.meta.has_residuals:
            return np.stack([dots(vector, encoded) for vector in self.vectors])
        assert book is not None
        assert encoded.scales is not None
        keys = segment.token_centroids(start, stop)
        if len(keys) and int(keys.max()) >= len(book):
            raise segment.file["TOKEN_CENTROIDS"].corrupt(f"centroid {keys.max()} does not exist")
        values = book.window_codes(encoded.codes).astype(np.float32)  # [P, d]
        lengths = book.lengths(encoded.scales)
        rows = [self._row(token, keys, values, lengths, book) for token in range(len(self.vectors))]
        return np.stack(rows)

    @cached_property
    def _of_residuals(self) -> tuple[Floats, Floats]:
        return residual_tokens(self.vectors, self._book)

    def _row(self, token: int, keys: Keys, values: Floats, lengths: Floats, book: CentroidBook) -> Floats:
        codes, scale = (part[token] for part in self._of_residuals)
        with np.errstate(all="ignore"):  # BLAS also computes unused lanes, which may warn
            exact = values @ codes  # integers below 2²⁴: exact in any order
        residuals = (exact * lengths) * (np.float32(book.bucket_scale) * scale)
        products: Floats = self.centroids[token, keys] + residuals
        return products


def residual_tokens(vectors: Floats, book: CentroidBook | None) -> tuple[Floats, Floats]:
    """A query's vectors, rotated where the residuals of this book are, as codes [n, d] and scales [n]."""
    if book is None or not book.memory:
        return coded(vectors)
    rows, divisors = rotated_scaled(vectors)
    codes, scales = coded(rows)
    return codes, scales * divisors


def coded(vectors: Floats) -> tuple[Floats, Floats]:
    """A query's vectors as int8 codes [n, d] and their scales [n]."""
    pairs = [quantized(vector) for vector in vectors]
    return np.stack([codes for codes, _ in pairs]), np.array([scale for _, scale in pairs], np.float32)


def maxsim(products: Floats) -> np.float32:
    """The sum of each query token's largest product [n, P], in token order."""
    total = np.float32(0)
    for value in products.max(axis=1):
        total = total + value
    return np.float32(total)


class CentroidReference:
    """Searches a centroid index with numpy; a prepared query is the vectors of its tokens [n, d]."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot

    def prepare(self, plan: Plan) -> Floats:
        """The vectors of the query's tokens."""
        return token_rows(plan)

    def prepare_terms(self, terms: list[bytes], repeats: list[int], statistics: TermStatistics) -> Floats:
        raise UsageError("a centroid index takes vectors, not terms")

    def prepare_filter(self, masks: Sequence[NDArray[np.bool_]]) -> AllowedDocuments:
        """The live documents among the allowed ones."""
        return AllowedDocuments([alive & mask for alive, mask in zip(self._live(), masks, strict=True)])

    def _live(self) -> list[NDArray[np.bool_]]:
        return [self._snapshot.alive(segment) for segment in self._snapshot.segments]

    def search_batch(
        self,
        queries: Sequence[Floats],
        options: Options,
        cancel: Cancel | None = None,
        allowed: AllowedDocuments | None = None,
    ) -> list[Scored]:
        """The best k documents of each query."""
        return [self.search(query, options, cancel, allowed) for query in queries]

    def search(
        self,
        query: Floats,
        options: Options,
        cancel: Cancel | None = None,
        allowed: AllowedDocuments | None = None,
    ) -> Scored:
        """The best k documents of one query; the flag is read before the search."""
        if cancel is not None and cancel.is_set():
            raise Cancelled("the search was cancelled")
        if not len(query):
            return Scored(np.zeros(0, np.int64), np.zeros(0, np.float32))
        masks = self._live() if allowed is None else allowed.masks
        with self._snapshot.whole():
            available = sum(int(mask.sum()) for mask in masks)
            wanted = min(options.k, available)
            if options.semantic != "exact" and available > max(options.candidates, wanted):
                scored = self._rank(query, self._candidates(query, options, masks), options.k)
                if len(scored.numbers) >= wanted:
                    return scored
            everything = np.flatnonzero(np.concatenate([np.zeros(0, bool), *masks]))
            return self._rank(query, everything, options.k)

    def _candidates(
        self, query: Floats, options: Options, masks: Sequence[NDArray[np.bool_]]
    ) -> NDArray[np.int64]:
        """The numbers of the documents to score, ascending."""
        numbers, gains, whole = [np.zeros(0, np.int64)], [np.zeros(0, np.float32)], [np.zeros(0, np.int64)]
        for position, (segment, mask) in enumerate(zip(self._snapshot.segments, masks, strict=True)):
            base = int(self._snapshot.passage_bases[position])
            if not segment.meta.has_centroids:
                whole.append(base + np.flatnonzero(mask))
                continue
            own, own_gains = self._touched(segment, query, options.probes)
            numbers.append(base + own[mask[own]])
            gains.append(own_gains[mask[own]])
        chosen = best(np.concatenate(numbers), np.concatenate(gains), options.candidates).numbers
        return np.sort(np.concatenate([chosen, *whole]))

    def _touched(self, segment: Segment, query: Floats, nprobe: int) -> tuple[NDArray[np.int64], Floats]:
        """The documents of the probed lists, and how far their imputed scores exceed those of others."""
        products = QueryTokens(query, self._snapshot.centroids).centroids
        probes = probed_centroids(products, nprobe)
        totals, is_touched = np.zeros(segment.passages, np.float32), np.zeros(segment.passages, np.bool_)
        for row, own in zip(products, probes, strict=True):
            gains = np.zeros(segment.passages, np.float32)
            for centroid in own[::-1].tolist():  # the best one last, so that it stays
                documents = _list_documents(segment, centroid)
                gains[documents] = row[centroid] - row[own[-1]]
                is_touched[documents] = True
            totals += gains
        touched = np.flatnonzero(is_touched)
        return touched, totals[touched]

    def _rank(self, query: Floats, numbers: NDArray[np.int64], k: int) -> Scored:
        """The best k of these documents; those without tokens have no score."""
        scored, scores, tokens = [], [], QueryTokens(query, self._snapshot.centroids)
        owners = np.searchsorted(self._snapshot.passage_bases, numbers, side="right") - 1
        for number, owner in zip(numbers.tolist(), owners.tolist(), strict=True):
            segment, own = self._snapshot.segments[owner], number - int(self._snapshot.passage_bases[owner])
            start, stop = segment.token_starts[own : own + 2].tolist()
            if start < stop:
                scored.append(number)
                scores.append(maxsim(tokens.products(segment, start, stop)))
        return best(np.array(scored, np.int64), np.array(scores, np.float32), k)


def _list_documents(segment: Segment, key: int) -> NDArray[np.int64]:
    keys: Keys = segment.keys
    position = int(np.searchsorted(keys, key))
    if position == len(keys) or keys[position] != key:
        return np.zeros(0, np.int64)
    return PostingRun.whole(segment, position).documents
