"""Queries as the kernels take them: which part of which list each token reads, and what it is multiplied with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from citadel.index.codebook import Codebook
from citadel.search.card.cold import stage
from citadel.search.card.lists import Lists
from citadel.search.plan import Plan
from citadel.types import Floats


@dataclass(frozen=True)
class Prepared:
    """A plan and the list of each of its tokens in each segment, -1 for none."""

    plan: Plan
    lists: NDArray[np.int64]  # [segments, n]


@dataclass(frozen=True)
class Form:
    """Query vectors as one codec multiplies them: [n, width], and a factor for each [n]."""

    rows: Floats
    factors: Floats


def form(codec: str, vectors: Floats, book: Codebook | None) -> Form:
    """fp16: as they are; int8: codes and scales; pq: tables in whole steps, and the steps (docs/search.md).

    >>> form("int8", np.array([[127, -2.5]], np.float32), None).rows.tolist()
    [[127.0, -2.0]]
    """
    if codec == "fp16":
        return Form(vectors, np.ones(len(vectors), np.float32))
    if codec == "int8":
        scales = np.abs(vectors).max(axis=1, initial=0) / np.float32(127)  # [n]
        rows = np.rint(vectors / np.where(scales > 0, scales, np.float32(1))[:, None])
        return Form(np.where(scales[:, None] > 0, rows, np.float32(0)), scales)
    assert book is not None
    parts = book.centroids * vectors.reshape(-1, len(book.centroids), 1, book.centroids.shape[2])  # [n, S, 256, sub]
    table = parts[..., 0]
    for place in range(1, parts.shape[-1]):
        table = table + parts[..., place]  # [n, S, 256]
    largest = np.abs(table).max(axis=2)  # [n, S]
    total = largest[:, 0]
    for place in range(1, largest.shape[1]):
        total = total + largest[:, place]
    steps = total / np.float32(32767 - table.shape[1])  # [n]
    steps = np.where(steps < np.finfo(np.float32).tiny, np.float32(0), steps)
    whole = np.rint(table / np.where(steps > 0, steps, np.float32(np.inf))[:, None, None])
    return Form(whole.reshape(len(vectors), table.shape[1] * 256), steps)


@dataclass(frozen=True)
class Tokens:
    """The query tokens' side of one segment, on the card."""

    starts: Tensor  # [T], first posting
    stops: Tensor  # [T]
    rows: Tensor  # [T, width]
    factors: Tensor  # [T]
    key_scales: Tensor  # [T]


@dataclass(frozen=True)
class Batch:
    """Some queries on the card; tokens of query b are `token_starts[b]` … `token_starts[b + 1]`."""

    size: int
    token_starts: Tensor  # [B + 1]
    tokens: tuple[Tokens | None, ...]  # one a segment; None where it has no lists
    semantic: Tensor | None  # [B, s], as given
    semantic_rows: Tensor | None  # [B, s], as the semantic codec multiplies them
    semantic_factors: Tensor | None  # [B]
    dot_products: tuple[int, ...]  # of the tokens of each query


Place = tuple[bool, int, tuple[int, ...]]  # of which kind, from where, in which shape


class Packer:
    """Numbers on their way to the card: one array of whole numbers and one of floats, so two copies in all."""

    def __init__(self) -> None:
        self.parts: dict[bool, list[NDArray[np.int64] | Floats]] = {True: [], False: []}

    def add(self, array: NDArray[np.int64] | Floats) -> Place:
        """Where the array will stand: of which kind, from where, in which shape."""
        whole = array.dtype == np.int64
        start = sum(part.size for part in self.parts[whole])
        self.parts[whole].append(array)
        return whole, start, array.shape

    def host(self) -> dict[bool, Tensor]:
        """Both arrays, on the host."""
        kinds = {True: np.int64, False: np.float32}
        flat = {
            kind: [np.zeros(0, kinds[kind]), *(part.reshape(-1) for part in parts)]
            for kind, parts in self.parts.items()
        }
        return {kind: torch.from_numpy(np.concatenate(parts)) for kind, parts in flat.items()}


def padded(tokens: int) -> int:
    """Room for that many tokens: a power of two from 16 on, so that shapes repeat and a recorded graph fits again.

    >>> padded(9), padded(17)
    (16, 32)
    """
    return max(16, 1 << (tokens - 1).bit_length()) if tokens else 16


