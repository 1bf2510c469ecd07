"""Single queries through a model on a card: the model is recorded as a CUDA graph for each width and then replayed.

A query is some two hundred short kernels; started one by one they wait for Python. Nothing between the copy in and the
copy out depends on the numbers, so one recording serves every query of its shape. On the CPU the same steps run without
a recording.
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
LONGEST = 128  # tokens; longer queries are bound by their products, not by the starts of kernels


def padded_width(length: int) -> int:
    """How many tokens a text of that length takes with its padding.

    >>> padded_width(1), padded_width(8), padded_width(9)
    (8, 8, 16)
    """
    return -(-length // STEP) * STEP


class Shape(NamedTuple):
    """What a recording depends on."""

    width: int
    padded: bool  # without padding the attention takes another kernel

    @classmethod
    def of(cls, length: int) -> Shape:
        """That of a query of so many tokens.

        >>> Shape.of(5), Shape.of(16)
        (Shape(width=8, padded=True), Shape(width=16, padded=False))
        """
        width = padded_width(length)
        return cls(width, width > length)


class SingleQueries:
    """One query at a time through a model, whose weights stay as they are. Threads that share it take turns."""

    def __init__(self, model: Citadel, dtype: torch.dtype, where: str) -> None:
        self._model, self._dtype, self._where = model, dtype, where
        self._device = model.embeddings.word.device
        self._index = device_ordinal(self._device)
        self._turn = threading.Lock()
        self._shapes: dict[Shape, SingleQuery] = {}
        self.record = self._index is not None  # False: the same steps, started one by one

    def outputs(self, text: Encoding) -> dict[str, NDArray[Any]]:
        """What the model says of a query, an array a name, without the batch's dimension."""
        with self._turn, device_errors(self._where), self._current():
            shape = Shape.of(len(text))
            if shape not in self._shapes:
                self._shapes[shape] = SingleQuery(self._model, shape, self._dtype)
            query = self._shapes[shape]
            query.lay_out(text)
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
            words = str(error).split("\n", 1)[0]
            logging.getLogger("citadel").warning(
                "%s: queries are encoded without a recorded graph, some milliseconds slower, because the card refuses "
                "to record one (%s)",
                self._where,
                words,
            )


class _Part(NamedTuple):
    """Where one output stands in the answer."""

    name: str
    place: slice
    dtype: type[np.generic]
    shape: tuple[int, ...]


class SingleQuery:
    """The way of every query of one shape from the host to the model and back."""

    def __init__(self, model: Citadel, shape: Shape, dtype: torch.dtype) -> None:
        self._model, self._shape, self._dtype = model, shape, dtype
        device = model.embeddings.word.device
        self._gpu = device.type == "cuda"
        self._here = torch.zeros(3, shape.width, dtype=torch.int64, pin_memory=self._gpu)
        self._there = torch.zeros_like(self._here, device=device) if self._gpu else self._here
        self._desk: NDArray[np.int64] = self._here.numpy()  # ids, mask, routed [3, T]
        self._answer: Tensor | None = None
        self._parts: list[_Part] = []
        self.graph: torch.cuda.CUDAGraph | None = None

    def lay_out(self, text: Encoding) -> None:
        """Put a query of this shape where the model reads it."""
        count, desk = len(text), self._desk
        desk[0, :count], desk[1, :count], desk[2, :count] = text.ids, 1, text.routed
        desk[0, count:], desk[1:, count:] = self._model.config.pad_id, 0

    def outputs(self, *, replay: bool = True) -> dict[str, NDArray[Any]]:
        """What the model says of the query laid out; by its recording where there is one."""
        if replay and self.graph is not None:
            self.graph.replay()
        else:
            self.run()
        if self._gpu:
            torch.cuda.current_stream(torch.cuda.current_device()).synchronize()
        assert self._answer is not None
        words = self._answer.numpy().copy()  # the next query writes over it
        return {part.name: words[part.place].view(part.dtype).reshape(part.shape) for part in self._parts}

    @torch.no_grad()
    def run(self) -> None:
        """Start the copy in, the model and the copy out; nothing here may wait for the card or ask it for a number."""
        if self._gpu:
            self._there.copy_(self._here, non_blocking=True)
        ids, mask, routed = self._there[:, None]  # each [1, T]
        found = self._model.encode(
            ids,
            mask,
            routed.bool(),
            query=True,
            learning=False,
            dtype=self._dtype,
            padded=self._shape.padded,
        )
        wanted = {name: part for name, part in found.tensors().items() if part.dim() > 1 and name != "routed"}
        packed = torch.cat([_words(part) for part in wanted.values()])
        if self._answer is None:
            self._parts = _parts(wanted)
            self._answer = torch.empty(packed.shape, dtype=torch.int32, pin_memory=self._gpu)
        self._answer.copy_(packed, non_blocking=True)


def _words(part: Tensor) -> Tensor:
    """An output as words of four bytes, so that all of them leave the card in one copy."""
    return (part.float().view(torch.int32) if part.is_floating_point() else part.int()).flatten()


def _parts(wanted: dict[str, Tensor]) -> list[_Part]:
    parts, start = [], 0
    for name, part in wanted.items():
        shape = tuple(part.shape[1:])
        stop = start + math.prod(shape)
        parts.append(_Part(name, slice(start, stop), np.float32 if part.is_floating_point() else np.int32, shape))
        start = stop
    return parts
