"""A segment's lists on the device: the sections of its file unchanged, except for unpacked document numbers.

A posting takes the bytes of its code, 4 for its document number (1 to 2 packed), and where stored 2 for an
int8 scale and 1 for its weight. Nothing is written to disk.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from citadel.index.codebook import Codebook
from citadel.index.packing import list_groups
from citadel.index.segment import Segment
from citadel.search.gpu.host_lists import HostLists, PostingColumns, choose_host_lists, staging_postings
from citadel.search.gpu.skip_table import Ranges, make_skips, skip_rows

CHUNK = 1 << 22  # postings or documents copied at a time
MAX_TABLE_KEY = 1 << 22  # smaller keys are looked up in a table
TYPES = {"fp16": torch.float16, "int8": torch.int8, "pq2": torch.uint8, "pq1": torch.uint8}


@dataclass(frozen=True)
class CodedRows:
    """Coded vectors on the device."""

    codec: str
    codes: Tensor  # [P, width]
    scales: Tensor | None  # [P], int8 only

    @property
    def bytes(self) -> int:
        """Size in memory."""
        return sum(
            part.numel() * part.element_size() for part in (self.codes, self.scales) if part is not None
        )


@dataclass(frozen=True)
class DeviceLists:
    """The inverted lists of one segment: list i is `starts[i]` … `starts[i] + sizes[i]` of the postings."""

    keys: NDArray[np.uint32]  # [K], on the host, where a query's keys are looked up
    starts: NDArray[np.int64]  # [K]
    sizes: NDArray[np.int64]  # [K]
    scales: NDArray[np.float32]  # [K]: pq's scale of each key
    documents: Tensor  # [P], int32
    rows: CodedRows
    weights: Tensor | None  # [P], uint8
    skip_rows: NDArray[np.int64]  # [K]: row in `skips`, -1 for a short list
    skips: Tensor  # [rows, R + 1]: start of each range of documents in the list
    on_host: HostLists | None = None  # lists kept on the host; their `starts` above are meaningless

    @property
    def bytes(self) -> int:
        """Size of the postings and skips on the device."""
        weights = 0 if self.weights is None else self.weights.numel()
        return self.documents.numel() * 4 + self.rows.bytes + weights + 4 * self.skips.numel()

    @property
    def columns(self) -> PostingColumns:
        """The columns on the device."""
        return PostingColumns(self.documents, self.rows.codes, self.rows.scales, self.weights)

    @cached_property
    def search_steps(self) -> int:
        """Steps of a binary search in the longest list without skips."""
        return int(self.sizes[self.skip_rows < 0].max(initial=0)).bit_length()

    @cached_property
    def by_key(self) -> NDArray[np.int64] | None:
        """The list of each key up to the largest + 1, -1 for none; None if the table would be large."""
        largest = int(self.keys[-1]) if len(self.keys) else -1
        if largest >= MAX_TABLE_KEY:
            return None
        table = np.full(largest + 2, -1)
        table[self.keys] = np.arange(len(self.keys))
        return table

    @cached_property
    def spans(self) -> NDArray[np.int64]:
        """Start, stop and skip row of each list [3, K + 1]; list -1 is empty."""
        return np.append([self.starts, self.starts + self.sizes, self.skip_rows], [[0], [0], [-1]], axis=1)

    @cached_property
    def padded_scales(self) -> NDArray[np.float32]:
        """`scales` followed by 1 for list -1."""
        return np.append(self.scales, np.float32(1))

    def find(self, keys: NDArray[np.uint32]) -> NDArray[np.int64]:
        """The list of each key, -1 for none."""
        if self.by_key is not None:
            return self.by_key.take(keys, mode="clip")
        position = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
        return np.where(self.keys[position] == keys, position, -1)


@dataclass(frozen=True)
class ColumnTarget:
    """Destination of columns: `count` rows and `spare` empty ones on a device, or pinned on the host."""

    device: torch.device
    count: int
    spare: int = 0
    pinned: bool = False

    def fill(self, dtype: torch.dtype, width: tuple[int, ...], parts: Iterator[NDArray[Any]]) -> Tensor:
        """Concatenate arrays into one tensor, through one small pinned buffer."""
        whole = torch.empty(
            (self.count + self.spare, *width), dtype=dtype, device=self.device, pin_memory=self.pinned
        )
        flat, done = whole.view(-1), 0
        staging = torch.empty(0, dtype=dtype)
        for part in parts:
            if part.size > len(staging):
                staging = torch.empty(part.size, dtype=dtype, pin_memory=self.device.type == "cuda")
            staging.numpy()[: part.size] = part.reshape(-1)
            flat[done : done + part.size].copy_(staging[: part.size])
            done += part.size
        return whole


@dataclass(frozen=True)
class SegmentPart:
    """Documents first … stop − 1 of a segment."""

    segment: Segment
    first: int
    stop: int

    @property
    def whole(self) -> bool:
        """Whether these are all documents of the segment."""
        return self.stop - self.first == self.segment.passages

    def documents(self) -> Iterator[NDArray[np.int64]]:
        """Document numbers of all postings of the segment, a few lists at a time."""
        for first, stop in list_groups(np.diff(self.segment.list_starts), CHUNK):
            yield self.segment.document_numbers(first, stop)

    def kept(self) -> NDArray[np.bool_] | None:
        """Which postings belong to these documents [P]; None for all."""
        if self.whole:
            return None
        parts = [(numbers >= self.first) & (numbers < self.stop) for numbers in self.documents()]
        return np.concatenate([np.zeros(0, bool), *parts])


def load_lists(
    part: SegmentPart, book: Codebook | None, device: torch.device, width: int, budget: int | None = None
) -> DeviceLists | None:
    """Copy the lists of a segment's part from its mapped file; None without lists.

    Lists beyond a budget in bytes stay in host memory, the least used first."""
    segment, meta = part.segment, part.segment.meta
    if meta.kind == "none":
        return None
    keys, kept = segment.keys.copy(), part.kept()
    sizes = np.diff(_starts(segment.list_starts, kept))
    codec = "fp16" if meta.kind == "sparse" else meta.codec
    scales = (
        book.scales_for(keys)
        if book is not None and codec.startswith("pq")
        else np.ones(len(keys), np.float32)
    )
    rows, ranges = skip_rows(sizes), Ranges(-(-(part.stop - part.first) // width), width)
    if budget is not None:
        budget -= 4 * (int(rows.max(initial=-1)) + 1) * (ranges.count + 1)
    on_host = None if budget is None else choose_host_lists(sizes, posting_bytes(segment), budget)
    rest = None
    if on_host is None:
        columns, starts = _columns(part, codec, kept, device, 0), _starts(segment.list_starts, kept)[:-1]
        parts = [(columns.documents, sizes)]
    else:
        chosen = np.repeat(on_host, np.diff(segment.list_starts))
        everything = np.ones(len(chosen), bool) if kept is None else kept
        spare = staging_postings(np.sort(sizes[on_host])[::-1])
        host_columns = _columns(
            part, codec, everything & chosen, torch.device("cpu"), 0, pinned=device.type == "cuda"
        )
        columns = _columns(part, codec, everything & ~chosen, device, spare)
        starts, cold_starts = (
            _starts(segment.list_starts, everything & those)[:-1] for those in (~chosen, chosen)
        )
        rest = HostLists(
            np.where(on_host, cold_starts, -1), host_columns, len(columns.documents) - spare, spare
        )
        parts = [
            (columns.documents, np.where(on_host, 0, sizes)),
            (host_columns.documents, np.where(on_host, sizes, 0)),
        ]
    skips = make_skips(rows, ranges, device, parts)
    coded = CodedRows(codec, columns.codes, columns.scales)
    return DeviceLists(
        keys, starts, sizes, scales, columns.documents, coded, columns.weights, rows, skips, rest
    )


def _starts(starts: NDArray[np.int64], kept: NDArray[np.bool_] | None) -> NDArray[np.int64]:
    """Starts of the lists when only the kept postings are left [K + 1]."""
    return starts.copy() if kept is None else np.concatenate([[0], np.cumsum(kept)]).astype(np.int64)[starts]


def posting_bytes(segment: Segment) -> int:
    """Bytes per posting on the device."""
    meta = segment.meta
    vector = 2 if meta.kind == "sparse" else meta.code_width * TYPES[meta.codec].itemsize
    scale = 2 if meta.kind != "sparse" and meta.codec == "int8" else 0
    return 4 + vector + scale + ("WEIGHTS" in segment.file)


def _columns(
    part: SegmentPart,
    codec: str,
    kept: NDArray[np.bool_] | None,
    device: torch.device,
    spare: int,
    pinned: bool = False,
) -> PostingColumns:
    """The columns of the kept postings, with spare rows after them."""
    segment = part.segment
    count = segment.meta.postings if kept is None else int(kept.sum())
    target = ColumnTarget(device, count, spare, pinned)
    width = 1 if segment.meta.kind == "sparse" else segment.meta.code_width
    numbers = ((some - part.first).astype(np.int32) for some in _chosen(part.documents(), kept))

    def column(name: str, kind: Any, dtype: torch.dtype) -> Tensor:
        parts = (segment.file[name].array(kind, start, stop) for start, stop in pieces(segment.meta.postings))
        return target.fill(dtype, (), _chosen(parts, kept))

    return PostingColumns(
        target.fill(torch.int32, (), numbers),
        target.fill(TYPES[codec], (width,), _chosen(_codes(segment, width), kept)),
        column("SCALES", np.float16, torch.float16) if codec == "int8" else None,
        column("WEIGHTS", np.uint8, torch.uint8) if "WEIGHTS" in segment.file else None,
    )


def _codes(segment: Segment, width: int) -> Iterator[NDArray[Any]]:
    for start, stop in pieces(segment.meta.postings):
        if segment.meta.kind == "sparse":
            yield segment.file["VALUES"].array(np.float16, start, stop).reshape(-1, width)
        else:
            yield segment.encoded(start, stop).codes


def _chosen(parts: Iterator[NDArray[Any]], kept: NDArray[np.bool_] | None) -> Iterator[NDArray[Any]]:
    done = 0
    for part in parts:
        yield part if kept is None else part[kept[done : done + len(part)]]
        done += len(part)


def load_semantic(parts: Sequence[SegmentPart], device: torch.device) -> CodedRows | None:
    """The semantic vectors of all parts in one table [N, s]."""
    if not parts or not parts[0].segment.meta.semantic_dimension:
        return None
    meta, total = parts[0].segment.meta, sum(part.stop - part.first for part in parts)
    cut = [
        (part.segment, part.first + start, part.first + stop)
        for part in parts
        for start, stop in pieces(part.stop - part.first)
    ]
    target = ColumnTarget(device, total)
    vectors = (segment.semantic(start, stop).codes for segment, start, stop in cut)
    codes = target.fill(TYPES[meta.semantic_codec], (meta.semantic_dimension,), vectors)
    if meta.semantic_codec != "int8":
        return CodedRows(meta.semantic_codec, codes, None)
    scales = (segment.file["SEMANTIC_SCALES"].array(np.float16, start, stop) for segment, start, stop in cut)
    return CodedRows("int8", codes, target.fill(torch.float16, (), scales))


def pieces(count: int) -> Iterator[tuple[int, int]]:
    """0 … count in pieces of CHUNK.

    >>> list(pieces(3))
    [(0, 3)]
    """
    return ((start, min(start + CHUNK, count)) for start in range(0, count, CHUNK))
