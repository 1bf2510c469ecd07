"""Searches of one shape: their room, their place on the card, and on a GPU the recorded graph that replays them.

A single query is a handful of short kernels; started one by one they would wait for Python, replayed as one graph they
do not. Nothing between the copy in and the copy out depends on the numbers, so one recording serves every query of its
shape: as many tokens, rounded up, the same k and the same options.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from citadel.search.gpu.batch import Batch, Desk, Laid
from citadel.search.gpu.graph import record
from citadel.search.gpu.memory import Card
from citadel.search.plan import Options


class Search(Protocol):
    """What the kernels and plain torch both do."""

    recordable: bool  # nothing waits for the host, so a graph can replay it

    def room(self, queries: int, options: Options) -> Any: ...
    def run(self, room: Any, batch: Batch, options: Options) -> Tensor: ...
    def bring(self, found: Tensor, answer: Tensor) -> None: ...


@dataclass
class Way:
    """One block of queries on the host, and where their answer comes back to."""

    block: Tensor
    parts: dict[str, NDArray[Any]]
    answer: Tensor | None = None
    found: NDArray[np.int64] | None = None  # the answer's memory, for numpy
    ended: torch.cuda.Event | None = None  # everything that was started with this block
    waiting: bool = False  # for that to happen

    def wait(self) -> None:
        """Until the card has done with this block."""
        if self.waiting and self.ended is not None:
            self.ended.synchronize()
        self.waiting = False

    def record(self) -> None:
        """What was started up to here is what `wait` waits for."""
        if self.ended is not None:
            self.ended.record()
        self.waiting = True


class Recorded:
    """The way of every query of one shape from the host to the card and back.

    A batch has two: while the card works on the queries of one block, the host writes those of the other. A query with
    more candidates than `capacity` has to go another way."""

    def __init__(self, card: Card, search: Search, room: Any, desk: Desk, options: Options, capacity: int) -> None:
        self.capacity = capacity
        self._card, self._search, self._room, self._options = card, search, room, options
        self._gpu, queries = card.device.type == "cuda", desk.shape.queries
        self._ways = [self._way(desk) for _ in range(1 if queries == 1 else 2)]
        self._there = torch.zeros(desk.bytes, dtype=torch.uint8, device=card.device)
        self.batch = desk.there(self._there)
        self._record = self._gpu and search.recordable and queries == 1
        self._graph: torch.cuda.CUDAGraph | None = None

    def _way(self, desk: Desk) -> Way:
        block = torch.zeros(desk.bytes, dtype=torch.uint8, pin_memory=self._gpu)
        return Way(block, desk.here(block.numpy()), ended=torch.cuda.Event() if self._gpu else None)  # type: ignore[no-untyped-call]

    def next(self) -> Way:
        """The block to write queries into; nobody reads it any more."""
        way = self._ways[0]
        way.wait()
        return way

    def start(self, laid: Laid) -> Way:
        """Start a search of what was written last, without waiting for it."""
        way = self._ways.pop(0)
        self._ways.append(way)
        laid.copy_staged()
        if self._record and self._graph is None:
            self._graph = record(self._card.device, lambda: self._run(way, self._search, self._room))
        if self._graph is not None:
            self._graph.replay()
        else:
            self._run(way, self._search, self._room)
        way.record()
        return way

    def wait(self, way: Way) -> NDArray[np.int64]:
        """The best documents of each query, packed, and how many candidates there were [B, k + 1], on the host."""
        way.wait()
        assert way.found is not None
        return way.found

    def again(self, way: Way, laid: Laid, search: Search) -> NDArray[np.int64]:
        """The same queries once more, in another manner; their waiting lists may have made room for the next ones'."""
        laid.copy_staged()
        self._run(way, search, search.room(self.batch.size, self._options))
        way.record()
        return self.wait(way)

    @torch.inference_mode()
    def _run(self, way: Way, search: Search, room: Any) -> None:
        """Start a search of what a block holds."""
        self._there.copy_(way.block, non_blocking=True)
        found = search.run(room, self.batch, self._options)
        if way.answer is None:
            way.answer = torch.empty(found.shape, dtype=torch.int64, pin_memory=self._gpu)
            way.found = way.answer.numpy()
        search.bring(found, way.answer)
