"""Searches of one shape: their room, their place on the card, and on a GPU the recorded graph that replays them.

A single query is some fifteen short kernels; started one by one they would wait for Python, replayed as one graph they
do not. Nothing between the copy in and the copy out depends on the numbers, so one recording serves every query of its
shape: as many tokens, rounded up, the same k and the same options.
"""

from __future__ import annotations

import torch
from torch import Tensor

from citadel.search.card.batch import HostBatch
from citadel.search.card.memory import Card, make_room
from citadel.search.card.pipeline import Steps, run, wanted
from citadel.search.plan import Options

WARM_UPS = 2  # before a recording, so that kernels are compiled and memory is there


class Recorded:
    """The way of every query of one shape from the host to the card and back."""

    def __init__(self, card: Card, steps: Steps, host: HostBatch, options: Options) -> None:
        self._card, self._steps, self._options = card, steps, options
        self._gpu = card.device.type == "cuda"
        self.room = make_room(card, host.size, host.room, wanted(options))
        self._staged = {kind: torch.empty_like(part, pin_memory=self._gpu) for kind, part in host.arrays.items()}
        self._arrays = {kind: torch.zeros_like(part, device=card.device) for kind, part in host.arrays.items()}
        self._batch = host.place(self._arrays)
        self._graph: torch.cuda.CUDAGraph | None = None
        self._packed: Tensor | None = None
        self._answer: Tensor | None = None

    def search(self, host: HostBatch) -> tuple[Tensor, bool]:
        """The best documents of each query, packed, on the host; and whether candidates had no room."""
        host.copy_staged()
        for kind, part in host.arrays.items():
            self._staged[kind].copy_(part)
            self._arrays[kind].copy_(self._staged[kind], non_blocking=True)
        self.start()
        return self.finish(host.size)

    def start(self) -> None:
        """Search what is on the card, without waiting."""
        if self._gpu and self._steps.recordable and self._batch.size == 1 and self._graph is None:
            self._record()
        if self._graph is not None:
            self._graph.replay()
        else:
            self._packed = self._run()

    def _run(self) -> Tensor:
        """The answer with, in a last column, how many candidates there were."""
        packed = run(self._card, self._steps, self.room, self._batch, self._options)
        return torch.cat([packed, self.room.found[: len(packed), None].long()], 1)

    def _record(self) -> None:
        stream = torch.cuda.Stream(self._card.device)  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream(self._card.device))
        with torch.cuda.stream(stream):
            for _ in range(WARM_UPS):
                self._run()
        torch.cuda.current_stream(self._card.device).wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._packed = self._run()
        self._graph = graph

    def finish(self, queries: int) -> tuple[Tensor, bool]:
        """Wait for the answer."""
        assert self._packed is not None
        if self._answer is None:
            self._answer = torch.empty(self._packed.shape, dtype=torch.int64, pin_memory=self._gpu)
        self._answer.copy_(self._packed, non_blocking=True)
        if self._gpu:
            torch.cuda.current_stream(self._card.device).synchronize()
        found = self._answer[:queries]
        return found[:, :-1], bool((found[:, -1] > self.room.candidates.shape[1]).any())
