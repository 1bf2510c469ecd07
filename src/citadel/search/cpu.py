"""The native engine."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from citadel import _native
from citadel.errors import Cancelled, CitadelError, CorruptIndexError
from citadel.index.graph_file import read_graph
from citadel.index.segment import Segment
from citadel.index.snapshot import Snapshot
from citadel.search.plan import NO_KEYS, Options, Plan, TermStatistics
from citadel.types import Scored

GRAPH_MODES = ("graph", "auto")
STAGES = ("plan", "token retrieval", "accumulate", "semantic", "sort")


class CpuEngine:
    """Searches a snapshot with the fastest instruction set of this machine."""

    def __init__(self, snapshot: Snapshot, floor: bool, norm: tuple[float, float], threads: int = 1) -> None:
        self._snapshot, self._threads = snapshot, threads
        book = snapshot.codebook
        self._codebook: _native.Codebook | None = None
        if book is not None:
            self._codebook = _native.Codebook(
                book.centroids, book.scale_keys, book.key_scales, book.global_scale
            )
        with self._typed():
            self._native = _native.Snapshot(
                [native_segment(snapshot, segment, self._codebook) for segment in snapshot.segments],
                floor,
                *norm,
                [self._graph(segment) for segment in snapshot.segments],
            )
        self._ignores_graphs = False

    def _typed(self) -> _typed_errors:
        return _typed_errors(self)

    def _corrupt(self, error: Exception) -> CitadelError:
        return typed_error(self._snapshot, error)

    def _graph(self, segment: Segment) -> _native.Graph | None:
        """The graph of a segment; None without one, or with a warning if it is damaged."""
        record = segment.record.graph_file
        if record is None:
            return None
        try:
            graph = read_graph(segment.storage, record, segment.index_id, segment)
            meta, sections = graph.meta, graph.file.sections.values()
            counts = (meta.rows, meta.dimension, meta.postings, meta.links, meta.lists, meta.seeds)
            parts = [(section.name, section.data, section.crcs) for section in sections]
            return _native.Graph(graph.file.name, *counts, parts)
        except (CorruptIndexError, _native.CorruptError) as error:
            _warn(self._snapshot, error)
            return None

    def _without_graphs(self, options: Options, error: Exception) -> Options | None:
        """The options for an exact search if a graph turned out to be damaged; None for another error."""
        if options.semantic not in GRAPH_MODES or not str(error).startswith("graph-"):
            return None
        if not self._ignores_graphs:
            self._ignores_graphs = True
            _warn(self._snapshot, error)
        return options._replace(semantic="exact")

    def prepare(self, plan: Plan) -> _native.Query:
        """Look up the list of each query token in each segment."""
        with self._typed():
            return self._query(plan, self._native.find_keys(plan.keys))

    def prepare_terms(
        self, terms: list[bytes], repeats: list[int], statistics: TermStatistics
    ) -> _native.Query:
        """Prepare a bm25 query from its distinct terms, in byte order, and their counts in the query."""
        if not statistics.has_deletions:
            try:
                return self._native.plan_terms(terms, repeats, statistics.documents)
            except _native.CorruptError as error:
                raise self._corrupt(error) from error
        with self._typed():
            lists = self._native.find_terms(terms)
            return self._query(Plan(NO_KEYS, self._weights(lists, repeats, statistics)), lists)

    def _query(self, plan: Plan, lists: NDArray[np.int64]) -> _native.Query:
        return _native.Query(lists, plan.weights, plan.vectors, plan.semantic)

    def term_weights(
        self, terms: list[bytes], repeats: list[int], statistics: TermStatistics
    ) -> NDArray[np.float32]:
        """The weight of each term of a bm25 query, by the statistics of this snapshot."""
        with self._typed():
            return self._weights(self._native.find_terms(terms), repeats, statistics)

    def _weights(
        self, lists: NDArray[np.int64], repeats: list[int], statistics: TermStatistics
    ) -> NDArray[np.float32]:
        frequencies = statistics.frequencies(lists, self._native.list_lengths(lists))
        return statistics.weights(frequencies, repeats)

    def prepare_weighted(self, terms: list[bytes], weights: NDArray[np.float32]) -> _native.Query:
        """Prepare a bm25 query whose terms have weights."""
        with self._typed():
            return self._query(Plan(NO_KEYS, weights), self._native.find_terms(terms))

    def prepare_filter(self, masks: Sequence[NDArray[np.bool_]]) -> _native.Filter:
        """The live documents among the allowed ones, as bitmaps."""
        return self._native.filter([np.packbits(mask, bitorder="little") for mask in masks])

    def search(
        self,
        query: _native.Query,
        options: Options,
        cancel: _native.Cancel | None = None,
        allowed: _native.Filter | None = None,
    ) -> Scored:
        """The best k documents of one query."""
        if self._ignores_graphs and options.semantic in GRAPH_MODES:
            options = options._replace(semantic="exact")
        try:  # not `with`, which costs half a microsecond on the hot path
            return Scored(*self._native.search(query, *options, self._threads, cancel, allowed))
        except (_native.CorruptError, _native.ReadError) as error:
            if exact := self._without_graphs(options, error):
                return self.search(query, exact, cancel, allowed)
            raise self._corrupt(error) from error
        except _native.CancelledError as error:
            raise Cancelled("the search was cancelled") from error

    def search_timed(self, query: _native.Query, options: Options) -> tuple[Scored, dict[str, float]]:
        """Search on one thread; also return the seconds per stage."""
        with self._typed():
            scored, nanoseconds = self._native.search_timed(query, *options)
        return Scored(*scored), dict(zip(STAGES, (nanoseconds * 1e-9).tolist(), strict=True))

    def list_numbers(self, plan: Plan) -> NDArray[np.int64]:
        """The list of each query token in each segment [segments, n], -1 for none."""
        with self._typed():
            return self._native.find_keys(plan.keys)

    def search_batch(
        self,
        queries: Sequence[_native.Query],
        options: Options,
        cancel: _native.Cancel | None = None,
        allowed: _native.Filter | None = None,
    ) -> list[Scored]:
        """The best k documents of each query, searched on all threads."""
        if self._ignores_graphs and options.semantic in GRAPH_MODES:
            options = options._replace(semantic="exact")
        try:
            results = self._native.search_batch(queries, *options, self._threads, cancel, allowed)
        except (_native.CorruptError, _native.ReadError) as error:
            if exact := self._without_graphs(options, error):
                return self.search_batch(queries, exact, cancel, allowed)
            raise self._corrupt(error) from error
        except _native.CancelledError as error:
            raise Cancelled("the search was cancelled") from error
        return [Scored(*parts) for parts in results]


def typed_error(snapshot: Snapshot, error: Exception) -> CitadelError:
    """The typed error for a file that is damaged, truncated or unreadable."""
    try:
        with snapshot.whole():
            pass
    except CitadelError as reason:
        return reason
    return CorruptIndexError(*[*str(error).split("\t"), "", ""][:3])


def native_segment(
    snapshot: Snapshot, segment: Segment, codebook: _native.Codebook | None = None
) -> _native.Segment:
    """A segment as the native engine reads it."""
    meta, deleted = segment.meta, None
    if len(snapshot.deleted(segment).documents):
        deleted = np.packbits(~snapshot.alive(segment), bitorder="little")
    sections = [(section.name, section.data, section.crcs) for section in segment.file.sections.values()]
    return _native.Segment(
        segment.name,
        segment.passages,
        meta.kind,
        meta.dimension,
        meta.codec,
        meta.semantic_dimension,
        meta.semantic_codec,
        sections,
        deleted,
        codebook if meta.codec.startswith("pq") else None,
    )


def _warn(snapshot: Snapshot, error: Exception) -> None:
    """Log that a graph is not used."""
    where, reason = snapshot.storage.location, " ".join(str(error).split())
    logging.getLogger("citadel").warning(
        "%s: a graph is damaged, so its segment is searched exactly (%s); "
        "repair it with `citadel check %s --repair` and `citadel optimize %s`",
        *(where, reason, where, where),
    )


class _typed_errors:  # noqa: N801 - used like a function
    """Raise native errors as citadel errors."""

    def __init__(self, engine: CpuEngine) -> None:
        self._engine = engine

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, (_native.CorruptError, _native.ReadError)):
            raise self._engine._corrupt(error) from error
        if isinstance(error, _native.CancelledError):
            raise Cancelled("the search was cancelled") from error
