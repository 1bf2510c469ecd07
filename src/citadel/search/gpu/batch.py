"""Query batches in the layout the kernels read: list spans per token, query rows and their factors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from citadel.search.gpu.host_lists import assign_staging
from citadel.search.gpu.lists import DeviceLists
from citadel.search.gpu.pq_tables import Tables, allocate_tables
from citadel.search.plan import Plan
from citadel.settings import SUBVECTOR
from citadel.types import Floats

SMALLEST = np.finfo(np.float32).smallest_subnormal  # divisor for a vector of zeros
HostArrays = dict[str, NDArray[Any]]  # named parts of a block on the host
StagedList = tuple[DeviceLists, int, int]  # lists of a segment, list number, first posting on the device


class QueryLists(NamedTuple):
    """Queries with the list number of each of their tokens in each segment; -1 for none."""

    plans: Sequence[Plan]
    lists: tuple[NDArray[np.int64], ...]  # per segment: [T]

    @property
    def owners(self) -> NDArray[np.int64]:
        """The query of each token [T]."""
        return np.repeat(np.arange(len(self.plans)), [len(plan.keys) for plan in self.plans])

    def have_lists(self) -> NDArray[np.bool_]:
        """Which queries match any list [B]."""
        if len(self.plans) == 1:
            return np.array([any((chosen >= 0).any() for chosen in self.lists)])
        matched = np.zeros(sum(len(plan.keys) for plan in self.plans), bool)
        for chosen in self.lists:
            matched |= chosen >= 0
        return np.bincount(self.owners, matched, len(self.plans)) > 0


def find_lists(plans: Sequence[Plan], lists: Sequence[DeviceLists | None]) -> QueryLists:
    """Look up the lists of all query tokens at once."""
    keys = plans[0].keys if len(plans) == 1 else np.concatenate([plan.keys for plan in plans])
    return QueryLists(
        plans, tuple(np.full(len(keys), -1) if own is None else own.find(keys) for own in lists)
    )


def write_rows(codec: str, vectors: Floats, rows: NDArray[Any], factors: Floats) -> None:
    """Write query vectors [n, d] in a codec's operand format, with a factor per vector.

    fp16: unchanged; int8: codes and scales (docs/how-it-works/search.md). The tables of pq are computed on
    the device.

    >>> rows, factors = np.zeros((2, 2), np.int8), np.zeros(2, np.float32)
    >>> write_rows("int8", np.array([[127, -2.5]], np.float32), rows, factors)
    >>> rows.tolist(), factors.tolist()
    ([[127, -2], [0, 0]], [1.0, 0.0])
    """
    rows, factors = rows[: len(vectors)], factors[: len(vectors)]
    if codec == "fp16":
        rows[:], factors[:] = vectors, 1
        return
    np.divide(np.maximum.reduce(np.abs(vectors), axis=1, initial=0), np.float32(127), out=factors)
    np.rint(vectors / np.maximum(factors, SMALLEST)[:, None], out=rows, casting="unsafe")


@dataclass(frozen=True)
class SegmentTokens:
    """The query tokens as one segment needs them, on the device."""

    starts: Tensor  # [T], first posting
    stops: Tensor  # [T]
    skip_rows: Tensor  # [T], -1 for a list without skips
    rows: Tensor  # [T, width]
    factors: Tensor  # [T]
    key_scales: Tensor  # [T]


@dataclass(frozen=True)
class Batch:
    """Queries on the device; the tokens of query b are `token_starts[b]` … `token_starts[b + 1]`."""

    size: int
    token_starts: Tensor  # [B + 1]
    tokens: tuple[SegmentTokens | None, ...]  # per segment; None without lists
    tables: Tables | None  # rows and factors of pq segments; computed first by the search
    semantic: Tensor | None  # [B, s], as given
    semantic_rows: Tensor | None  # [B, s], in the operand format of the semantic codec
    semantic_factors: Tensor | None  # [B]


def padded(tokens: int) -> int:
    """Round up to a power of two of at least 16, so that shapes repeat and recorded graphs are reused.

    >>> padded(9), padded(17)
    (16, 32)
    """
    return max(16, 1 << (tokens - 1).bit_length()) if tokens else 16


class BatchShape(NamedTuple):
    """Number of queries, padded number of tokens, and dimension of the semantic vectors or 0."""

    queries: int
    tokens: int
    semantic: int


def batch_shape(plans: Sequence[Plan], semantic: bool) -> BatchShape:
    """The shape of a batch; batches of one shape share a layout and a recorded graph."""
    pooled = plans[0].semantic if semantic else None
    tokens = padded(sum(len(plan.keys) for plan in plans))
    return BatchShape(len(plans), tokens, 0 if pooled is None else len(pooled))


def _row_type(codec: str) -> Any:
    """The dtype of query rows."""
    return np.int8 if codec == "int8" else np.float32


class BatchLayout:
    """Offsets of all parts of a batch in one block of bytes, which is copied to the device at once."""

    def __init__(self, shape: BatchShape, lists: Sequence[DeviceLists | None], semantic_codec: str) -> None:
        self.shape, self._parts, self.bytes = shape, dict[str, tuple[int, Any, tuple[int, ...]]](), 0
        self._codecs, self._subvectors = [None if own is None else own.rows.codec for own in lists], 0
        self._add("token_starts", np.int64, shape.queries + 1)
        for segment, own in enumerate(lists):
            if own is not None:
                self._add_segment(segment, own)
        if shape.semantic:
            self._add("semantic", np.float32, shape.queries, shape.semantic)
            self._add("semantic_rows", _row_type(semantic_codec), shape.queries, shape.semantic)
            self._add("semantic_factors", np.float32, shape.queries)

    def _add_segment(self, segment: int, own: DeviceLists) -> None:
        """Segments of one codec share rows; an index has one codebook, so pq segments share tables."""
        codec, width, tokens = own.rows.codec, own.rows.codes.shape[1], self.shape.tokens
        self._add(f"spans {segment}", np.int64, 3, tokens)
        self._add(f"scales {segment}", np.float32, tokens)
        if codec in SUBVECTOR:
            self._subvectors = width
            self._add("vectors", np.float32, tokens, width * SUBVECTOR[codec])
        else:
            self._add(f"rows {codec}", _row_type(codec), tokens, width)
            self._add(f"factors {codec}", np.float32, tokens)

    def _add(self, name: str, dtype: Any, *shape: int) -> None:
        if name not in self._parts:
            self._parts[name] = self.bytes, dtype, shape
            self.bytes += -(-int(np.prod(shape)) * np.dtype(dtype).itemsize // 16) * 16

    def host_arrays(self, block: NDArray[np.uint8]) -> HostArrays:
        """Views of the parts of a block on the host."""
        return {
            name: block[start : start + int(np.prod(shape)) * np.dtype(dtype).itemsize]
            .view(dtype)
            .reshape(shape)
            for name, (start, dtype, shape) in self._parts.items()
        }

    def device_batch(self, block: Tensor) -> Batch:
        """The batch in a block on the device; pq tables are allocated next to it."""
        dtypes, parts = {np.int64: torch.int64, np.float32: torch.float32, np.int8: torch.int8}, {}
        for name, (start, dtype, shape) in self._parts.items():
            size = int(np.prod(shape)) * np.dtype(dtype).itemsize
            parts[name] = block[start : start + size].view(dtypes[dtype]).view(shape)
        tables = allocate_tables(parts["vectors"], self._subvectors) if "vectors" in parts else None
        tokens = [
            None if codec is None else _segment_tokens(segment, codec, parts, tables)
            for segment, codec in enumerate(self._codecs)
        ]
        pooled = (parts.get(name) for name in ("semantic", "semantic_rows", "semantic_factors"))
        return Batch(self.shape.queries, parts["token_starts"], tuple(tokens), tables, *pooled)


def _segment_tokens(
    segment: int, codec: str, parts: dict[str, Tensor], tables: Tables | None
) -> SegmentTokens:
    (starts, stops, skips), scales = parts[f"spans {segment}"].unbind(), parts[f"scales {segment}"]
    if codec not in SUBVECTOR:
        return SegmentTokens(starts, stops, skips, parts[f"rows {codec}"], parts[f"factors {codec}"], scales)
    assert tables is not None
    return SegmentTokens(starts, stops, skips, tables.rows, tables.steps, scales)


class PackedBatch(NamedTuple):
    """What the host keeps of a batch once it is written into a block."""

    dot_products: list[int]  # token products per query
    staged: list[StagedList]  # host lists to copy to the device

    def copy_staged(self) -> None:
        """Copy the host lists of this batch to the device, without waiting."""
        for lists, number, at in self.staged:
            assert lists.on_host is not None
            start, size = int(lists.on_host.starts[number]), int(lists.sizes[number])
            lists.columns.copy(slice(at, at + size), lists.on_host.columns, slice(start, start + size))


def pack_queries(
    query_lists: QueryLists, lists: Sequence[DeviceLists | None], semantic_codec: str, parts: HostArrays
) -> PackedBatch:
    """Write queries into the parts of a host block."""
    if len(query_lists.plans) == 1:
        return _pack_one(query_lists, lists, semantic_codec, parts)
    plans, owners = query_lists.plans, query_lists.owners
    parts["token_starts"][1:] = np.cumsum([len(plan.keys) for plan in plans])
    products, staged = np.zeros(len(plans), np.int64), list[StagedList]()
    for segment, own in enumerate(lists):
        if own is not None:
            sizes = _write_spans(own, query_lists.lists[segment], staged, parts, segment)
            products += np.bincount(owners, sizes, len(products)).astype(np.int64)
    _write_vectors(lists, np.concatenate([_vectors(plan) for plan in plans]), parts)
    if "semantic" in parts:
        given = np.stack([plan.semantic for plan in plans if plan.semantic is not None])
        _write_semantic(given, semantic_codec, parts)
    return PackedBatch(products.tolist(), staged)


def _pack_one(
    query_lists: QueryLists, lists: Sequence[DeviceLists | None], semantic_codec: str, parts: HostArrays
) -> PackedBatch:
    """The same for one query with fewer numpy calls: the device is idle meanwhile, and each takes 1 µs."""
    [plan] = query_lists.plans
    parts["token_starts"][1] = len(plan.keys)
    products, staged = 0, list[StagedList]()
    for segment, own in enumerate(lists):
        if own is not None:
            products += sum(_write_spans(own, query_lists.lists[segment], staged, parts, segment).tolist())
    _write_vectors(lists, _vectors(plan), parts)
    if "semantic" in parts and plan.semantic is not None:
        _write_semantic(plan.semantic[None], semantic_codec, parts)
    return PackedBatch([products], staged)


def _write_spans(
    own: DeviceLists, chosen: NDArray[np.int64], staged: list[StagedList], parts: HostArrays, segment: int
) -> NDArray[np.int64]:
    """Write the posting span of each token; return the span sizes [T]."""
    count, spans = len(chosen), own.spans.take(chosen, axis=1)  # [3, T]; list -1 is the last column, empty
    if own.on_host is not None:
        for number, at in assign_staging(own.on_host, chosen, own.sizes).items():
            spans[:2, chosen == number] += at - own.starts[number]
            staged.append((own, number, at))
    parts[f"spans {segment}"][:, :count] = spans
    if own.rows.codec in SUBVECTOR:
        parts[f"scales {segment}"][:count] = own.padded_scales[chosen]
    sizes: NDArray[np.int64] = spans[1] - spans[0]
    return sizes


def _write_vectors(lists: Sequence[DeviceLists | None], vectors: Floats, parts: HostArrays) -> None:
    """Write the token vectors once per codec."""
    for codec in {own.rows.codec for own in lists if own is not None}:
        if codec in SUBVECTOR:
            parts["vectors"][: len(vectors)] = vectors
        else:
            write_rows(codec, vectors, parts[f"rows {codec}"], parts[f"factors {codec}"])


def _write_semantic(given: Floats, codec: str, parts: HostArrays) -> None:
    parts["semantic"][:] = given
    write_rows(codec, given, parts["semantic_rows"], parts["semantic_factors"])


def _vectors(plan: Plan) -> Floats:
    """w·v [n, d]; the weights alone for a router without vectors."""
    return plan.weights[:, None] if plan.vectors is None else plan.vectors
