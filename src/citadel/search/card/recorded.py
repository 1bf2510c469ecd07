"""Searches of one shape: their room, their place on the card, and on a GPU the recorded graph that replays them.

A single query is a handful of short kernels; started one by one they would wait for Python, replayed as one graph they
do not. Nothing between the copy in and the copy out depends on the numbers, so one recording serves every query of its
shape: as many tokens, rounded up, the same k and the same options.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from citadel.search.card.batch import Batch, Desk, Laid
from citadel.search.card.graph import record
from citadel.search.card.memory import Card
from citadel.search.plan import Options


class Search(Protocol):
    """What the kernels and plain torch both do."""

    recordable: bool  # nothing waits for the host, so a graph can replay it

    def room(self, queries: int, options: Options) -> Any: ...
    def run(self, room: Any, batch: Batch, options: Options) -> Tensor: ...


class Recorded:
    """The way of every query of one shape from the host to the card and back."""

    def __init__(self, card: Card, search: Search, desk: Desk, options: Options) -> None:
        self._card, self._search, self._options = card, search, options
        self._gpu, queries = card.device.type == "cuda", desk.shape.queries
        self._room = search.room(queries, options)
        self._here = torch.zeros(desk.bytes, dtype=torch.uint8, pin_memory=self._gpu)
        self._there = torch.zeros(desk.bytes, dtype=torch.uint8, device=card.device) if self._gpu else self._here
        self.parts, self.batch = desk.here(self._here.numpy()), desk.there(self._there)
        self._record = self._gpu and search.recordable and queries == 1
        self._graph: torch.cuda.CUDAGraph | None = None
        self._answer: Tensor | None = None

    def search(self, laid: Laid) -> NDArray[np.int64]:
        """The best documents of each query, packed, and how many candidates there were [B, k + 1], on the host."""
        laid.copy_staged()
        if self._record and self._graph is None:
            self._graph = record(self._card.device, self._run)
        if self._graph is not None:
            self._graph.replay()
        else:
            self._run()
        if self._gpu:
            torch.cuda.current_stream(torch.cuda.current_device()).synchronize()
        assert self._answer is not None
        return self._answer.numpy()

    @torch.inference_mode()
    def _run(self) -> None:
        """Start a search of what stands on the desk."""
        if self._gpu:
            self._there.copy_(self._here, non_blocking=True)
        found = self._search.run(self._room, self.batch, self._options)
        if self._answer is None:
            self._answer = torch.empty(found.shape, dtype=torch.int64, pin_memory=self._gpu)
        self._answer.copy_(found, non_blocking=True)
