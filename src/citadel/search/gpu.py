"""The engine of a GPU: the index in the card's memory, one query or a batch at a time through its kernels."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from citadel.errors import Cancelled, UsageError
from citadel.index.snapshot import Snapshot
from citadel.search.card.batch import HostBatch, Prepared
from citadel.search.card.device import card_memory, find_card, use_triton
from citadel.search.card.memory import Room, load_card, make_room
from citadel.search.card.pipeline import Steps, run, wanted
from citadel.search.card.plain import PlainSteps
from citadel.search.card.select import unpack
from citadel.search.plan import Options, Plan
from citadel.types import Scored

ROOM = 4 << 30  # bytes of scores that a batch may take: 4 a query and document


class GpuEngine:
    """Searches a snapshot on a card; threads that share it take turns."""

    def __init__(self, snapshot: Snapshot, floor: bool, device: str = "cuda", width: int = 0) -> None:
        if snapshot.settings.router == "bm25":
            raise UsageError("a GPU searches vectors and this index holds words (bm25): use --device cpu")
        self._snapshot, self._device = snapshot, find_card(device)
        fused = use_triton(self._device)
        with card_memory(snapshot.storage.location):
            self.card = load_card(snapshot, self._device, width)
        self._steps = self._fused(floor) if fused else PlainSteps(self.card, floor)
        self._plain = PlainSteps(self.card, floor)
        self._turn = threading.Lock()
        self._rooms: dict[tuple[int, ...], Room] = {}

    def _fused(self, floor: bool) -> Steps:
        from citadel.search.card.fused import FusedSteps

        return FusedSteps(self.card, floor)

    def prepare(self, plan: Plan) -> Prepared:
        """A plan and its lists."""
        return Prepared(plan, self.list_numbers(plan))

    def list_numbers(self, plan: Plan) -> NDArray[np.int64]:
        """The list that each query token reads in each segment [segments, n], -1 for none."""
        none = np.full(len(plan.keys), -1, np.int64)
        rows = [none if lists is None else lists.find(plan.keys) for lists in self.card.lists]
        return np.stack(rows) if rows else np.zeros((0, len(plan.keys)), np.int64)

    def search(self, query: Prepared, options: Options, cancel: Any = None) -> Scored:
        """The best k documents of one query."""
        return self.search_batch([query], options, cancel)[0]

    def search_batch(self, queries: Sequence[Prepared], options: Options, cancel: Any = None) -> list[Scored]:
        """The best k documents of each query."""
        found: list[Scored] = []
        at_once = max(1, ROOM // (4 * max(self.card.documents, 1)))
        for start in range(0, len(queries), at_once):
            if cancel is not None and cancel.is_set():
                raise Cancelled("the search was cancelled")
            with self._turn, torch.inference_mode(), card_memory(self._snapshot.storage.location):
                found += self._search(queries[start : start + at_once], options)
        return found

    def _search(self, queries: Sequence[Prepared], options: Options) -> list[Scored]:
        """Queries without a list, or with too few documents after `rerank`, are looked for by scanning everything."""
        if not options.k or not self.card.documents:
            return [Scored(np.zeros(0, np.int64), np.zeros(0, np.float32)) for _ in queries]
        if queries[0].plan.semantic is None:
            options = options._replace(semantic="off")
        if options.semantic != "rerank":
            return self._run(queries, options)
        found: list[Scored | None] = [None] * len(queries)
        listed = [place for place, query in enumerate(queries) if (query.lists >= 0).any()]
        enough = min(options.k, len(self._snapshot))
        for place, scored in zip(listed, self._run([queries[i] for i in listed], options), strict=True):
            found[place] = scored if len(scored.numbers) >= enough else None
        rest = [place for place, scored in enumerate(found) if scored is None]
        exact = self._run([queries[i] for i in rest], options._replace(semantic="exact"))
        for place, scored in zip(rest, exact, strict=True):
            found[place] = scored
        return [scored for scored in found if scored is not None]

    def _run(self, queries: Sequence[Prepared], options: Options) -> list[Scored]:
        if not queries:
            return []
        codec = self.card.semantic.codec if self.card.semantic else ""
        host = HostBatch(queries, self.card.lists, self._snapshot.codebook, codec)
        batch = host.place({kind: part.to(self._device) for kind, part in host.arrays.items()})
        room = self._room(host.size, host.room, wanted(options))
        packed = run(self.card, self._steps, room, batch, options)
        counts = room.found[: host.size].cpu().numpy()
        if counts.max(initial=0) > room.candidates.shape[1]:  # so many equal scores that they had no room
            packed = run(self.card, self._plain, room, batch, options)
        return self._scored(packed, batch.dot_products, options)

    def _scored(self, packed: Tensor, products: tuple[int, ...], options: Options) -> list[Scored]:
        scanned = self.card.documents if options.semantic == "exact" else 0
        rows = packed.cpu().numpy()
        return [Scored(*unpack(row), count + scanned) for row, count in zip(rows, products, strict=True)]

    def _room(self, queries: int, tokens: int, wanted: int) -> Room:
        """The room of the last search where it is of the same size."""
        key = (queries, tokens, wanted)
        if key not in self._rooms:
            self._rooms = {key: make_room(self.card, *key)}
        return self._rooms[key]
