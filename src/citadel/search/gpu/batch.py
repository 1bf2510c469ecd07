"""Queries as the kernels take them: which part of which list each token reads, and what it is multiplied with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from citadel.config import SUBVECTOR
from citadel.search.gpu.host_lists import stage
from citadel.search.gpu.lists import Lists
from citadel.search.gpu.pq_tables import Tables, room_for_tables
from citadel.search.plan import Plan
from citadel.types import Floats

LEAST = np.finfo(np.float32).smallest_subnormal  # what a vector of zeros is divided by


class Asked(NamedTuple):
    """Some queries, and the list of each of their tokens in each segment, -1 for none."""

    plans: Sequence[Plan]
    lists: tuple[NDArray[np.int64], ...]  # one a segment: [T]

    @property
    def owners(self) -> NDArray[np.int64]:
        """The query that each token belongs to [T]."""
        return np.repeat(np.arange(len(self.plans)), [len(plan.keys) for plan in self.plans])

    def have_lists(self) -> NDArray[np.bool_]:
        """Which queries have a list at all [B]."""
        if len(self.plans) == 1:
            return np.array([any((chosen >= 0).any() for chosen in self.lists)])
        found = np.zeros(sum(len(plan.keys) for plan in self.plans), bool)
        for chosen in self.lists:
            found |= chosen >= 0
        return np.bincount(self.owners, found, len(self.plans)) > 0


def find_lists(plans: Sequence[Plan], lists: Sequence[Lists | None]) -> Asked:
    """Look the lists of some queries up, all at once."""
    keys = plans[0].keys if len(plans) == 1 else np.concatenate([plan.keys for plan in plans])
    return Asked(plans, tuple(np.full(len(keys), -1) if own is None else own.find(keys) for own in lists))


def put(codec: str, vectors: Floats, rows: NDArray[Any], factors: Floats) -> None:
    """Write query vectors [n, d] as a codec multiplies them, and a factor for each; pq's tables are the card's work.

    fp16: as they are; int8: codes and scales (docs/how-it-works/search.md).

    >>> rows, factors = np.zeros((2, 2), np.int8), np.zeros(2, np.float32)
    >>> put("int8", np.array([[127, -2.5]], np.float32), rows, factors)
    >>> rows.tolist(), factors.tolist()
    ([[127, -2], [0, 0]], [1.0, 0.0])
    """
    rows, factors = rows[: len(vectors)], factors[: len(vectors)]
    if codec == "fp16":
        rows[:], factors[:] = vectors, 1
        return
    np.divide(np.maximum.reduce(np.abs(vectors), axis=1, initial=0), np.float32(127), out=factors)
    np.rint(vectors / np.maximum(factors, LEAST)[:, None], out=rows, casting="unsafe")


@dataclass(frozen=True)
class Tokens:
    """The query tokens' side of one segment, on the card."""

    starts: Tensor  # [T], first posting
    stops: Tensor  # [T]
    skip_rows: Tensor  # [T], -1 for a list without skips
    rows: Tensor  # [T, width]
    factors: Tensor  # [T]
    key_scales: Tensor  # [T]


@dataclass(frozen=True)
class Batch:
    """Some queries on the card; tokens of query b are `token_starts[b]` … `token_starts[b + 1]`."""

    size: int
    token_starts: Tensor  # [B + 1]
    tokens: tuple[Tokens | None, ...]  # one a segment; None where it has no lists
    tables: Tables | None  # the rows and factors of pq segments; whoever searches makes them first
    semantic: Tensor | None  # [B, s], as given
    semantic_rows: Tensor | None  # [B, s], as the semantic codec multiplies them
    semantic_factors: Tensor | None  # [B]


def padded(tokens: int) -> int:
    """Room for that many tokens: a power of two from 16 on, so that shapes repeat and a recorded graph fits again.

    >>> padded(9), padded(17)
    (16, 32)
    """
    return max(16, 1 << (tokens - 1).bit_length()) if tokens else 16


