"""A search for batches of one shape: host buffers, device buffer, and on a GPU a recorded CUDA graph.

A single query runs a handful of short kernels, and launching each from Python takes longer than running it; a
graph launches all of them at once. No step between the copy in and the copy out depends on the values, so one
recording serves every query of its shape: the same padded number of tokens, the same k, the same options.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from citadel.search.gpu.batch import Batch, BatchLayout, PackedBatch
from citadel.search.gpu.device_index import DeviceIndex
from citadel.search.gpu.graph import record
from citadel.search.plan import Options


class DeviceSearch(Protocol):
    """The search steps on a device: Triton kernels or plain torch."""

    recordable: bool  # never waits for the host, so a graph can replay it

    def workspace(self, queries: int, options: Options) -> Any: ...
    def run(self, workspace: Any, batch: Batch, options: Options) -> Tensor: ...
    def copy_result(self, ranked: Tensor, result: Tensor) -> None: ...


@dataclass
class HostSlot:
    """A block of packed queries on the host, and the buffer for their result."""

    block: Tensor
    parts: dict[str, NDArray[Any]]
    result: Tensor | None = None
    ranked: NDArray[np.int64] | None = None  # numpy view of `result`
    done: torch.cuda.Event | None = None  # follows all work started from this block
    pending: bool = False  # `done` was recorded and not yet waited for

    def wait(self) -> None:
        """Wait until the device has finished with this block."""
        if self.pending and self.done is not None:
            self.done.synchronize()
        self.pending = False

    def record(self) -> None:
        """Mark the work started so far as what `wait` waits for."""
        if self.done is not None:
            self.done.record()
        self.pending = True


class RecordedSearch:
    """Searches of one shape, from the host to the device and back.

    A batch has two slots: the host packs one while the device works on the other. A query with more
    candidates than `capacity` has to be rerun by another search."""

    def __init__(
        self,
        index: DeviceIndex,
        search: DeviceSearch,
        workspace: Any,
        layout: BatchLayout,
        options: Options,
        capacity: int,
    ) -> None:
        self.capacity = capacity
        self._index, self._search, self._workspace, self._options = index, search, workspace, options
        self._gpu, queries = index.device.type == "cuda", layout.shape.queries
        self._slots = [self._slot(layout) for _ in range(1 if queries == 1 else 2)]
        self._block = torch.zeros(layout.bytes, dtype=torch.uint8, device=index.device)
        self.batch = layout.device_batch(self._block)
        self._record = self._gpu and search.recordable and queries == 1
        self._graph: torch.cuda.CUDAGraph | None = None

    def _slot(self, layout: BatchLayout) -> HostSlot:
        block = torch.zeros(layout.bytes, dtype=torch.uint8, pin_memory=self._gpu)
        done = torch.cuda.Event() if self._gpu else None  # type: ignore[no-untyped-call]
        return HostSlot(block, layout.host_arrays(block.numpy()), done=done)

    def next_slot(self) -> HostSlot:
        """The slot to write the next queries into; waits until it is free."""
        slot = self._slots[0]
        slot.wait()
        return slot

    def start(self, packed: PackedBatch) -> HostSlot:
        """Start a search of the queries written last, without waiting for it."""
        slot = self._slots.pop(0)
        self._slots.append(slot)
        packed.copy_staged()
        if self._record and self._graph is None:
            self._graph = record(self._index.device, lambda: self._run(slot, self._search, self._workspace))
        if self._graph is not None:
            self._graph.replay()
        else:
            self._run(slot, self._search, self._workspace)
        slot.record()
        return slot

    def wait(self, slot: HostSlot) -> NDArray[np.int64]:
        """The packed best documents of each query and the number of candidates [B, k + 1], on the host."""
        slot.wait()
        assert slot.ranked is not None
        return slot.ranked

    def rerun(self, slot: HostSlot, packed: PackedBatch, search: DeviceSearch) -> NDArray[np.int64]:
        """Search the same queries again another way; their staged lists may have been overwritten since."""
        packed.copy_staged()
        self._run(slot, search, search.workspace(self.batch.size, self._options))
        slot.record()
        return self.wait(slot)

    @torch.inference_mode()
    def _run(self, slot: HostSlot, search: DeviceSearch, workspace: Any) -> None:
        """Copy a block to the device, search it and copy the result back, without waiting."""
        self._block.copy_(slot.block, non_blocking=True)
        ranked = search.run(workspace, self.batch, self._options)
        if slot.result is None:
            slot.result = torch.empty(ranked.shape, dtype=torch.int64, pin_memory=self._gpu)
            slot.ranked = slot.result.numpy()
        search.copy_result(ranked, slot.result)
