"""Search on one device: planned queries in, the best documents of each out."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from citadel.errors import Cancelled
from citadel.search.gpu.batch import (
    BatchLayout,
    BatchShape,
    PackedBatch,
    QueryLists,
    batch_shape,
    find_lists,
    pack_queries,
)
from citadel.search.gpu.device import device_errors, use_triton
from citadel.search.gpu.device_index import DeviceIndex
from citadel.search.gpu.graph import device_ordinal
from citadel.search.gpu.host_lists import staged_size
from citadel.search.gpu.packed_scores import NOTHING, decode, unpack
from citadel.search.gpu.recorded_search import DeviceSearch, HostSlot, RecordedSearch
from citadel.search.gpu.torch_search import TorchSearch
from citadel.search.gpu.workspace import bytes_per_query, capacity
from citadel.search.plan import Options, Plan
from citadel.types import Floats, Scored

MAX_KERNEL_K = 4096  # documents the kernels rank by counting; torch sorts beyond that
MIN_BATCH = 6  # queries; fewer are faster one by one, replayed from a recording
MAX_SHAPES = 8  # recorded searches kept; a single query has its own workspace
WORKSPACE_BYTES = 4 << 30  # limit for a batch besides the index, mostly scores: 4 per query and document


class InFlight(NamedTuple):
    """A part of a batch that the device is working on."""

    positions: list[int]  # of the queries in the batch
    query_lists: QueryLists
    packed: PackedBatch
    recorded: RecordedSearch
    slot: HostSlot


@dataclass(frozen=True)
class SharedWorkspace:
    """A workspace for batches with these options, and how many queries it holds."""

    options: Options
    queries: int
    workspace: Any


class DeviceEngine:
    """Searches an index on one device; threads take turns. `where` names the index in errors."""

    def __init__(self, index: DeviceIndex, floor: bool, where: str) -> None:
        self.index, self._floor, self._where = index, floor, where
        self.live = index.documents if index.alive is None else int(index.alive.sum())  # not deleted
        self._torch = TorchSearch(index, floor)
        self.kernels: DeviceSearch = _triton_search(index, floor) if use_triton(index.device) else self._torch
        self._semantic_codec = index.semantic.codec if index.semantic else ""
        self._lock = threading.Lock()
        self._ordinal = device_ordinal(index.device)
        self._recordings: dict[tuple[BatchShape, Options], RecordedSearch] = {}
        self._shared: SharedWorkspace | None = None

    def restricted(self, allowed: NDArray[np.bool_]) -> DeviceEngine:
        """An engine over the same lists and vectors that returns allowed documents only."""
        own = allowed[self.index.first : self.index.first + self.index.documents].astype(np.uint8)
        mask = torch.from_numpy(own).to(self.index.device)
        alive = mask if self.index.alive is None else mask * self.index.alive
        return DeviceEngine(replace(self.index, alive=alive), self._floor, self._where)

    def prepare(self, plan: Plan) -> Plan:
        """Return the plan: `search_batch` looks up the lists of all its queries together."""
        return plan

    def search_batch(self, queries: Sequence[Plan], options: Options, cancel: Any = None) -> list[Scored]:
        """The best k documents of each query."""
        if not options.k or not self.index.documents:
            return [Scored(np.zeros(0, np.int64), np.zeros(0, np.float32)) for _ in queries]
        if queries and queries[0].semantic is None:
            options = options._replace(semantic="off")
        if options.semantic == "rerank" and all(own is None for own in self.index.lists):
            options = options._replace(semantic="exact")  # there are only semantic vectors
        results: dict[int, Scored] = {}
        with self._lock, device_errors(self._where), self._current():
            self._search(dict(enumerate(queries)), options, results, cancel)
            if rest := {position: query for position, query in enumerate(queries) if position not in results}:
                self._search(rest, options._replace(semantic="exact"), results, cancel)
        return [results[position] for position in range(len(queries))]

    def _search(
        self, queries: dict[int, Plan], options: Options, results: dict[int, Scored], cancel: Any
    ) -> None:
        """Search queries by position, in parts; the host packs the next part while the device works.

        With `rerank`, queries without a list or with too few hits get no result: they need an exact scan."""
        positions = list(queries)
        in_flight: InFlight | None = None
        before: InFlight | None
        try:
            while positions:
                if cancel is not None and cancel.is_set():
                    raise Cancelled("the search was cancelled")
                part = self._next_part([queries[position] for position in positions], options)
                recorded = self._recorded(batch_shape(part.plans, options.semantic != "off"), options)
                # A recorded search of single queries has only one slot.
                if in_flight is not None and recorded.next_slot() is in_flight.slot:
                    before, in_flight = in_flight, None
                    results.update(self._finish(before, options))
                before, in_flight = in_flight, self._start(recorded, positions[: len(part.plans)], part)
                positions = positions[len(part.plans) :]
                if before is not None:
                    results.update(self._finish(before, options))
        finally:  # also after an error: the device must be idle when the lock is released
            if in_flight is not None:
                results.update(self._finish(in_flight, options))

    def _next_part(self, queries: Sequence[Plan], options: Options) -> QueryLists:
        """As many of the next queries as fit the workspace and the staging area."""
        limit = (
            1 if len(queries) < (2 if self._ordinal is None else MIN_BATCH) else self._max_queries(options)
        )
        part = find_lists(queries[:limit], self.index.lists)
        while len(part.plans) > 1 and not self._can_stage(part):
            part = find_lists(part.plans[: len(part.plans) // 2], self.index.lists)
        return part

    def _max_queries(self, options: Options) -> int:
        """Queries per part: a power of two, so that shapes repeat."""
        return int(1 << max(WORKSPACE_BYTES // bytes_per_query(self.index, options), 1).bit_length() - 1)

    def _can_stage(self, part: QueryLists) -> bool:
        on_host = [
            (own.on_host, chosen, own.sizes)
            for own, chosen in zip(self.index.lists, part.lists, strict=True)
            if own is not None and own.on_host is not None
        ]
        return all(staged_size(host, [chosen], sizes) <= host.capacity for host, chosen, sizes in on_host)

    def _current(self) -> AbstractContextManager[Any]:
        """Make the device current: kernels and graphs run there, whatever device their tensors are on."""
        return (
            nullcontext() if self._ordinal is None else torch.cuda.device(self._ordinal)
        )  # an ordinal is fastest

    def _start(self, recorded: RecordedSearch, positions: list[int], part: QueryLists) -> InFlight:
        packed = pack_queries(part, self.index.lists, self._semantic_codec, recorded.next_slot().parts)
        return InFlight(positions, part, packed, recorded, recorded.start(packed))

    def _finish(self, part: InFlight, options: Options) -> dict[int, Scored]:
        """Wait for a part; its results by position."""
        ranked = part.recorded.wait(part.slot)
        candidates = max(ranked[:, -1].tolist())
        if candidates > part.recorded.capacity:  # too many tied scores for the candidate buffer
            ranked = part.recorded.rerun(part.slot, part.packed, self._torch)
        scored = self._scored(ranked[:, :-1], part.packed.dot_products, options)
        results = dict(zip(part.positions, scored, strict=True))
        if options.semantic != "rerank":
            return results
        enough, listed = min(options.k, self.live), part.query_lists.have_lists().tolist()
        pairs = zip(results.items(), listed, strict=True)
        return {position: one for (position, one), has in pairs if has and len(one.numbers) >= enough}

    def _recorded(self, shape: BatchShape, options: Options) -> RecordedSearch:
        """The recorded search of this shape, made on first use."""
        key = (shape, options)
        if (known := self._recordings.get(key)) is not None:
            return known
        search = self.kernels if options.k <= MAX_KERNEL_K else self._torch
        if shape.queries == 1:
            workspace = search.workspace(1, options)
        else:
            workspace = self._shared_workspace(search, shape.queries, options)
        if len(self._recordings) >= MAX_SHAPES:
            self._recordings.clear()
        layout = BatchLayout(shape, self.index.lists, self._semantic_codec)
        made = RecordedSearch(self.index, search, workspace, layout, options, capacity(self.index, options))
        self._recordings[key] = made
        return made

    def _shared_workspace(self, search: DeviceSearch, queries: int, options: Options) -> Any:
        """One workspace for batches of all sizes: most of it grows with the number of documents."""
        if self._shared is None or self._shared.options != options or self._shared.queries < queries:
            self._shared = None  # free the old one first
            self._recordings = {key: one for key, one in self._recordings.items() if key[0].queries == 1}
            size = min(1 << (queries - 1).bit_length(), max(self._max_queries(options), queries))
            self._shared = SharedWorkspace(options, size, search.workspace(size, options))
        return self._shared.workspace

    def _scored(self, ranked: NDArray[np.int64], products: list[int], options: Options) -> list[Scored]:
        """Results with document numbers of the whole index."""
        scanned = self.index.documents if options.semantic == "exact" else 0
        rows: Iterable[tuple[NDArray[np.int64], Floats]] = map(unpack, ranked)
        full = len(ranked) > 1 and ranked.shape[1] and (ranked[:, -1] != NOTHING).all()
        if full:  # decode all rows at once: the host is the bottleneck of a batch
            rows = zip(*decode(ranked), strict=True)
        return [
            Scored(_global(numbers, self.index.first), scores, count + scanned)
            for (numbers, scores), count in zip(rows, products, strict=True)
        ]


def _global(numbers: NDArray[np.int64], first: int) -> NDArray[np.int64]:
    return numbers + first if first else numbers


def _triton_search(index: DeviceIndex, floor: bool) -> DeviceSearch:
    from citadel.search.gpu.triton_search import TritonSearch

    return TritonSearch(index, floor)