class Shape(NamedTuple):
    """How many queries, room for how many tokens in all, and the semantic vectors' dimension or 0."""

    queries: int
    tokens: int
    semantic: int


def shape_of(plans: Sequence[Plan], semantic: bool) -> Shape:
    """The shape of some queries; those of one shape fit the same room and the same recorded graph."""
    pooled = plans[0].semantic if semantic else None
    return Shape(len(plans), padded(sum(len(plan.keys) for plan in plans)), 0 if pooled is None else len(pooled))


def _kind(codec: str) -> Any:
    """What a query's rows are made of."""
    return np.int8 if codec == "int8" else np.float32


class Desk:
    """Where the parts of queries of one shape stand in one block of bytes, which goes to the card in one copy."""

    def __init__(self, shape: Shape, lists: Sequence[Lists | None], semantic_codec: str) -> None:
        self.shape, self._parts, self.bytes = shape, dict[str, tuple[int, Any, tuple[int, ...]]](), 0
        self._codecs, self._subvectors = [None if own is None else own.rows.codec for own in lists], 0
        self._add("token_starts", np.int64, shape.queries + 1)
        for place, own in enumerate(lists):
            if own is not None:
                self._segment(place, own)
        if shape.semantic:
            self._add("semantic", np.float32, shape.queries, shape.semantic)
            self._add("semantic_rows", _kind(semantic_codec), shape.queries, shape.semantic)
            self._add("semantic_factors", np.float32, shape.queries)

    def _segment(self, place: int, own: Lists) -> None:
        """Segments of one codec share their rows; an index has one codebook, so those of pq share their tables."""
        codec, width, room = own.rows.codec, own.rows.codes.shape[1], self.shape.tokens
        self._add(f"spans {place}", np.int64, 3, room)
        self._add(f"scales {place}", np.float32, room)
        if codec in SUBVECTOR:
            self._subvectors = width
            self._add("vectors", np.float32, room, width * SUBVECTOR[codec])
        else:
            self._add(f"rows {codec}", _kind(codec), room, width)
            self._add(f"factors {codec}", np.float32, room)

    def _add(self, name: str, kind: Any, *shape: int) -> None:
        if name not in self._parts:
            self._parts[name] = self.bytes, kind, shape
            self.bytes += -(-int(np.prod(shape)) * np.dtype(kind).itemsize // 16) * 16

    def here(self, block: NDArray[np.uint8]) -> dict[str, NDArray[Any]]:
        """The parts of a block on the host."""
        return {
            name: block[start : start + int(np.prod(shape)) * np.dtype(kind).itemsize].view(kind).reshape(shape)
            for name, (start, kind, shape) in self._parts.items()
        }

    def there(self, block: Tensor) -> Batch:
        """The queries in a block on the card; room for their tables is beside it."""
        kinds, parts = {np.int64: torch.int64, np.float32: torch.float32, np.int8: torch.int8}, {}
        for name, (start, kind, shape) in self._parts.items():
            size = int(np.prod(shape)) * np.dtype(kind).itemsize
            parts[name] = block[start : start + size].view(kinds[kind]).view(shape)
        tables = room_for_tables(parts["vectors"], self._subvectors) if "vectors" in parts else None
        tokens = [
            None if codec is None else _tokens(place, codec, parts, tables) for place, codec in enumerate(self._codecs)
        ]
        pooled = (parts.get(name) for name in ("semantic", "semantic_rows", "semantic_factors"))
        return Batch(self.shape.queries, parts["token_starts"], tuple(tokens), tables, *pooled)


def _tokens(place: int, codec: str, parts: dict[str, Tensor], tables: Tables | None) -> Tokens:
    """The parts of one segment."""
    (starts, stops, skips), scales = parts[f"spans {place}"].unbind(), parts[f"scales {place}"]
    if codec not in SUBVECTOR:
        return Tokens(starts, stops, skips, parts[f"rows {codec}"], parts[f"factors {codec}"], scales)
    assert tables is not None
    return Tokens(starts, stops, skips, tables.rows, tables.steps, scales)


class Laid(NamedTuple):
    """What is known of queries once they are laid out."""

    dot_products: list[int]  # of the tokens of each query
    staged: list[tuple[Lists, int, int]]  # waiting lists, and where each goes on the card

    def copy_staged(self) -> None:
        """Copy the waiting lists that these queries read to the card, without waiting."""
        for lists, number, at in self.staged:
            assert lists.cold is not None
            start, size = int(lists.cold.starts[number]), int(lists.sizes[number])
            lists.columns.copy(slice(at, at + size), lists.cold.columns, slice(start, start + size))


def lay_out(asked: Asked, lists: Sequence[Lists | None], semantic_codec: str, parts: dict[str, NDArray[Any]]) -> Laid:
    """Write some queries into the parts of a block."""
    if len(asked.plans) == 1:
        return _lay_out_one(asked, lists, semantic_codec, parts)
    parts["token_starts"][1:] = np.cumsum([len(plan.keys) for plan in asked.plans])
    owners = asked.owners
    products, staged = np.zeros(len(asked.plans), np.int64), list[tuple[Lists, int, int]]()
    for place, own in enumerate(lists):
        if own is not None:
            spans = _spans(own, asked.lists[place], staged, parts, place)
            products += np.bincount(owners, spans, len(products)).astype(np.int64)
    _put_rows(lists, np.concatenate([_vectors(plan) for plan in asked.plans]), parts)
    if "semantic" in parts:
        given = np.stack([plan.semantic for plan in asked.plans if plan.semantic is not None])
        _put_semantic(given, semantic_codec, parts)
    return Laid(products.tolist(), staged)


def _lay_out_one(
    asked: Asked, lists: Sequence[Lists | None], semantic_codec: str, parts: dict[str, NDArray[Any]]
) -> Laid:
    """The same for one query: the card waits for it, and every call of numpy is a microsecond."""
    [plan] = asked.plans
    parts["token_starts"][1] = len(plan.keys)
    products, staged = 0, list[tuple[Lists, int, int]]()
    for place, own in enumerate(lists):
        if own is not None:
            products += sum(_spans(own, asked.lists[place], staged, parts, place).tolist())
    _put_rows(lists, _vectors(plan), parts)
    if "semantic" in parts and plan.semantic is not None:
        _put_semantic(plan.semantic[None], semantic_codec, parts)
    return Laid([products], staged)


def _spans(
    own: Lists,
    chosen: NDArray[np.int64],
    staged: list[tuple[Lists, int, int]],
    parts: dict[str, NDArray[Any]],
    place: int,
) -> NDArray[np.int64]:
    """Each token's part of the postings; how many they are [T]."""
    count, spans = len(chosen), own.spans.take(chosen, axis=1)  # [3, T]; list -1 is the one behind the last
    if own.cold is not None:
        for number, at in stage(own.cold, chosen, own.sizes).items():
            spans[:2, chosen == number] += at - own.starts[number]
            staged.append((own, number, at))
    parts[f"spans {place}"][:, :count] = spans
    if own.rows.codec in SUBVECTOR:
        parts[f"scales {place}"][:count] = own.padded_scales[chosen]
    sizes: NDArray[np.int64] = spans[1] - spans[0]
    return sizes


def _put_rows(lists: Sequence[Lists | None], vectors: Floats, parts: dict[str, NDArray[Any]]) -> None:
    """Segments of one codec share their rows."""
    for codec in {own.rows.codec for own in lists if own is not None}:
        if codec in SUBVECTOR:
            parts["vectors"][: len(vectors)] = vectors
        else:
            put(codec, vectors, parts[f"rows {codec}"], parts[f"factors {codec}"])


def _put_semantic(given: Floats, codec: str, parts: dict[str, NDArray[Any]]) -> None:
    parts["semantic"][:] = given
    put(codec, given, parts["semantic_rows"], parts["semantic_factors"])


def _vectors(plan: Plan) -> Floats:
    """w·v [n, d]; without vectors, of a sparse router, the weights."""
    return plan.weights[:, None] if plan.vectors is None else plan.vectors
