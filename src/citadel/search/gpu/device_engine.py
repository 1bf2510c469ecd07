"""Searches over one card: planned queries in, the best documents of each out."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from citadel.errors import Cancelled
from citadel.search.gpu.batch import Asked, Desk, Laid, Shape, find_lists, lay_out, shape_of
from citadel.search.gpu.device import card_memory, use_triton
from citadel.search.gpu.graph import index_of
from citadel.search.gpu.host_lists import staged_size
from citadel.search.gpu.memory import Card
from citadel.search.gpu.recorded_search import Recorded, Search, Way
from citadel.search.gpu.select import NOTHING, decode, unpack
from citadel.search.gpu.torch_search import PlainSearch
from citadel.search.gpu.workspace import bytes_a_query, capacity
from citadel.search.plan import Options, Plan
from citadel.types import Floats, Scored

MOST = 4096  # documents that the kernels put in order, by counting; beyond that plain torch sorts
FEW = 6  # queries below which each alone, replayed from a recording, is faster than all together
SHAPES = 8  # that stay recorded; of single queries each has its own room
ROOM = 4 << 30  # bytes that a batch may take besides the index, most of them scores: 4 a query and document


class UnderWay(NamedTuple):
    """Queries that the card is working on."""

    places: list[int]
    asked: Asked
    laid: Laid
    recorded: Recorded
    way: Way


@dataclass(frozen=True)
class SharedRoom:
    """Room on the card for some queries with these options."""

    options: Options
    queries: int
    room: Any


class CardEngine:
    """Threads that share it take turns; `live` documents of the card are not deleted, `where` names the index."""

    def __init__(self, card: Card, floor: bool, live: int, where: str) -> None:
        self.card, self._live, self._where = card, live, where
        self._plain = PlainSearch(card, floor)
        self.kernels: Search = _fused(card, floor) if use_triton(card.device) else self._plain
        self._semantic_codec = card.semantic.codec if card.semantic else ""
        self._turn = threading.Lock()
        self._index = index_of(card.device)
        self._shapes: dict[tuple[Shape, Options], Recorded] = {}
        self._room: SharedRoom | None = None

    def prepare(self, plan: Plan) -> Plan:
        """A query as `search_batch` takes it; its lists are looked up there, together with the others'."""
        return plan

    def search_batch(self, queries: Sequence[Plan], options: Options, cancel: Any = None) -> list[Scored]:
        """The best k documents of each query."""
        if not options.k or not self.card.documents:
            return [Scored(np.zeros(0, np.int64), np.zeros(0, np.float32)) for _ in queries]
        if queries and queries[0].semantic is None:
            options = options._replace(semantic="off")
        if options.semantic == "rerank" and all(own is None for own in self.card.lists):
            options = options._replace(semantic="exact")  # nothing but semantic vectors
        found: dict[int, Scored] = {}
        with self._turn, card_memory(self._where), self._current():
            self._search(dict(enumerate(queries)), options, found, cancel)
            if rest := {place: query for place, query in enumerate(queries) if place not in found}:
                self._search(rest, options._replace(semantic="exact"), found, cancel)
        return [found[place] for place in range(len(queries))]

    def _search(self, queries: dict[int, Plan], options: Options, found: dict[int, Scored], cancel: Any) -> None:
        """What the options find for queries by their places; the host lays the next ones out while the card works.

        With `rerank`, queries without a list or with too few documents are left out: all must be scanned for them."""
        places = list(queries)
        under_way: UnderWay | None = None
        before: UnderWay | None
        try:
            while places:
                if cancel is not None and cancel.is_set():
                    raise Cancelled("the search was cancelled")
                asked = self._at_once([queries[place] for place in places], options)
                recorded = self._recorded(shape_of(asked.plans, options.semantic != "off"), options)
                if under_way is not None and recorded.next() is under_way.way:  # single queries have one block
                    before, under_way = under_way, None
                    found.update(self._finish(before, options))
                before, under_way = under_way, self._start(recorded, places[: len(asked.plans)], asked)
                places = places[len(asked.plans) :]
                if before is not None:
                    found.update(self._finish(before, options))
        finally:  # after an error, too: nobody is to find the card at work on what was given up
            if under_way is not None:
                found.update(self._finish(under_way, options))

    def _at_once(self, queries: Sequence[Plan], options: Options) -> Asked:
        """So many of the next queries that what they need and their waiting lists have room."""
        most = 1 if len(queries) < (2 if self._index is None else FEW) else self._most(options)
        asked = find_lists(queries[:most], self.card.lists)
        while len(asked.plans) > 1 and not self._can_stage(asked):
            asked = find_lists(asked.plans[: len(asked.plans) // 2], self.card.lists)
        return asked

    def _most(self, options: Options) -> int:
        """Queries that have room together: a power of two, so that shapes repeat."""
        return int(1 << max(ROOM // bytes_a_query(self.card, options), 1).bit_length() - 1)

    def _can_stage(self, asked: Asked) -> bool:
        waiting = [
            (own.cold, chosen, own.sizes)
            for own, chosen in zip(self.card.lists, asked.lists, strict=True)
            if own is not None and own.cold is not None
        ]
        return all(staged_size(cold, [chosen], sizes) <= cold.room for cold, chosen, sizes in waiting)

    def _current(self) -> AbstractContextManager[Any]:
        """Kernels and graphs go to the current card, whichever tensors they get."""
        return nullcontext() if self._index is None else torch.cuda.device(self._index)  # by number: found in no time

    def _start(self, recorded: Recorded, places: list[int], asked: Asked) -> UnderWay:
        laid = lay_out(asked, self.card.lists, self._semantic_codec, recorded.next().parts)
        return UnderWay(places, asked, laid, recorded, recorded.start(laid))

    def _finish(self, part: UnderWay, options: Options) -> dict[int, Scored]:
        """Its answers by place."""
        found = part.recorded.wait(part.way)
        if max(found[:, -1].tolist()) > part.recorded.capacity:  # so many equal scores that they had no room
            found = part.recorded.again(part.way, part.laid, self._plain)
        scored = dict(zip(part.places, self._scored(found[:, :-1], part.laid.dot_products, options), strict=True))
        if options.semantic != "rerank":
            return scored
        enough, listed = min(options.k, self._live), part.asked.have_lists().tolist()
        kept = zip(scored.items(), listed, strict=True)
        return {place: one for (place, one), has in kept if has and len(one.numbers) >= enough}

    def _recorded(self, shape: Shape, options: Options) -> Recorded:
        """Searches of this shape are recorded once; a few shapes are kept."""
        key = (shape, options)
        if (kept := self._shapes.get(key)) is not None:
            return kept
        search = self.kernels if options.k <= MOST else self._plain
        room = search.room(1, options) if shape.queries == 1 else self._shared_room(search, shape.queries, options)
        if len(self._shapes) >= SHAPES:
            self._shapes.clear()
        desk = Desk(shape, self.card.lists, self._semantic_codec)
        made = Recorded(self.card, search, room, desk, options, capacity(self.card, options))
        self._shapes[key] = made
        return made

    def _shared_room(self, search: Search, queries: int, options: Options) -> Any:
        """One room for batches of all sizes: most of what they need is as large as the index has documents."""
        if self._room is None or self._room.options != options or self._room.queries < queries:
            self._room = None  # before there are two
            self._shapes = {key: kept for key, kept in self._shapes.items() if key[0].queries == 1}
            size = min(1 << (queries - 1).bit_length(), max(self._most(options), queries))
            self._room = SharedRoom(options, size, search.room(size, options))
        return self._room.room

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
    from citadel.search.gpu.triton_search import FusedSearch

    return FusedSearch(card, floor)
