"""Search with the Triton kernels: all queries of a batch at once, without waiting for the device."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import triton
from torch import Tensor

from citadel.search.gpu import kernels, pq_kernel, scan, shared_memory, topk_kernels
from citadel.search.gpu.batch import Batch, SegmentTokens
from citadel.search.gpu.device_index import DeviceIndex
from citadel.search.gpu.lists import CodedRows, DeviceLists
from citadel.search.gpu.workspace import COMBINED, ProbedDocuments, TopCandidates, Workspace, make_workspace
from citadel.search.plan import PROBED_LISTS, Options

POSTINGS_PER_BLOCK, WARPS = 64, 1  # score kernel
TABLE_WARPS = 8  # pq table kernel
SCORES_PER_TILE = 512  # scores a program clears or reduces at a time
VECTORS_PER_BLOCK, SCAN_WARPS, STAGES = 128, 8, 2  # semantic scan: vectors per block, and blocks in flight
QUERIES_PER_SCAN = 16  # queries that share a semantic scan: the smallest tile of the tensor cores
COLLECT_TILE, COLLECT_WARPS = 256, 1  # scores per step of the collect kernel
RANK_BLOCK, RANK_OTHERS, RANK_WARPS = 8, 1024, 4  # candidates ranked per program, and compared with at a time
RANK_PROGRAMS = 256  # limit per query
MAX_SELECTED = 1 << 14  # candidates that fit one program of the select kernel
SELECT_FROM = 4  # queries; fewer are faster ranked by many programs than selected by one each
COPY_BLOCK = 256  # values of a result per program
EXACT: dict[str, Any] = {"enable_fp_fusion": False}  # a product is rounded before it is added, as on the CPU


def _shape(rows: CodedRows, narrowest: int = 1) -> dict[str, Any]:
    """Kernel constants that describe coded rows."""
    width = rows.codes.shape[1] * (4 if rows.codec == "int8x4" else 1)
    padded = max(triton.next_power_of_2(width), narrowest)
    return {"WIDTH": width, "PADDED": padded, "CODEC": "pq" if rows.codec[:2] == "pq" else rows.codec}


def _as_words(rows: CodedRows) -> CodedRows:
    """View int8 codes as words of four, which only a GPU can multiply."""
    possible = rows.codec == "int8" and rows.codes.is_cuda and rows.codes.shape[1] % 4 == 0
    return CodedRows("int8x4", rows.codes.view(torch.int32), rows.scales) if possible else rows


def _shared_memory_of(index: DeviceIndex) -> str:
    """PTX that declares shared memory; empty without a GPU."""
    return shared_memory.declaration(index.width) if index.device.type == "cuda" else ""


def _query_words(rows: CodedRows, query: Tensor) -> Tensor:
    """View query vectors as words where rows are."""
    return query.view(torch.int32) if rows.codec == "int8x4" else query


def _rank(chosen: TopCandidates, reported: Tensor, queries: int) -> None:
    """Rank the candidates by counting the larger ones."""
    capacity = chosen.candidates.shape[1]
    topk_kernels.rank_kernel[(min(triton.cdiv(capacity, RANK_BLOCK), RANK_PROGRAMS), queries)](
        chosen.candidates, chosen.counts, reported, chosen.ranked, capacity, chosen.wanted, BLOCK=RANK_BLOCK,
        OTHERS=RANK_OTHERS, num_warps=RANK_WARPS,
    )  # fmt: skip


def _select(chosen: TopCandidates, queries: int) -> None:
    """Select the best candidates, unordered."""
    capacity = chosen.candidates.shape[1]
    padded = triton.next_power_of_2(capacity)
    topk_kernels.select_kernel[(queries,)](
        chosen.candidates, chosen.counts, chosen.ranked, capacity, chosen.wanted, PADDED=padded,
        num_warps=min(max(padded // 512, 1), 32),
    )  # fmt: skip


class TritonSearch:
    """A search whose every step is a kernel over a workspace, so that a graph can replay it."""

    recordable = True

    def __init__(
        self, index: DeviceIndex, floor: bool, postings: int = POSTINGS_PER_BLOCK, tile: int = SCORES_PER_TILE
    ) -> None:
        self._index, self._floor, self._block, self._tile = index, floor, postings, tile
        self._scan_block = min(VECTORS_PER_BLOCK, 2 * tile)
        self._shared = _shared_memory_of(index)
        self._dummy = torch.zeros(1, device=index.device)
        self._rows = [None if own is None else _as_words(own.rows) for own in index.lists]
        self._semantic = None if index.semantic is None else _as_words(index.semantic)
        self._side = torch.cuda.Stream(index.device) if index.device.type == "cuda" else None  # type: ignore[no-untyped-call]

    def workspace(self, queries: int, options: Options) -> Workspace:
        """Allocate a workspace for a number of queries."""
        return make_workspace(self._index, queries, options)

    def run(self, workspace: Workspace, batch: Batch, options: Options) -> Tensor:
        """The best k of each query, packed, and the number of candidates [B, k + 1]."""
        exact = options.semantic == "exact"
        self._fork()
        self._tabulate(batch)
        # Score first: the rest is launched while it runs.
        self._score(workspace, batch, options.weight_floor, exact)
        if workspace.probed is not None:
            with self._side_stream():
                self._nearest(workspace.probed, batch, options)
        if exact:
            self._scan(workspace, batch)
        self._choose(workspace, batch)
        if workspace.probed is None:
            return workspace.chosen.ranked[: batch.size]
        self._join()
        return self._combine(workspace, workspace.probed, batch)

    def copy_result(self, ranked: Tensor, result: Tensor) -> None:
        """Copy a result to the host; for a single query a kernel is faster than a copy."""
        if len(ranked) > 1 or self._index.device.type != "cuda":
            result.copy_(ranked, non_blocking=True)
            return
        count = ranked.shape[1]
        copy = topk_kernels.copy_kernel[(triton.cdiv(count, COPY_BLOCK),)]
        copy(ranked, result, count, BLOCK=COPY_BLOCK, num_warps=4)

    def _fork(self) -> None:
        """Let the side stream start after the work so far."""
        if self._side is not None:
            self._side.wait_stream(torch.cuda.current_stream(self._index.device))

    @contextmanager
    def _side_stream(self) -> Iterator[None]:
        """Run on the side stream."""
        if self._side is None:
            yield
            return
        with torch.cuda.stream(self._side):
            yield

    def _join(self) -> None:
        if self._side is not None:
            torch.cuda.current_stream(self._index.device).wait_stream(self._side)

    def _tabulate(self, batch: Batch) -> None:
        """Compute the tables of pq, which the score kernel reads."""
        tables, centroids = batch.tables, self._index.centroids
        if tables is None:
            return
        assert centroids is not None
        pq_kernel.table_kernel[(len(tables.vectors),)](
            centroids, tables.vectors, batch.token_starts, tables.rows, tables.steps, batch.size,
            PARTS=centroids.shape[0], SUB=centroids.shape[1], num_warps=TABLE_WARPS, **EXACT,
        )  # fmt: skip

    def _score(self, workspace: Workspace, batch: Batch, weight_floor: int, every: bool) -> None:
        """Sum the token scores of all matching documents."""
        before = 0
        for segment, (lists, tokens) in enumerate(zip(self._index.lists, batch.tokens, strict=True)):
            if self._index.sizes[segment]:
                self._score_segment(workspace, batch, segment, before, lists, tokens, weight_floor, every)
            before += self._index.ranges(segment)

    def _score_segment(
        self, workspace: Workspace, batch: Batch, segment: int, before: int, lists: DeviceLists | None,
        tokens: SegmentTokens | None, weight_floor: int, every: bool,
    ) -> None:  # fmt: skip
        index = self._index
        rows = self._rows[segment]
        if lists is None or tokens is None or rows is None:  # only semantic vectors: all token scores are −∞
            if every:
                stop = before + index.ranges(segment)
                workspace.scores[: batch.size, before * index.width : stop * index.width] = float("-inf")
            return
        has_weights = bool(weight_floor) and lists.weights is not None
        kernels.score_kernel[(index.ranges(segment) * batch.size,)](
            lists.documents, rows.codes, self._or_dummy(rows.scales), self._or_dummy(lists.weights),
            self._or_dummy(index.alive), tokens.starts, tokens.stops, tokens.skip_rows, lists.skips,
            batch.token_starts, _query_words(rows, tokens.rows), tokens.factors, tokens.key_scales,
            workspace.scores, workspace.dirty, workspace.maxima,
            batch.size, before, index.ranges(segment), len(index.borders), index.sizes[segment],
            index.bases[segment], weight_floor, lists.search_steps,
            **_shape(rows), ROW=_query_words(rows, tokens.rows).shape[1], FLOOR=self._floor,
            WEIGHTS=has_weights, ALIVE=index.alive is not None, EVERY=every, RANGE=index.width,
            SUB=workspace.part, TILE=min(self._tile, workspace.part), SHARED=self._shared, num_warps=WARPS,
            BLOCK=self._block, **EXACT,
        )  # fmt: skip

    def _or_dummy(self, part: Tensor | None) -> Tensor:
        return self._dummy if part is None else part

    def _scan(self, workspace: Workspace, batch: Batch) -> None:
        """Add the semantic product of every document."""
        index, rows = self._index, self._index.semantic
        assert rows is not None
        together = QUERIES_PER_SCAN if rows.codec == "int8" else 1
        scan.scan_kernel[(workspace.maxima.shape[1], triton.cdiv(batch.size, together))](
            workspace.scores, self._or_dummy(index.alive), rows.codes, self._or_dummy(rows.scales),
            batch.semantic_rows, batch.semantic_factors, workspace.maxima, index.borders, index.spans,
            batch.size, len(index.borders),
            **_shape(rows, 32), ALIVE=index.alive is not None, RANGE=index.width,
            SUB=workspace.part, BLOCK=self._scan_block, QUERIES=together, STAGES=STAGES,
            num_warps=SCAN_WARPS, **EXACT,
        )  # fmt: skip

    def _choose(self, workspace: Workspace, batch: Batch) -> None:
        """Select the best documents by their current scores."""
        index, chosen = self._index, workspace.chosen
        self._limit(workspace.maxima, chosen, batch.size)
        parts = workspace.maxima.shape[1]
        topk_kernels.collect_kernel[(parts * batch.size,)](
            workspace.scores, workspace.maxima, chosen.limits, chosen.counts, chosen.candidates,
            index.borders, batch.size, parts, chosen.candidates.shape[1], RANGE=index.width,
            SUB=workspace.part, TILE=min(COLLECT_TILE, workspace.part), num_warps=COLLECT_WARPS,
        )  # fmt: skip
        if (
            workspace.probed is not None
            and batch.size >= SELECT_FROM
            and chosen.candidates.shape[1] <= MAX_SELECTED
        ):
            _select(chosen, batch.size)  # ranked later, by final scores
        else:
            _rank(chosen, chosen.counts, batch.size)

    def _limit(self, values: Tensor, chosen: TopCandidates, queries: int) -> None:
        padded = triton.next_power_of_2(values.shape[1])
        topk_kernels.limit_kernel[(queries,)](
            values, chosen.limits, chosen.counts, chosen.ranked, values.shape[1], chosen.wanted,
            PADDED=padded, BLOCK=1024, num_warps=min(max(padded // 512, 1), 32),
        )  # fmt: skip

    def _nearest(self, probed: ProbedDocuments, batch: Batch, options: Options) -> None:
        """Collect the documents of the nearest groups with their semantic products."""
        offset, rows = 0, self._semantic
        assert rows is not None and batch.semantic_rows is not None
        for probe, groups in zip(self._index.probes, probed.groups, strict=True):
            count = len(probe.centroids)
            topk_kernels.probe_kernel[(triton.cdiv(count, 32), batch.size)](
                probe.centroids, batch.semantic, groups.values, count, WIDTH=probe.centroids.shape[1],
                BLOCK=32, num_warps=1, **EXACT,
            )  # fmt: skip
            nearest = groups.nearest
            self._pick(groups.values, groups.values, groups.numbers, nearest, nearest.counts, batch.size)
            topk_kernels.groups_kernel[(batch.size,)](
                nearest.ranked, probe.starts, groups.ends, nearest.wanted, options.probes, PROBED_LISTS,
                PADDED=triton.next_power_of_2(nearest.wanted), num_warps=4,
            )  # fmt: skip
            topk_kernels.members_kernel[(triton.cdiv(groups.slots, 32), batch.size)](
                nearest.ranked, probe.starts, groups.ends, probe.documents, self._or_dummy(self._index.alive),
                rows.codes, self._or_dummy(rows.scales), _query_words(rows, batch.semantic_rows),
                batch.semantic_factors,
                probed.values, probed.documents, nearest.wanted, groups.slots, probed.values.shape[1], offset,
                nearest.wanted.bit_length(),
                **_shape(rows), ALIVE=self._index.alive is not None, BLOCK=32, num_warps=2,
                **EXACT,
            )  # fmt: skip
            offset += groups.slots

    def _pick(
        self,
        maxima: Tensor,
        values: Tensor,
        documents: Tensor,
        chosen: TopCandidates,
        reported: Tensor,
        queries: int,
    ) -> None:
        """Select and rank the best values, given the maxima of their parts."""
        self._limit(maxima, chosen, queries)
        topk_kernels.pick_kernel[(triton.cdiv(values.shape[1], 512), queries)](
            values, documents, chosen.limits, chosen.counts, chosen.candidates, values.shape[1],
            documents.shape[1] if len(documents) > 1 else 0, BLOCK=512, num_warps=4,
        )  # fmt: skip
        _rank(chosen, reported, queries)

    def _combine(self, workspace: Workspace, probed: ProbedDocuments, batch: Batch) -> Tensor:
        """The best of both candidate sets, by tokens and by semantic vectors, ranked by final score."""
        rows, first, ranges = self._semantic, workspace.chosen.wanted, len(self._index.borders)
        assert rows is not None and batch.semantic_rows is not None
        blocks = triton.cdiv(first, COMBINED)
        topk_kernels.combine_kernel[(probed.both_maxima.shape[1], batch.size)](
            workspace.chosen.ranked, probed.values, probed.documents, workspace.scores, rows.codes,
            self._or_dummy(rows.scales), _query_words(rows, batch.semantic_rows), batch.semantic_factors,
            probed.both_values, probed.both_documents, probed.both_maxima, self._index.borders, first, blocks,
            probed.values.shape[1], probed.both_values.shape[1], ranges, ranges.bit_length(),
            **_shape(rows), RANGE=self._index.width, BLOCK=COMBINED, num_warps=1, **EXACT,
        )  # fmt: skip
        self._pick(
            probed.both_maxima,
            probed.both_values,
            probed.both_documents,
            probed.both,
            workspace.chosen.counts,
            batch.size,
        )
        return probed.both.ranked[: batch.size]
