"""The steps of a search through the Triton kernels."""

from __future__ import annotations

from typing import Any

import torch
import triton
from torch import Tensor

from citadel.search.card import kernels
from citadel.search.card.batch import Batch, Tokens
from citadel.search.card.lists import Lists
from citadel.search.card.memory import BINS, Card, Room
from citadel.search.card.select import NOTHING, top

POSTINGS = 256  # a program looks at together
SWEPT = 1024  # scores a program looks at together
SCANNED = 128  # semantic vectors a program looks at together, where they are read
EXACT: dict[str, Any] = {"enable_fp_fusion": False}  # a product is rounded before it is added, as on the CPU


def _shape(codec: str, width: int) -> dict[str, Any]:
    return {"WIDTH": width, "PADDED": triton.next_power_of_2(width), "CODEC": "pq" if codec[:2] == "pq" else codec}


class FusedSteps:
    """Each step for all queries at once."""

    recordable = True

    def __init__(self, card: Card, floor: bool, postings: int = POSTINGS, swept: int = SWEPT) -> None:
        self._card, self._floor, self._postings, self._swept = card, floor, postings, swept
        self._scanned = min(SCANNED, swept)
        self._nothing = torch.zeros(1, device=card.device)

    def score(self, room: Room, batch: Batch, weight_floor: int) -> None:
        """Add up the token scores of every document that meets a query token."""
        before = 0
        for place, (lists, tokens) in enumerate(zip(self._card.lists, batch.tokens, strict=True)):
            if lists is not None and tokens is not None and self._card.sizes[place]:
                self._score(room, batch, place, before, lists, tokens, weight_floor)
            before += self._card.ranges(place)

    def _score(
        self, room: Room, batch: Batch, place: int, before: int, lists: Lists, tokens: Tokens, weight_floor: int
    ) -> None:
        ranges, bounds = self._card.ranges(place), room.bounds[place]
        block = min(256, triton.next_power_of_2(ranges + 1))
        kernels.slices_kernel[(len(tokens.starts), triton.cdiv(ranges + 1, block))](
            lists.documents, tokens.starts, tokens.stops, bounds, ranges, self._card.width, self._card.steps,
            BLOCK=block, num_warps=4,
        )  # fmt: skip
        weighed = bool(weight_floor) and lists.weights is not None
        kernels.score_kernel[(ranges * batch.size,)](
            lists.documents, lists.rows.codes, self._or_nothing(lists.rows.scales), self._or_nothing(lists.weights),
            bounds, batch.token_starts, tokens.rows, tokens.factors, tokens.key_scales, room.scores, room.met,
            batch.size, ranges, room.met.shape[1], self._card.documents, self._card.bases[place], before, weight_floor,
            **_shape(lists.rows.codec, lists.rows.codes.shape[1]), ROW=tokens.rows.shape[1], FLOOR=self._floor,
            WEIGHTS=weighed, BLOCK=self._postings, num_warps=4, **EXACT,
        )  # fmt: skip

    def _or_nothing(self, part: Tensor | None) -> Tensor:
        return self._nothing if part is None else part

    def select(self, room: Room, batch: Batch, wanted: int, semantic: bool, keep: bool) -> Tensor:
        """The best documents of each query, packed; `keep` leaves the scores for those who look some up."""
        self._count(room, batch, semantic)
        kernels.threshold_kernel[(batch.size,)](
            room.histogram, room.thresholds, room.found, wanted, BINS=BINS, num_warps=8
        )
        room.candidates.fill_(NOTHING)
        self._collect(room, batch, every=semantic, collect=True, reset=not keep)
        return top(room.candidates[: batch.size], wanted)

    def _count(self, room: Room, batch: Batch, semantic: bool) -> None:
        card, rows = self._card, self._card.semantic
        shape = _shape("int8", 1) if rows is None else _shape(rows.codec, rows.codes.shape[1])
        codes = self._nothing if rows is None else rows.codes
        kernels.count_kernel[(len(card.borders) * batch.size,)](
            room.scores, room.met, self._or_nothing(card.alive), codes, self._or_nothing(rows.scales if rows else None),
            self._or_nothing(batch.semantic_rows), self._or_nothing(batch.semantic_factors), room.histogram, batch.size,
            room.met.shape[1], card.documents, card.borders, card.spans,
            **shape, SEMANTIC=semantic, ALIVE=card.alive is not None, BINS=BINS,
            BLOCK=self._scanned if semantic else self._swept, num_warps=4, **EXACT,
        )  # fmt: skip

    def _collect(self, room: Room, batch: Batch, every: bool, collect: bool, reset: bool) -> None:
        kernels.collect_kernel[(len(self._card.borders) * batch.size,)](
            room.scores, room.met, room.thresholds, room.found, room.candidates, batch.size, room.met.shape[1],
            self._card.documents, self._card.borders, self._card.spans, room.candidates.shape[1],
            EVERY=every, COLLECT=collect, RESET=reset, BLOCK=self._swept, num_warps=4,
        )  # fmt: skip

    def reset(self, room: Room, batch: Batch) -> None:
        """No document that was met has a score any more."""
        self._collect(room, batch, every=False, collect=False, reset=True)

    def semantic(self, batch: Batch, documents: Tensor) -> Tensor:
        """The semantic products of each query's documents [B, n]; any number where a document is -1."""
        rows = self._card.semantic
        assert rows is not None
        documents = documents.contiguous()
        values = torch.empty(documents.shape, device=documents.device)
        kernels.semantic_kernel[(batch.size, triton.cdiv(documents.shape[1], self._scanned))](
            rows.codes, self._or_nothing(rows.scales), batch.semantic_rows, batch.semantic_factors, documents, values,
            documents.shape[1], **_shape(rows.codec, rows.codes.shape[1]), BLOCK=self._scanned, num_warps=4, **EXACT,
        )  # fmt: skip
        return values

    def probe(self, batch: Batch, centroids: Tensor) -> Tensor:
        """Each query's products with the centroids [B, C], added in the order of the dimensions."""
        values = torch.empty(batch.size, len(centroids), device=centroids.device)
        kernels.probe_kernel[(batch.size, triton.cdiv(len(centroids), 64))](
            centroids, batch.semantic, values, len(centroids), WIDTH=centroids.shape[1], BLOCK=64, num_warps=2, **EXACT
        )
        return values
