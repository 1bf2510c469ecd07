"""The reference engine in numpy: defines the results of all engines, bit for bit.

All arithmetic is fp32 in a fixed order, without fused multiply-add (docs/how-it-works/search.md), so every
engine and every instruction set returns the same scores.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from citadel.index.centroids import read_probe
from citadel.index.codebook import Codebook
from citadel.index.quantize import Encoded
from citadel.index.segment import Segment
from citadel.index.snapshot import Snapshot
from citadel.search.plan import NO_KEYS, PROBED_LISTS, Options, Plan, TermStatistics
from citadel.search.topk import best
from citadel.types import Floats, Keys, Scored

LANES = 16


def quantized(query: Floats) -> tuple[Floats, np.float32]:
    """A query vector as int8 codes and their scale."""
    scale = np.float32(np.abs(query).max(initial=0) / np.float32(127))
    return np.rint(query / scale) if scale else np.zeros_like(query), scale


def dots(query: Floats, rows: Encoded, keys: Keys | None = None, book: Codebook | None = None) -> Floats:
    """Dot products of a query vector [d] with coded vectors [P]: [P]."""
    if rows.codec == "int8":
        codes, scale = quantized(query)
        assert rows.scales is not None
        with np.errstate(all="ignore"):  # BLAS also computes unused lanes, which may warn
            exact = rows.codes.astype(np.float32) @ codes  # integers below 2²⁴: exact in any order
        return exact * rows.scales.astype(np.float32) * scale
    if rows.codec == "fp16":
        products = rows.codes.astype(np.float32) * query  # [P, d]
        products = np.pad(products, ((0, 0), (0, -products.shape[1] % LANES))).reshape(len(rows), -1, LANES)
        lanes = np.zeros((len(rows), LANES), np.float32)
        for row in range(products.shape[1]):
            lanes = lanes + products[:, row]
        for half in (8, 4, 2, 1):
            lanes = lanes[:, :half] + lanes[:, half : 2 * half]
        return lanes[:, 0]
    assert book is not None
    assert keys is not None
    parts = book.centroids * query.reshape(len(book.centroids), 1, -1)  # [S, 256, sub]
    table = _in_order(np.moveaxis(parts, 2, 0))  # [S, 256]
    step = np.float32(_in_order(np.abs(table).max(axis=1)) / np.float32(32767 - len(table)))
    if step < np.finfo(np.float32).tiny:  # subnormal and imprecise: sums could exceed 16 bits
        return np.zeros(len(rows.codes), np.float32)
    whole = np.rint(table / step).astype(np.int32)  # sums fit 16 bits
    sums = whole[np.arange(len(table)), rows.codes].sum(axis=1, dtype=np.int32)  # [P]
    scored: Floats = sums.astype(np.float32) * step * book.scales_for(keys)
    return scored


def _in_order(terms: Floats) -> Floats:
    """Sum over the first axis, in order."""
    total: Floats = terms[0]
    for term in terms[1:]:
        total = total + term
    return total


class PostingRun(NamedTuple):
    """Postings start … stop − 1 of a segment, all of one list, with their documents."""

    list: int
    start: int
    stop: int
    documents: NDArray[np.int64]  # [stop − start]
    counts: NDArray[np.int64] | None = None  # [stop − start], of a bm25 segment

    @classmethod
    def whole(cls, segment: Segment, list: int) -> PostingRun:
        """All postings of a list."""
        start, stop = segment.list_starts[list : list + 2].tolist()
        counts = segment.counts(list, list + 1) if segment.meta.kind == "bm25" else None
        return cls(list, start, stop, segment.document_numbers(list, list + 1), counts)


class PostingProducts:
    """Products of postings with one query token."""

    def __init__(self, norm: tuple[float, float], book: Codebook | None) -> None:
        self._base, self._slope, self._book = np.float32(norm[0]), np.float32(norm[1]), book

    def __call__(self, segment: Segment, plan: Plan, token: int, run: PostingRun) -> Floats:
        """The products [stop − start] of the run with query token `token`."""
        if segment.meta.kind in ("sparse", "bm25"):
            products: Floats = self.weights(segment, run) * plan.weights[token]
            return products
        assert plan.vectors is not None
        keys = np.full(run.stop - run.start, segment.keys[run.list], np.uint32)
        return dots(plan.vectors[token], segment.encoded(run.start, run.stop), keys, self._book)

    def weights(self, segment: Segment, run: PostingRun) -> Floats:
        """The weights of postings without vectors: as stored (sparse), or the tf part (bm25)."""
        if run.counts is None:
            stored: Floats = segment.file["VALUES"].array(np.float16, run.start, run.stop).astype(np.float32)
            return stored
        counts = run.counts.astype(np.float32)
        norms = self._base + self._slope * segment.lengths[run.documents].astype(np.float32)
        parts: Floats = (counts / (counts + norms)).astype(np.float32, copy=False)
        return parts


Prepared = tuple[Plan, NDArray[np.int64]]  # lists [segments, n]; -1 for none


def _positions(names: Sequence[Sequence[object]], requested: Sequence[object]) -> NDArray[np.int64]:
    """The position of each requested name in each segment's sorted names; -1 for none."""
    tables = [{name: position for position, name in enumerate(own)} for own in names]
    rows = [[table.get(name, -1) for name in requested] for table in tables]
    return np.array(rows, np.int64).reshape(len(names), len(requested))


