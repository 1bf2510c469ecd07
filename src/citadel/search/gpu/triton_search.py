"""A search through the Triton kernels: for all queries of a batch at once, without waiting for the card."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import triton
from torch import Tensor

from citadel.search.gpu import kernels, pq_kernel, scan, shared_memory, topk_kernels
from citadel.search.gpu.batch import Batch, Tokens
from citadel.search.gpu.lists import Lists, Rows
from citadel.search.gpu.memory import Card
from citadel.search.gpu.workspace import COMBINED, Chosen, Near, Room, make_room
from citadel.search.plan import PROBED_LISTS, Options

POSTINGS, WARPS = 64, 1  # of lists, that a program looks at together
TABLE_WARPS = 8  # that make the table of a token
SWEPT = 512  # scores that a program looks at together
SCANNED, SCAN_WARPS, STAGES = 128, 8, 2  # semantic vectors that a program looks at together, and blocks under way
TOGETHER = 16  # queries that share a semantic scan: the narrowest product of the matrix units
COLLECTED, COLLECT_WARPS = 256, 1  # scores that a program looks at together for candidates
COUNTED, OTHERS, COUNT_WARPS = 8, 1024, 4  # candidates whose places a program counts, against so many at a time
COUNTING = 256  # programs of a query that count
SELECTED = 1 << 14  # candidates that one program can hold to choose from
SELECTING = 4  # queries from which on one program each chooses: one alone waits longer for it than for many that count
BROUGHT = 256  # places of an answer that a program writes
EXACT: dict[str, Any] = {"enable_fp_fusion": False}  # a product is rounded before it is added, as on the CPU


def _shape(rows: Rows, narrowest: int = 1) -> dict[str, Any]:
    """What a kernel has to know of coded rows."""
    width = rows.codes.shape[1] * (4 if rows.codec == "int8x4" else 1)
    padded = max(triton.next_power_of_2(width), narrowest)
    return {"WIDTH": width, "PADDED": padded, "CODEC": "pq" if rows.codec[:2] == "pq" else rows.codec}


def _fours(rows: Rows) -> Rows:
    """int8 codes four at a time, as a GPU multiplies them and Triton's interpreter does not."""
    possible = rows.codec == "int8" and rows.codes.is_cuda and rows.codes.shape[1] % 4 == 0
    return Rows("int8x4", rows.codes.view(torch.int32), rows.scales) if possible else rows


def _room_of(card: Card) -> str:
    """PTX that makes room in shared memory, which only a GPU has."""
    return shared_memory.declaration(card.width) if card.device.type == "cuda" else ""


def _asked(rows: Rows, query: Tensor) -> Tensor:
    """Query vectors in fours where rows are."""
    return query.view(torch.int32) if rows.codec == "int8x4" else query


def _count(chosen: Chosen, reported: Tensor, queries: int) -> None:
    """Put the candidates in order by counting the larger ones."""
    capacity = chosen.candidates.shape[1]
    topk_kernels.rank_kernel[(min(triton.cdiv(capacity, COUNTED), COUNTING), queries)](
        chosen.candidates, chosen.found, reported, chosen.ranked, capacity, chosen.wanted, BLOCK=COUNTED,
        OTHERS=OTHERS, num_warps=COUNT_WARPS,
    )  # fmt: skip


