"""The native engine of centroid indexes: documents near the query's centroids, then their exact MaxSim."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from citadel import _native
from citadel.errors import Cancelled, UsageError
from citadel.index.snapshot import Snapshot
from citadel.search.cpu import native_segment, typed_error
from citadel.search.plan import Options, Plan, TermStatistics
from citadel.types import Floats, Scored


class CentroidEngine:
    """Searches a snapshot of a centroid index; a prepared query is the vectors of its tokens [n, d]."""

    def __init__(self, snapshot: Snapshot, threads: int = 1) -> None:
        self._snapshot, self._threads, book = snapshot, threads, snapshot.centroids
        self._book: _native.CentroidBook | None = None
        if book is not None:
            scales = book.scales.view(np.uint16)
            self._book = _native.CentroidBook(book.codes, scales, book.buckets, book.bucket_scale, book.step)
        try:
            segments = [native_segment(snapshot, segment) for segment in snapshot.segments]
            self._native = _native.Snapshot(segments, False, 0.0, 0.0)
        except (_native.CorruptError, _native.ReadError) as error:
            raise typed_error(snapshot, error) from error

    def prepare(self, plan: Plan) -> Floats:
        """The vectors of the query's tokens."""
        return token_rows(plan)

    def prepare_terms(self, terms: list[bytes], repeats: list[int], statistics: TermStatistics) -> Floats:
        raise UsageError("a centroid index takes vectors, not terms")

    def prepare_filter(self, masks: Sequence[NDArray[np.bool_]]) -> _native.Filter:
        """The live documents among the allowed ones, as bitmaps."""
        return self._native.filter([np.packbits(mask, bitorder="little") for mask in masks])

    def search(
        self,
        query: Floats,
        options: Options,
        cancel: _native.Cancel | None = None,
        allowed: _native.Filter | None = None,
    ) -> Scored:
        """The best k documents of one query."""
        return self.search_batch([query], options, cancel, allowed)[0]

    def search_batch(
        self,
        queries: Sequence[Floats],
        options: Options,
        cancel: _native.Cancel | None = None,
        allowed: _native.Filter | None = None,
    ) -> list[Scored]:
        """The best k documents of each query, searched on all threads."""
        exact = options.semantic == "exact"
        numbers = (options.k, exact, options.candidates, options.probes, self._threads)
        try:
            results = _native.search_tokens_batch(
                self._native, queries, self._book, *numbers, cancel, allowed
            )
        except (_native.CorruptError, _native.ReadError) as error:
            raise typed_error(self._snapshot, error) from error
        except _native.CancelledError as error:
            raise Cancelled("the search was cancelled") from error
        return [Scored(*parts) for parts in results]

    def search_timed(self, query: Floats, options: Options) -> tuple[Scored, dict[str, float]]:
        """Search on one thread; also return the seconds per stage: products with centroids, lists, MaxSim."""
        start = time.perf_counter()
        prepared = _native.TokenQuery(query, self._book)
        planned = time.perf_counter()
        if options.semantic != "exact":
            _native.token_candidates(self._native, prepared, options.candidates, options.probes)
        retrieved = time.perf_counter()
        scored = self.search(query, options)
        whole = time.perf_counter() - retrieved
        stages = {"plan": planned - start, "token retrieval": retrieved - planned}
        rest = max(whole - sum(stages.values()), 0.0)
        return scored, {**stages, "accumulate": rest, "semantic": 0.0, "sort": 0.0}


def token_rows(plan: Plan) -> Floats:
    """The vectors of a plan; none for a query without tokens."""
    return np.zeros((0, 1), np.float32) if plan.vectors is None else np.ascontiguousarray(plan.vectors)
