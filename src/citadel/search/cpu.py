"""The native engine over a snapshot's files."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from citadel import _native
from citadel.errors import Cancelled, CorruptIndexError
from citadel.index.segment import Segment
from citadel.index.snapshot import Snapshot
from citadel.search.plan import Options, Plan
from citadel.types import Scored


class CpuEngine:
    """Searches a snapshot with the instruction set this machine is fastest with."""

    def __init__(self, snapshot: Snapshot, floor: bool, norm: tuple[float, float], threads: int = 1) -> None:
        self._snapshot, self._threads = snapshot, threads
        book = snapshot.codebook
        self._codebook: _native.Codebook | None = None
        if book is not None:
            self._codebook = _native.Codebook(book.centroids, book.scale_keys, book.key_scales, book.global_scale)
        with _typed_errors():
            self._native = _native.Snapshot([self._segment(segment) for segment in snapshot.segments], floor, *norm)

    def _segment(self, segment: Segment) -> _native.Segment:
        meta, deleted = segment.meta, self._snapshot.deleted(segment)
        sections = [(section.name, section.data, section.crcs) for section in segment.file.sections.values()]
        return _native.Segment(
            segment.name,
            segment.documents,
            meta.kind,
            meta.dimension,
            meta.codec,
            meta.semantic_dimension,
            meta.semantic_codec,
            sections,
            deleted.bitmap(segment.documents) if len(deleted.documents) else None,
            self._codebook if meta.codec.startswith("pq") else None,
        )

    def find(self, plan: Plan) -> NDArray[np.int64]:
        """The list of each query token in each segment [segments, n]; -1 where there is none."""
        with _typed_errors():
            return self._native.find_terms(plan.terms) if plan.terms else self._native.find_keys(plan.keys)

    def lengths(self, lists: NDArray[np.int64]) -> NDArray[np.int64]:
        """Postings of each list [segments, n]."""
        with _typed_errors():
            return self._native.list_lengths(lists)

    def search(
        self, plan: Plan, lists: NDArray[np.int64], options: Options, cancel: _native.Cancel | None = None
    ) -> Scored:
        """The best k documents of one query."""
        semantic = "off" if plan.semantic is None else options.semantic
        query = _native.Query(lists, plan.weights, plan.vectors, plan.semantic)
        with _typed_errors():
            numbers, scores, dots = self._native.search(
                query,
                options.k,
                semantic,
                options.candidates,
                options.probes,
                options.weight_floor,
                self._threads,
                cancel,
            )
        return Scored(numbers, scores, dots)

    def search_batch(
        self, plans: Sequence[tuple[Plan, NDArray[np.int64]]], options: Options, cancel: _native.Cancel | None = None
    ) -> list[Scored]:
        """The best k documents of each query, the queries spread over the threads."""
        if options.semantic != "off" and any(plan.semantic is None for plan, _ in plans):
            return [self.search(plan, lists, options, cancel) for plan, lists in plans]
        queries = [_native.Query(lists, plan.weights, plan.vectors, plan.semantic) for plan, lists in plans]
        with _typed_errors():
            found = self._native.search_batch(
                queries,
                options.k,
                options.semantic,
                options.candidates,
                options.probes,
                options.weight_floor,
                self._threads,
                cancel,
            )
        return [Scored(*parts) for parts in found]


class _typed_errors:  # noqa: N801 - reads as a statement
    """Native errors as this package's own."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, _native.CorruptError):
            raise CorruptIndexError(*[*str(error).split("\t"), "", ""][:3]) from error
        if isinstance(error, _native.CancelledError):
            raise Cancelled("the search was cancelled") from error