def _select(chosen: Chosen, queries: int) -> None:
    """The best candidates in no order."""
    capacity = chosen.candidates.shape[1]
    padded = triton.next_power_of_2(capacity)
    topk_kernels.select_kernel[(queries,)](
        chosen.candidates, chosen.found, chosen.ranked, capacity, chosen.wanted, PADDED=padded,
        num_warps=min(max(padded // 512, 1), 32),
    )  # fmt: skip


class FusedSearch:
    """Every step is a kernel over memory that a room holds, so that a graph can replay them."""

    recordable = True

    def __init__(self, card: Card, floor: bool, postings: int = POSTINGS, swept: int = SWEPT) -> None:
        self._card, self._floor, self._postings, self._swept = card, floor, postings, swept
        self._scanned = min(SCANNED, 2 * swept)
        self._shared = _room_of(card)
        self._nothing = torch.zeros(1, device=card.device)
        self._rows = [None if own is None else _fours(own.rows) for own in card.lists]
        self._semantic = None if card.semantic is None else _fours(card.semantic)
        self._side = torch.cuda.Stream(card.device) if card.device.type == "cuda" else None  # type: ignore[no-untyped-call]

    def room(self, queries: int, options: Options) -> Room:
        """Room for that many queries."""
        return make_room(self._card, queries, options)

    def run(self, room: Room, batch: Batch, options: Options) -> Tensor:
        """The best k of each query, packed, and how many candidates there were [B, k + 1]."""
        exact = options.semantic == "exact"
        self._fork()
        self._tabulate(batch)
        self._score(room, batch, options.weight_floor, exact)  # first: the others are launched while it works
        if room.near is not None:
            with self._beside():
                self._nearest(room.near, batch, options)
        if exact:
            self._scan(room, batch)
        self._choose(room, batch)
        if room.near is None:
            return room.chosen.ranked[: batch.size]
        self._join()
        return self._both(room, room.near, batch)

    def bring(self, found: Tensor, answer: Tensor) -> None:
        """Write what was found into the host's memory; for a lone query a kernel is sooner there than a copy."""
        if len(found) > 1 or self._card.device.type != "cuda":
            answer.copy_(found, non_blocking=True)
            return
        count = found.shape[1]
        topk_kernels.bring_kernel[(triton.cdiv(count, BROUGHT),)](found, answer, count, BLOCK=BROUGHT, num_warps=4)

    def _fork(self) -> None:
        """What is done beside begins here."""
        if self._side is not None:
            self._side.wait_stream(torch.cuda.current_stream(self._card.device))

    @contextmanager
    def _beside(self) -> Iterator[None]:
        """On a stream of its own."""
        if self._side is None:
            yield
            return
        with torch.cuda.stream(self._side):
            yield

    def _join(self) -> None:
        if self._side is not None:
            torch.cuda.current_stream(self._card.device).wait_stream(self._side)

    def _tabulate(self, batch: Batch) -> None:
        """Make the tables of pq before scores read them."""
        tables, centroids = batch.tables, self._card.centroids
        if tables is None:
            return
        assert centroids is not None
        pq_kernel.table_kernel[(len(tables.vectors),)](
            centroids, tables.vectors, batch.token_starts, tables.rows, tables.steps, batch.size,
            PARTS=centroids.shape[0], SUB=centroids.shape[1], num_warps=TABLE_WARPS, **EXACT,
        )  # fmt: skip

    def _score(self, room: Room, batch: Batch, weight_floor: int, every: bool) -> None:
        """Add up the token scores of every document that meets a query token."""
        before = 0
        for place, (lists, tokens) in enumerate(zip(self._card.lists, batch.tokens, strict=True)):
            if self._card.sizes[place]:
                self._score_segment(room, batch, place, before, lists, tokens, weight_floor, every)
            before += self._card.ranges(place)

    def _score_segment(
        self, room: Room, batch: Batch, place: int, before: int, lists: Lists | None, tokens: Tokens | None,
        weight_floor: int, every: bool,
    ) -> None:  # fmt: skip
        card = self._card
        rows = self._rows[place]
        if lists is None or tokens is None or rows is None:  # nothing but semantic vectors: all scores are −∞
            if every:
                stop = before + card.ranges(place)
                room.scores[: batch.size, before * card.width : stop * card.width] = float("-inf")
            return
        weighed = bool(weight_floor) and lists.weights is not None
        kernels.score_kernel[(card.ranges(place) * batch.size,)](
            lists.documents, rows.codes, self._or_nothing(rows.scales), self._or_nothing(lists.weights),
            self._or_nothing(card.alive), tokens.starts, tokens.stops, tokens.skip_rows, lists.skips,
            batch.token_starts, _asked(rows, tokens.rows), tokens.factors, tokens.key_scales, room.scores, room.dirty,
            room.maxima, batch.size, before, card.ranges(place), len(card.borders), card.sizes[place],
            card.bases[place], weight_floor, lists.halvings,
            **_shape(rows), ROW=_asked(rows, tokens.rows).shape[1], FLOOR=self._floor, WEIGHTS=weighed,
            ALIVE=card.alive is not None, EVERY=every, RANGE=card.width, SUB=room.part,
            TILE=min(self._swept, room.part), SHARED=self._shared, num_warps=WARPS,
            BLOCK=self._postings, **EXACT,
        )  # fmt: skip

    def _or_nothing(self, part: Tensor | None) -> Tensor:
        return self._nothing if part is None else part

    def _scan(self, room: Room, batch: Batch) -> None:
        """Add every document's semantic product."""
        card, rows = self._card, self._card.semantic
        assert rows is not None
        together = TOGETHER if rows.codec == "int8" else 1
        scan.scan_kernel[(room.maxima.shape[1], triton.cdiv(batch.size, together))](
            room.scores, self._or_nothing(card.alive), rows.codes, self._or_nothing(rows.scales), batch.semantic_rows,
            batch.semantic_factors, room.maxima, card.borders, card.spans, batch.size, len(card.borders),
            **_shape(rows, 32), ALIVE=card.alive is not None, RANGE=card.width,
            SUB=room.part, BLOCK=self._scanned, QUERIES=together, STAGES=STAGES, num_warps=SCAN_WARPS, **EXACT,
        )  # fmt: skip

    def _choose(self, room: Room, batch: Batch) -> None:
        """The best documents by the scores there are."""
        card, chosen = self._card, room.chosen
        self._limit(room.maxima, chosen, batch.size)
        parts = room.maxima.shape[1]
        topk_kernels.collect_kernel[(parts * batch.size,)](
            room.scores, room.maxima, chosen.limits, chosen.found, chosen.candidates, card.borders, batch.size, parts,
            chosen.candidates.shape[1], RANGE=card.width, SUB=room.part, TILE=min(COLLECTED, room.part),
            num_warps=COLLECT_WARPS,
        )  # fmt: skip
        if room.near is not None and batch.size >= SELECTING and chosen.candidates.shape[1] <= SELECTED:
            _select(chosen, batch.size)  # whole scores will order them
        else:
            _count(chosen, chosen.found, batch.size)

    def _limit(self, values: Tensor, chosen: Chosen, queries: int) -> None:
        padded = triton.next_power_of_2(values.shape[1])
        topk_kernels.limit_kernel[(queries,)](
            values, chosen.limits, chosen.found, chosen.ranked, values.shape[1], chosen.wanted, PADDED=padded,
            BLOCK=1024, num_warps=min(max(padded // 512, 1), 32),
        )  # fmt: skip

    def _nearest(self, near: Near, batch: Batch, options: Options) -> None:
        """The documents of the nearest groups and their semantic products."""
        offset, rows = 0, self._semantic
        assert rows is not None and batch.semantic_rows is not None
        for probe, groups in zip(self._card.probes, near.groups, strict=True):
            count = len(probe.centroids)
            topk_kernels.probe_kernel[(triton.cdiv(count, 32), batch.size)](
                probe.centroids, batch.semantic, groups.values, count, WIDTH=probe.centroids.shape[1], BLOCK=32,
                num_warps=1, **EXACT,
            )  # fmt: skip
            nearest = groups.nearest
            self._pick(groups.values, groups.values, groups.numbers, nearest, nearest.found, batch.size)
            topk_kernels.groups_kernel[(batch.size,)](
                nearest.ranked, probe.starts, groups.ends, nearest.wanted, options.probes, PROBED_LISTS,
                PADDED=triton.next_power_of_2(nearest.wanted), num_warps=4,
            )  # fmt: skip
            topk_kernels.members_kernel[(triton.cdiv(groups.slots, 32), batch.size)](
                nearest.ranked, probe.starts, groups.ends, probe.documents, self._or_nothing(self._card.alive),
                rows.codes, self._or_nothing(rows.scales), _asked(rows, batch.semantic_rows), batch.semantic_factors,
                near.values, near.documents, nearest.wanted, groups.slots, near.values.shape[1], offset,
                nearest.wanted.bit_length(),
                **_shape(rows), ALIVE=self._card.alive is not None, BLOCK=32, num_warps=2,
                **EXACT,
            )  # fmt: skip
            offset += groups.slots

    def _pick(
        self, maxima: Tensor, values: Tensor, documents: Tensor, chosen: Chosen, reported: Tensor, queries: int
    ) -> None:
        """The best by these values, of whose parts the maxima are known."""
        self._limit(maxima, chosen, queries)
        topk_kernels.pick_kernel[(triton.cdiv(values.shape[1], 512), queries)](
            values, documents, chosen.limits, chosen.found, chosen.candidates, values.shape[1],
            documents.shape[1] if len(documents) > 1 else 0, BLOCK=512, num_warps=4,
        )  # fmt: skip
        _count(chosen, reported, queries)

    def _both(self, room: Room, near: Near, batch: Batch) -> Tensor:
        """The best of what tokens and semantic vectors have chosen, by their whole scores."""
        rows, first, ranges = self._semantic, room.chosen.wanted, len(self._card.borders)
        assert rows is not None and batch.semantic_rows is not None
        blocks = triton.cdiv(first, COMBINED)
        topk_kernels.combine_kernel[(near.both_maxima.shape[1], batch.size)](
            room.chosen.ranked, near.values, near.documents, room.scores, rows.codes, self._or_nothing(rows.scales),
            _asked(rows, batch.semantic_rows), batch.semantic_factors, near.both_values, near.both_documents,
            near.both_maxima, self._card.borders, first, blocks, near.values.shape[1], near.both_values.shape[1],
            ranges, ranges.bit_length(), **_shape(rows), RANGE=self._card.width, BLOCK=COMBINED, num_warps=1, **EXACT,
        )  # fmt: skip
        self._pick(near.both_maxima, near.both_values, near.both_documents, near.both, room.chosen.found, batch.size)
        return near.both.ranked[: batch.size]
