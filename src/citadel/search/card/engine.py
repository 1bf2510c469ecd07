"""Searches over one card: prepared queries in, the best documents of each out."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from citadel.errors import Cancelled
from citadel.index.codebook import Codebook
from citadel.search.card.batch import Desk, Prepared, Shape, lay_out, shape_of
from citadel.search.card.cold import staged_size
from citadel.search.card.device import card_memory, use_triton
from citadel.search.card.graph import index_of
from citadel.search.card.memory import Card
from citadel.search.card.plain import PlainSearch
from citadel.search.card.recorded import Recorded, Search
from citadel.search.card.rooms import bytes_a_query, capacity
from citadel.search.card.select import NOTHING, decode, unpack
from citadel.search.plan import Options, Plan
from citadel.types import Floats, Scored

MOST = 4096  # documents that the kernels put in order, by counting; beyond that plain torch sorts
SHAPES = 8  # of single queries, each with its own room, that stay recorded
ROOM = 4 << 30  # bytes that a batch may take besides the index, most of them scores: 4 a query and document


class CardEngine:
    """Threads that share it take turns; `live` documents of the card are not deleted, `where` names the index."""

    def __init__(self, card: Card, floor: bool, book: Codebook | None, live: int, where: str) -> None:
        self.card, self._book, self._live, self._where = card, book, live, where
        self._plain = PlainSearch(card, floor)
        self.kernels: Search = _fused(card, floor) if use_triton(card.device) else self._plain
        self._semantic_codec = card.semantic.codec if card.semantic else ""
        self._turn = threading.Lock()
        self._index = index_of(card.device)
        self._shapes: dict[tuple[Shape, Options], Recorded] = {}

    def prepare(self, plan: Plan) -> Prepared:
        """A plan and the list of each of its tokens in each segment [segments, n], -1 for none."""
        count = len(plan.keys)
        rows = [np.full(count, -1) if lists is None else lists.find(plan.keys) for lists in self.card.lists]
        if len(rows) == 1:
            return Prepared(plan, rows[0][None])
        return Prepared(plan, np.stack(rows) if rows else np.zeros((0, len(plan.keys)), np.int64))

    def search_batch(self, queries: Sequence[Prepared], options: Options, cancel: Any = None) -> list[Scored]:
        """The best k documents of each query."""
        found: list[Scored] = []
        while len(found) < len(queries):
            if cancel is not None and cancel.is_set():
                raise Cancelled("the search was cancelled")
            part = self._at_once(queries[len(found) :], options)
            with self._turn, card_memory(self._where), self._current():
                found += self._search(part, options)
        return found

    def _at_once(self, queries: Sequence[Prepared], options: Options) -> Sequence[Prepared]:
        """So many of the next queries that what they need and their waiting lists have room."""
        most = 1 << max(ROOM // bytes_a_query(self.card, options), 1).bit_length() - 1  # so that shapes repeat
        part = queries[:most]
        while len(part) > 1 and not self._can_stage(part):
            part = part[: len(part) // 2]
        return part

    def _can_stage(self, queries: Sequence[Prepared]) -> bool:
        for place, lists in enumerate(self.card.lists):
            if lists is not None and lists.cold is not None:
                needed = staged_size(lists.cold, [query.lists[place] for query in queries], lists.sizes)
                if needed > lists.cold.room:
                    return False
        return True

    def _current(self) -> AbstractContextManager[Any]:
        """Kernels and graphs go to the current card, whichever tensors they get."""
        return nullcontext() if self._index is None else torch.cuda.device(self._index)  # by number: found in no time

    def _search(self, queries: Sequence[Prepared], options: Options) -> list[Scored]:
        """Queries without a list, or with too few documents after `rerank`, are looked for by scanning everything."""
        if not options.k or not self.card.documents:
            return [Scored(np.zeros(0, np.int64), np.zeros(0, np.float32)) for _ in queries]
        if queries[0].plan.semantic is None:
            options = options._replace(semantic="off")
        if options.semantic != "rerank":
            return self.run(queries, options)
        found: list[Scored | None] = [None] * len(queries)
        listed = [place for place, query in enumerate(queries) if (query.lists >= 0).any()]
        for place, scored in zip(listed, self.run([queries[i] for i in listed], options), strict=True):
            found[place] = scored if len(scored.numbers) >= min(options.k, self._live) else None
        rest = [place for place, scored in enumerate(found) if scored is None]
        exact = self.run([queries[i] for i in rest], options._replace(semantic="exact"))
        for place, scored in zip(rest, exact, strict=True):
            found[place] = scored
        return [scored for scored in found if scored is not None]

    def run(self, queries: Sequence[Prepared], options: Options) -> list[Scored]:
        """The same, just as the options say."""
        if not queries:
            return []
        recorded = self._recorded(shape_of(queries, options.semantic != "off"), options)
        laid = lay_out(queries, self.card.lists, self._book, self._semantic_codec, recorded.parts)
        found = recorded.search(laid)
        if max(found[:, -1].tolist()) > capacity(self.card, options):  # so many equal scores that they had no room
            found = self._plain.run(self._plain.room(len(queries), options), recorded.batch, options).cpu().numpy()
        return self._scored(found[:, :-1], laid.dot_products, options)

    def _recorded(self, shape: Shape, options: Options) -> Recorded:
        """Searches of this shape are recorded once; a few shapes are kept, and for batches one."""
        key = (shape, options)
        if key not in self._shapes:
            if len(self._shapes) >= SHAPES or shape.queries > 1:
                self._shapes.clear()
            search = self.kernels if options.k <= MOST else self._plain
            desk = Desk(shape, self.card.lists, self._semantic_codec)
            self._shapes[key] = Recorded(self.card, search, desk, options)
        return self._shapes[key]

    def _scored(self, whole: NDArray[np.int64], products: list[int], options: Options) -> list[Scored]:
        """Answers with numbers in the whole index."""
        scanned = self.card.documents if options.semantic == "exact" else 0
        rows: Iterable[tuple[NDArray[np.int64], Floats]] = map(unpack, whole)
        full = len(whole) > 1 and whole.shape[1] and (whole[:, -1] != NOTHING).all()
        if full:  # all at once: a batch is bound by what its host does
            rows = zip(*decode(whole), strict=True)
        return [
            Scored(_global(numbers, self.card.first), scores, count + scanned)
            for (numbers, scores), count in zip(rows, products, strict=True)
        ]


def _global(numbers: NDArray[np.int64], first: int) -> NDArray[np.int64]:
    return numbers + first if first else numbers


def _fused(card: Card, floor: bool) -> Search:
    from citadel.search.card.fused import FusedSearch

    return FusedSearch(card, floor)