class _Rows(NamedTuple):
    """The documents that may be returned, as one mask per segment."""

    masks: Sequence[NDArray[np.bool_]]
    is_filtered: bool

    def counted(self, segment: int) -> NDArray[np.bool_] | None:
        """What counts while centroids are probed; None: every document, also deleted ones."""
        return self.masks[segment] if self.is_filtered else None


class AllowedDocuments:
    """The live documents that a filter allows, as one mask per segment."""

    def __init__(self, masks: Sequence[NDArray[np.bool_]]) -> None:
        self.masks = masks

    def __len__(self) -> int:
        return sum(int(mask.sum()) for mask in self.masks)


class ReferenceEngine:
    """Searches a snapshot exhaustively."""

    def __init__(self, snapshot: Snapshot, floor: bool, norm: tuple[float, float]) -> None:
        self._snapshot, self._floor = snapshot, floor
        self._values = PostingProducts(norm, snapshot.codebook)

    def prepare(self, plan: Plan) -> Prepared:
        """A plan and the list of each of its tokens in each segment."""
        with self._snapshot.whole():
            names = [segment.keys.tolist() if segment.lists else [] for segment in self._snapshot.segments]
        return plan, _positions(names, plan.keys.tolist())

    def prepare_terms(self, terms: list[bytes], repeats: list[int], statistics: TermStatistics) -> Prepared:
        """Prepare a bm25 query from its distinct terms and their counts in the query."""
        segments = self._snapshot.segments
        with self._snapshot.whole():
            lists = _positions([segment.terms for segment in segments], terms)
            sizes = [np.append(np.diff(segment.list_starts), 0) for segment in segments]
        lengths = np.array([size[row] for size, row in zip(sizes, lists, strict=True)], np.int64).reshape(
            lists.shape
        )
        return Plan(NO_KEYS, statistics.weights(statistics.frequencies(lists, lengths), repeats)), lists

    def prepare_filter(self, masks: Sequence[NDArray[np.bool_]]) -> AllowedDocuments:
        """The live documents among the allowed ones."""
        pairs = zip(self._live(), masks, strict=True)
        return AllowedDocuments([alive & mask for alive, mask in pairs])

    def _live(self) -> list[NDArray[np.bool_]]:
        snapshot = self._snapshot
        return [snapshot.alive(segment) for segment in snapshot.segments]

    def search_batch(
        self,
        queries: Sequence[Prepared],
        options: Options,
        _: object = None,
        allowed: AllowedDocuments | None = None,
    ) -> list[Scored]:
        """The best k documents of each query."""
        return [self.search(query, options, None, allowed) for query in queries]

    def search(
        self, query: Prepared, options: Options, _: object = None, allowed: AllowedDocuments | None = None
    ) -> Scored:
        """The best k documents of one query; the cancel flag is ignored."""
        with self._snapshot.whole():
            return self._ranked(query, options, allowed)

    def _ranked(self, query: Prepared, options: Options, allowed: AllowedDocuments | None) -> Scored:
        plan, lists = query
        has_no_lists = options.semantic == "rerank" and (lists < 0).all()
        exact = has_no_lists or options.semantic in ("exact", "graph", "auto")
        mode = "off" if plan.semantic is None else "exact" if exact else options.semantic
        scored = self._search(plan, lists, options, mode, allowed)
        available = self._snapshot.live_passages if allowed is None else len(allowed)
        if mode == "rerank" and len(scored.numbers) < min(options.k, available):
            return self._search(plan, lists, options, "exact", allowed)
        return scored

    def _search(
        self,
        plan: Plan,
        lists: NDArray[np.int64],
        options: Options,
        mode: str,
        allowed: AllowedDocuments | None,
    ) -> Scored:
        masks = self._live() if allowed is None else allowed.masks
        parts = [self._segment(i, plan, lists[i], options, mask) for i, mask in enumerate(masks)]
        numbers = np.concatenate([np.zeros(0, np.int64), *(numbers for numbers, _ in parts)])
        scores = np.concatenate([np.zeros(0, np.float32), *(scores for _, scores in parts)])
        if mode != "off" and plan.semantic is not None:
            rows = _Rows(masks, is_filtered=allowed is not None)
            numbers, scores = self._add_semantic(plan.semantic, numbers, scores, options, mode, rows)
        return best(numbers, scores, options.k)

    def _segment(
        self,
        position: int,
        plan: Plan,
        lists: NDArray[np.int64],
        options: Options,
        allowed: NDArray[np.bool_],
    ) -> tuple[NDArray[np.int64], Floats]:
        """Global numbers and token scores of the allowed documents of a segment that match."""
        segment = self._snapshot.segments[position]
        values = list(self._token_values(segment, plan, lists, options.weight_floor))
        touched = np.unique(np.concatenate([np.zeros(0, np.int64), *(documents for documents, _ in values)]))
        scores = np.zeros(len(touched), np.float32)
        for documents, gains in values:
            scores[np.searchsorted(touched, documents)] += gains
        live = allowed[touched]
        return touched[live] + self._snapshot.passage_bases[position], scores[live]

    def _token_values(
        self, segment: Segment, plan: Plan, lists: NDArray[np.int64], floor: int
    ) -> Iterator[tuple[NDArray[np.int64], Floats]]:
        """For each query token with a list: the documents of the list, and what it adds to each."""
        for token, number in enumerate(lists.tolist()):
            if number < 0:
                continue
            run = PostingRun.whole(segment, number)
            documents, values = run.documents, self._values(segment, plan, token, run)
            if floor and "WEIGHTS" in segment.file:
                kept = segment.file["WEIGHTS"].array(np.uint8, run.start, run.stop) > floor
                documents, values = documents[kept], values[kept]
            first = np.flatnonzero(np.diff(documents, prepend=-1))
            if len(first):
                gains = np.maximum.reduceat(values, first)
                yield documents[first], (np.maximum(gains, np.float32(0)) if self._floor else gains)

    def _add_semantic(
        self,
        query: Floats,
        touched: NDArray[np.int64],
        scores: Floats,
        options: Options,
        mode: str,
        rows: _Rows,
    ) -> tuple[NDArray[np.int64], Floats]:
        """Add semantic products: to all documents (`exact`), or to candidates and probed ones (`rerank`)."""
        segments = self._snapshot.segments
        alive = np.concatenate([np.zeros(0, bool), *rows.masks])  # [N]
        products = [dots(query, segment.semantic(0, segment.passages)) for segment in segments]
        semantic = np.concatenate([np.zeros(0, np.float32), *products])  # [N]
        chosen = np.flatnonzero(alive)
        if mode == "rerank":
            groups = [
                self._probed(segment, query, options.probes, rows.counted(i))
                + self._snapshot.passage_bases[i]
                for i, segment in enumerate(segments)
            ]
            probed = np.concatenate([np.zeros(0, np.int64), *groups])
            chosen = np.union1d(best(touched, scores, options.candidates).numbers, probed[alive[probed]])
        tokens = np.zeros(len(alive), np.float32)
        tokens[touched] = scores
        return chosen, tokens[chosen] + semantic[chosen]

    def _probed(
        self, segment: Segment, query: Floats, probes: int, counted: NDArray[np.bool_] | None
    ) -> NDArray[np.int64]:
        """The documents of the nearest centroids: at least PROBED_LISTS lists and `probes` documents.

        With a filter, only allowed documents are `counted`."""
        if "PROBE_CENTROIDS" not in segment.file:
            return np.arange(segment.passages)
        centroids, groups, documents = read_probe(segment.file, segment.passages).parts()
        starts = groups.astype(np.int64)
        order = np.lexsort((np.arange(len(centroids)), -_in_order((centroids * query).T)))
        sizes = np.diff(starts)
        if counted is not None:
            sizes = np.array([counted[documents[a:b]].sum() for a, b in itertools.pairwise(starts)])
        enough = int(np.searchsorted(np.cumsum(sizes[order]), probes)) + 1
        return np.concatenate(
            [documents[starts[c] : starts[c + 1]] for c in order[: max(enough, PROBED_LISTS)]]
        ).astype(np.int64)
