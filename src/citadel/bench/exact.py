"""Exact search in plain torch, for every router and device: one list at a time against all queries.

A list is read once for all query rows with its key, as one matrix product; scores of all pairs of query and
passage are kept. A pair without a common key and without semantic vectors scores −∞.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from citadel.types import RoutedTokens

BLOCK = 256  # passages per block of the top-k selection
MAX_PRODUCTS = 1 << 27  # dot products computed at a time


class RoutedRows(NamedTuple):
    """Routed texts as flat rows: row p is the weighted vector of text `texts[p]` with key `keys[p]`.

    Rows of one text are adjacent. For a router without vectors, d = 1 and the vector is the weight.
    """

    size: int
    texts: Tensor  # [P]
    keys: Tensor  # [P]
    vectors: Tensor  # [P, d]
    semantic: Tensor | None  # [size, s]


class _ListPart(NamedTuple):
    """Postings start … end of the lists, and their groups low … high."""

    start: int
    end: int
    low: int
    high: int


def flatten(
    routed: Sequence[RoutedTokens], dtype: torch.dtype = torch.float32, device: str = "cpu"
) -> RoutedRows:
    """Routed texts as tensors.

    >>> one = RoutedTokens(np.array([7], np.uint32), np.array([2.0], np.float32))
    >>> flatten([one, one]).vectors.tolist()
    [[2.0], [2.0]]
    """
    width = next((text.vectors.shape[1] for text in routed if text.vectors is not None and len(text)), 1)
    sizes = torch.tensor([len(text) for text in routed], dtype=torch.int64)
    keys = np.concatenate([np.empty(0, np.uint32), *(text.keys for text in routed)]).astype(np.int64)
    weights = np.concatenate([np.empty(0), *(text.weights for text in routed)])  # float64
    vectors = [
        np.ones((len(t), width)) if t.vectors is None else t.vectors.reshape(len(t), width) for t in routed
    ]
    weighted = np.concatenate([np.empty((0, width)), *vectors]) * weights[:, None]
    semantic = [text.semantic for text in routed if text.semantic is not None]
    return RoutedRows(
        len(routed),
        torch.repeat_interleave(torch.arange(len(routed)), sizes).to(device),
        torch.from_numpy(keys).to(device),
        torch.from_numpy(weighted).to(device, dtype),
        torch.from_numpy(np.stack(semantic)).to(device, dtype) if semantic else None,
    )


class ExactSearch:
    """Inverted lists of passages as tensors.

    >>> one, two = (RoutedTokens(np.array([7], np.uint32), np.array([w], np.float32)) for w in (1, 2))
    >>> search = ExactSearch(flatten([one, two, one]), floor=False)
    >>> scores, numbers = search.search(flatten([two]), k=2)
    >>> numbers.tolist(), scores.tolist()
    ([[1, 0]], [[4.0, 2.0]])
    """

    def __init__(self, passages: RoutedRows, floor: bool) -> None:
        order = torch.argsort(passages.keys, stable=True)  # stable: a list is sorted by passage
        self._keys, texts = passages.keys[order], passages.texts[order]
        self._vectors = passages.vectors[order]
        new = torch.ones_like(texts, dtype=torch.bool)
        new[1:] = (texts[1:] != texts[:-1]) | (self._keys[1:] != self._keys[:-1])
        self._group = torch.cumsum(new, 0) - 1  # [P]: postings of one (key, passage) form a group
        self._group_passage = texts[new]  # [groups]
        self._semantic, self._floor, self.count = passages.semantic, floor, passages.size

    def search(self, queries: RoutedRows, k: int) -> tuple[Tensor, Tensor]:
        """The k best scores and passage numbers of each query, best first: [B, k], padded with −∞ and −1."""
        return best(self.scores(queries), k, self.count)

    def scores(self, queries: RoutedRows) -> Tensor:
        """The score of every query with every passage; columns after the last passage are −∞."""
        width = -(-self.count // BLOCK) * BLOCK
        wide = torch.promote_types(queries.vectors.dtype, torch.float32)
        scores = torch.full((queries.size, width), float("-inf"), dtype=wide, device=queries.vectors.device)
        if queries.semantic is not None and self._semantic is not None:
            scores[:, : self.count] = queries.semantic @ self._semantic.T
        for rows, part in self._matching_lists(queries):
            self._add(scores, queries.texts[rows], queries.vectors[rows], part)
        return scores

    def _matching_lists(self, queries: RoutedRows) -> Iterator[tuple[Tensor, _ListPart]]:
        """Query rows of one key, no two from the same query, with the key's list or pieces of it."""
        order, sizes = _units(queries)
        keys = queries.keys[order[torch.cumsum(sizes, 0) - sizes]]  # [units]
        first = torch.searchsorted(self._keys, keys)
        last = torch.searchsorted(self._keys, keys, right=True)
        # One copy to the host: a synchronisation per list would cost more than the lists.
        parts = torch.stack([first, last, self._groups(first), self._groups(last)], 1).tolist()
        for rows, numbers in zip(torch.split(order, sizes.tolist()), parts, strict=True):
            whole = _ListPart(*numbers)
            step = max(1, MAX_PRODUCTS // len(rows))
            if 0 < whole.end - whole.start <= step:
                yield rows, whole
            elif whole.start < whole.end:
                yield from ((rows, piece) for piece in self._pieces(whole, step))

    def _groups(self, positions: Tensor) -> Tensor:
        """Number of groups that begin before each position."""
        ends = torch.cat([self._group.new_zeros(1), self._group + 1])
        return ends[positions]

    def _pieces(self, whole: _ListPart, step: int) -> Iterator[_ListPart]:
        """Split a list into pieces of about `step` postings without splitting groups."""
        start, low = whole.start, whole.low
        while start < whole.end:
            target = min(start + step, whole.end)
            end = int(torch.searchsorted(self._group, self._group[target - 1 : target], right=True))
            high = int(self._group[end - 1]) + 1
            yield _ListPart(start, end, low, high)
            start, low = end, high

    def _add(self, scores: Tensor, queries: Tensor, vectors: Tensor, part: _ListPart) -> None:
        """Add the best product of a part of a list with each passage (Eq. 5)."""
        products = (vectors @ self._vectors[part.start : part.end].T).to(scores.dtype)  # [R, postings]
        group = self._group[part.start : part.end] - part.low
        passages = self._group_passage[part.low : part.high]  # [groups]
        if len(passages) < len(group):
            empty = products.new_full((len(products), len(passages)), float("-inf"))
            products = empty.scatter_reduce_(1, group.expand(len(products), -1), products, "amax")
        if self._floor:
            products = products.clamp_(min=0)
        cells = (queries[:, None], passages[None, :])
        before = scores[cells]  # [R, groups]
        scores[cells] = torch.where(torch.isneginf(before), products, before + products)


def _units(queries: RoutedRows) -> tuple[Tensor, Tensor]:
    """Query rows grouped into units of one key that can be added at once, and the size of each unit.

    A second token of a query with the same key goes into another unit: two writes to one score would race.
    """
    pair = queries.keys * (queries.size + 1) + queries.texts
    order = torch.argsort(pair, stable=True)
    position = torch.arange(len(order), device=order.device)
    turn = position - torch.searchsorted(pair[order], pair[order])  # earlier rows of this (key, query)
    turns = int(turn.max()) + 1 if len(turn) else 1
    unit = queries.keys[order] * turns + turn
    again = torch.argsort(unit, stable=True)
    sizes = torch.unique_consecutive(unit[again], return_counts=True)[1]
    return order[again], sizes


def best(scores: Tensor, k: int, count: int) -> tuple[Tensor, Tensor]:
    """The k best of each row, ties by lower number; sorts only the k blocks with the best maxima.

    >>> best(torch.tensor([[1.0, 3.0, 3.0] + [float("-inf")] * 253]), 2, 3)[1].tolist()
    [[1, 2]]
    """
    k = min(k, count)
    blocks = scores.view(len(scores), -1, BLOCK)  # [B, N / BLOCK, BLOCK]
    maxima = torch.sort(blocks.amax(-1), dim=1, descending=True, stable=True).indices[:, :k]
    chosen = torch.sort(maxima, dim=1).values  # [B, blocks]; ascending, so that ties keep lower numbers
    numbers = (chosen[..., None] * BLOCK + torch.arange(BLOCK, device=scores.device)).flatten(1)
    values, order = torch.sort(scores.gather(1, numbers), dim=1, descending=True, stable=True)
    values, numbers = values[:, :k], numbers.gather(1, order)[:, :k]
    return values, numbers.masked_fill(torch.isneginf(values), -1)
