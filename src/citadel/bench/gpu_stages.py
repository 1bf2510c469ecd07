"""GPU search for `citadel bench latency`, timed until results are on the host."""

from __future__ import annotations

import time
from functools import cached_property
from typing import Any

import torch

from citadel.index.snapshot import Snapshot
from citadel.search.gpu.engine import GpuEngine
from citadel.search.plan import Options, Plan
from citadel.types import Scored

ROUNDS = 10
COPY_BYTES = {"cuda": 1 << 30, "cpu": 1 << 22}


class GpuSearch:
    """A snapshot on a GPU."""

    def __init__(self, snapshot: Snapshot, floor: bool, device: str) -> None:
        self._engine = GpuEngine(snapshot, floor, device)
        self._device = self._engine.engines[0].index.device

    def prepare(self, plan: Plan) -> Any:
        """Prepare a query for `search`."""
        return self._engine.prepare(plan)

    def search(self, query: Any, options: Options) -> Scored:
        """The best documents of one query, copied to the host."""
        return self._engine.search(query, options)

    @property
    def name(self) -> str:
        """The name of the GPU."""
        return torch.cuda.get_device_name(self._device) if self._device.type == "cuda" else "torch on the CPU"

    @cached_property
    def bandwidth(self) -> float:
        """Bytes per second that a copy reads and writes: the best of several rounds."""
        source = torch.ones(COPY_BYTES[self._device.type], dtype=torch.uint8, device=self._device)
        target = torch.empty_like(source)
        return 2 * source.numel() / min(self._copy_seconds(source, target) for _ in range(ROUNDS))

    def _copy_seconds(self, source: torch.Tensor, target: torch.Tensor) -> float:
        self._wait()
        start = time.perf_counter()
        target.copy_(source)
        self._wait()
        return time.perf_counter() - start

    def _wait(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
