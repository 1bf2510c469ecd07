"""Encode single queries on a GPU by replaying CUDA graphs, one recorded per query width.

A query takes about two hundred short kernels, and launching them one by one is bound by Python. The steps
between the copy to the device and the copy back do not depend on the values, so one recording serves all
queries of a shape. On the CPU the same steps run without a recording.
"""

from __future__ import annotations

import logging
import math
import threading
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from citadel.encode.tokenizer import Encoding
from citadel.model.citadel import Citadel
from citadel.search.gpu.device import device_errors
from citadel.search.gpu.graph import device_ordinal, record

STEP = 8  # widths are multiples of this
MAX_TOKENS = 128  # per query; longer ones are bound by computation, not by kernel launches


def padded_width(length: int) -> int:
    """Length of a text with its padding.

    >>> padded_width(1), padded_width(8), padded_width(9)
    (8, 8, 16)
    """
    return -(-length // STEP) * STEP


class QueryShape(NamedTuple):
    """Shape of a query; one recording serves one shape."""

    width: int
    padded: bool  # without padding the attention uses another kernel

    @classmethod
    def of(cls, length: int) -> QueryShape:
        """Shape of a query of this many tokens.

        >>> QueryShape.of(5), QueryShape.of(16)
        (QueryShape(width=8, padded=True), QueryShape(width=16, padded=False))
        """
        width = padded_width(length)
        return cls(width, width > length)


class SingleQueries:
    """Encode one query at a time with fixed weights; threads take turns."""

    def __init__(self, model: Citadel, dtype: torch.dtype, where: str) -> None:
        self._model, self._dtype, self._where = model, dtype, where
        self._device = model.embeddings.word.device
        self._index = device_ordinal(self._device)
        self._turn = threading.Lock()
        self._shapes: dict[QueryShape, SingleQuery] = {}
        self.record = self._index is not None  # False: launch the steps one by one

    def outputs(self, text: Encoding) -> dict[str, NDArray[Any]]:
        """Outputs of the model for a query, by name, without the batch dimension."""
        with self._turn, device_errors(self._where), self._current():
            shape = QueryShape.of(len(text))
            if shape not in self._shapes:
                self._shapes[shape] = SingleQuery(self._model, shape, self._dtype)
            query = self._shapes[shape]
            query.load(text)
            if self.record and query.graph is None:
                self._record(query)
            return query.outputs(replay=self.record)

    def _current(self) -> AbstractContextManager[Any]:
        return nullcontext() if self._index is None else torch.cuda.device(self._index)

    def _record(self, query: SingleQuery) -> None:
        try:
            beside = next((other.graph for other in self._shapes.values() if other.graph is not None), None)
            query.graph = record(self._device, query.run, beside)
        except RuntimeError as error:  # out of memory among them
            self.record = False
            reason = str(error).split("\n", 1)[0]
            logging.getLogger("citadel").warning(
                "%s: recording a CUDA graph failed, so that queries take some milliseconds longer (%s)",
                self._where,
                reason,
            )


class _OutputSlice(NamedTuple):
    """Slice of the packed outputs that holds one output."""

    name: str
    span: slice
    dtype: type[np.generic]
    shape: tuple[int, ...]


class SingleQuery:
    """Buffers and recording for queries of one shape."""

    def __init__(self, model: Citadel, shape: QueryShape, dtype: torch.dtype) -> None:
        self._model, self._shape, self._dtype = model, shape, dtype
        device = model.embeddings.word.device
        self._gpu = device.type == "cuda"
        self._host_input = torch.zeros(3, shape.width, dtype=torch.int64, pin_memory=self._gpu)
        self._device_input = (
            torch.zeros_like(self._host_input, device=device) if self._gpu else self._host_input
        )
        self._input_array: NDArray[np.int64] = self._host_input.numpy()  # ids, mask, routed [3, T]
        self._host_output: Tensor | None = None
        self._parts: list[_OutputSlice] = []
        self.graph: torch.cuda.CUDAGraph | None = None

    def load(self, text: Encoding) -> None:
        """Copy a query into the input buffer."""
        count, array = len(text), self._input_array
        array[0, :count], array[1, :count], array[2, :count] = text.ids, 1, text.routed
        array[0, count:], array[1:, count:] = self._model.config.pad_id, 0

    def outputs(self, *, replay: bool = True) -> dict[str, NDArray[Any]]:
        """Run the model on the loaded query, by its recording if there is one."""
        if replay and self.graph is not None:
            self.graph.replay()
        else:
            self.run()
        if self._gpu:
            torch.cuda.current_stream(torch.cuda.current_device()).synchronize()
        assert self._host_output is not None
        words = self._host_output.numpy().copy()  # the next query overwrites it
        return {part.name: words[part.span].view(part.dtype).reshape(part.shape) for part in self._parts}

    @torch.no_grad()
    def run(self) -> None:
        """Launch the copy in, the model and the copy out; nothing here may synchronise with the device."""
        if self._gpu:
            self._device_input.copy_(self._host_input, non_blocking=True)
        ids, mask, routed = self._device_input[:, None]  # each [1, T]
        encoded = self._model.encode(
            ids,
            mask,
            routed.bool(),
            query=True,
            learning=False,
            dtype=self._dtype,
            padded=self._shape.padded,
        )
        wanted = {
            name: part for name, part in encoded.tensors().items() if part.dim() > 1 and name != "routed"
        }
        packed = torch.cat([_words(part) for part in wanted.values()])
        if self._host_output is None:
            self._parts = _parts(wanted)
            self._host_output = torch.empty(packed.shape, dtype=torch.int32, pin_memory=self._gpu)
        self._host_output.copy_(packed, non_blocking=True)


def _words(part: Tensor) -> Tensor:
    """View an output as 4-byte words, so that one copy transfers all outputs."""
    return (part.float().view(torch.int32) if part.is_floating_point() else part.int()).flatten()


def _parts(wanted: dict[str, Tensor]) -> list[_OutputSlice]:
    parts, start = [], 0
    for name, part in wanted.items():
        shape = tuple(part.shape[1:])
        stop = start + math.prod(shape)
        parts.append(
            _OutputSlice(
                name, slice(start, stop), np.float32 if part.is_floating_point() else np.int32, shape
            )
        )
        start = stop
    return parts