class HostBatch:
    """Some queries, laid out on the host; `place` says where everything stands once both arrays are on a card."""

    def __init__(
        self, queries: Sequence[Prepared], lists: Sequence[Lists | None], book: Codebook | None, semantic_codec: str
    ) -> None:
        sizes = [len(query.plan.keys) for query in queries]
        self.size, self.room = len(queries), padded(sum(sizes))
        self._packer = Packer()
        self._starts = self._packer.add(np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64))
        self.dot_products = np.zeros(self.size, np.int64)
        self.staged: list[tuple[Lists, int, int]] = []  # waiting lists, and where each goes on the card
        self._owner = np.repeat(np.arange(self.size), sizes)
        self._forms: dict[str, tuple[Place, ...]] = {}
        self._tokens = [self._segment(queries, i, own, book) for i, own in enumerate(lists)]
        self._semantic = self._pooled(queries, semantic_codec)
        self.arrays = self._packer.host()

    def _segment(
        self, queries: Sequence[Prepared], number: int, lists: Lists | None, book: Codebook | None
    ) -> tuple[Place, ...] | None:
        if lists is None:
            return None
        chosen = np.concatenate([np.zeros(0, np.int64), *(query.lists[number] for query in queries)])  # [T]
        there = np.maximum(chosen, 0)
        sizes = np.where(chosen >= 0, lists.sizes[there], 0) if len(lists.sizes) else np.zeros(len(chosen), np.int64)
        starts = np.where(chosen >= 0, lists.starts[there], 0) if len(lists.sizes) else sizes
        for number, at in (places := stage(lists.cold, chosen, lists.sizes)).items():
            starts = np.where(chosen == number, at, starts)
        self.staged += [(lists, number, at) for number, at in places.items()]
        scales = lists.scales[there] if len(lists.sizes) else np.ones(len(chosen), np.float32)
        self.dot_products += np.bincount(self._owner, sizes, self.size).astype(np.int64)
        bounds = (self._add(starts), self._add(starts + sizes))
        return (*bounds, *self._form(queries, lists.rows.codec, book), self._add(scales))

    def _form(self, queries: Sequence[Prepared], codec: str, book: Codebook | None) -> tuple[Place, ...]:
        """Segments of one codec share their form."""
        if codec not in self._forms:
            rows = [_vectors(query.plan) for query in queries]
            made = form(codec, np.concatenate(rows), book)
            self._forms[codec] = (self._add(made.rows), self._add(made.factors))
        return self._forms[codec]

    def _add(self, array: NDArray[np.int64] | Floats) -> Place:
        """One row a token, with zero rows up to the room there is."""
        room = np.zeros((self.room - len(array), *array.shape[1:]), array.dtype)
        return self._packer.add(np.concatenate([array, room]))

    def _pooled(self, queries: Sequence[Prepared], codec: str) -> tuple[Place, ...] | None:
        if not queries or queries[0].plan.semantic is None:
            return None
        given = np.stack([query.plan.semantic for query in queries if query.plan.semantic is not None])
        made = form(codec, given, None)
        return tuple(self._packer.add(part) for part in (given, made.rows, made.factors))

    def copy_staged(self) -> None:
        """Copy the waiting lists that these queries read to the card, without waiting."""
        for lists, number, at in self.staged:
            assert lists.cold is not None
            start, size = int(lists.cold.starts[number]), int(lists.sizes[number])
            lists.columns.copy(slice(at, at + size), lists.cold.columns, slice(start, start + size))

    @property
    def shape(self) -> tuple[int, ...]:
        """Two batches of one shape fit the same room and the same recorded graph."""
        return (self.size, self.room, *(len(self.arrays[kind]) for kind in (True, False)))

    def on(self, device: torch.device) -> Batch:
        """The batch, copied to a device."""
        self.copy_staged()
        return self.place({kind: part.to(device) for kind, part in self.arrays.items()})

    def place(self, arrays: dict[bool, Tensor]) -> Batch:
        """The batch over these two arrays, which hold what `self.arrays` does."""

        def view(where: Place) -> Tensor:
            kind, start, shape = where
            return arrays[kind][start : start + int(np.prod(shape))].view(shape)

        tokens = tuple(None if parts is None else Tokens(*map(view, parts)) for parts in self._tokens)
        given, rows, factors = (None, None, None) if self._semantic is None else map(view, self._semantic)
        counts = tuple(self.dot_products.tolist())
        return Batch(self.size, view(self._starts), tokens, given, rows, factors, counts)


def _vectors(plan: Plan) -> Floats:
    """w·v [n, d]; without vectors, of a sparse router, the weights."""
    return plan.weights[:, None] if plan.vectors is None else plan.vectors
