"""A segment in the card's memory: the sections of its file as they are, but for document numbers, which are unpacked.

A posting takes its codes' bytes, 4 for its document's number (packed: 1 to 2), and where they are stored 2 for an int8
scale and 1 for its weight. Nothing on disk is changed or written.
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
from citadel.search.gpu.host_lists import Cold, Columns, choose_cold, staging_room
from citadel.search.gpu.skip_table import Ranges, make_skips, skip_rows

CHUNK = 1 << 22  # postings or documents copied at a time
TABLED = 1 << 22  # keys below it are looked up in a table
TYPES = {"fp16": torch.float16, "int8": torch.int8, "pq2": torch.uint8, "pq1": torch.uint8}


@dataclass(frozen=True)
class Rows:
    """Coded vectors on the card."""

    codec: str
    codes: Tensor  # [P, width]
    scales: Tensor | None  # [P], int8 only

    @property
    def bytes(self) -> int:
        """What they take."""
        return sum(part.numel() * part.element_size() for part in (self.codes, self.scales) if part is not None)


@dataclass(frozen=True)
class Lists:
    """The inverted lists of one segment: list i is `starts[i]` … `starts[i] + sizes[i]` of the postings."""

    keys: NDArray[np.uint32]  # [K], on the host, where a query's keys are looked up
    starts: NDArray[np.int64]  # [K]
    sizes: NDArray[np.int64]  # [K]
    scales: NDArray[np.float32]  # [K]: pq's scale of each key
    documents: Tensor  # [P], int32
    rows: Rows
    weights: Tensor | None  # [P], uint8
    skip_rows: NDArray[np.int64]  # [K]: a list's row of skips, -1 for one too short to have them
    skips: Tensor  # [rows, R + 1]: where each range of documents begins in the list
    cold: Cold | None = None  # the lists that are not on the card, whose starts here mean nothing

    @property
    def bytes(self) -> int:
        """What the postings and their skips take on the card."""
        weights = 0 if self.weights is None else self.weights.numel()
        return self.documents.numel() * 4 + self.rows.bytes + weights + 4 * self.skips.numel()

    @property
    def columns(self) -> Columns:
        """The postings' columns on the card."""
        return Columns(self.documents, self.rows.codes, self.rows.scales, self.weights)

    @cached_property
    def halvings(self) -> int:
        """That find a place in the longest list without skips."""
        return int(self.sizes[self.skip_rows < 0].max(initial=0)).bit_length()

    @cached_property
    def by_key(self) -> NDArray[np.int64] | None:
        """The list of each key, -1 for none, as it is behind the largest; None where that would be a large table."""
        largest = int(self.keys[-1]) if len(self.keys) else -1
        if largest >= TABLED:
            return None
        found = np.full(largest + 2, -1)
        found[self.keys] = np.arange(len(self.keys))
        return found

    @cached_property
    def spans(self) -> NDArray[np.int64]:
        """Each list's first posting, the one behind its last, and its row of skips [3, K + 1]; list -1 is empty."""
        return np.append([self.starts, self.starts + self.sizes, self.skip_rows], [[0], [0], [-1]], axis=1)

    @cached_property
    def padded_scales(self) -> NDArray[np.float32]:
        """`scales`, and behind them, for list -1, 1."""
        return np.append(self.scales, np.float32(1))

    def find(self, keys: NDArray[np.uint32]) -> NDArray[np.int64]:
        """The list of each key, -1 where there is none."""
        if self.by_key is not None:
            return self.by_key.take(keys, mode="clip")
        place = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
        return np.where(self.keys[place] == keys, place, -1)


@dataclass(frozen=True)
class Target:
    """Where columns go: so many rows on a device, with room behind them; pinned, where they stay on the host."""

    device: torch.device
    count: int
    room: int = 0
    pinned: bool = False

    def fill(self, dtype: torch.dtype, width: tuple[int, ...], parts: Iterator[NDArray[Any]]) -> Tensor:
        """Arrays, one after the other, as one tensor; they pass through one small pinned buffer."""
        whole = torch.empty((self.count + self.room, *width), dtype=dtype, device=self.device, pin_memory=self.pinned)
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
class Part:
    """Documents first … stop − 1 of a segment."""

    segment: Segment
    first: int
    stop: int

    @property
    def whole(self) -> bool:
        """Whether these are all."""
        return self.stop - self.first == self.segment.documents

    def documents(self) -> Iterator[NDArray[np.int64]]:
        """The document numbers of all postings of the segment, some lists at a time."""
        for first, stop in list_groups(np.diff(self.segment.list_starts), CHUNK):
            yield self.segment.document_numbers(first, stop)

    def kept(self) -> NDArray[np.bool_] | None:
        """Which postings are of these documents [P]; None for all."""
        if self.whole:
            return None
        parts = [(numbers >= self.first) & (numbers < self.stop) for numbers in self.documents()]
        return np.concatenate([np.zeros(0, bool), *parts])


def load_lists(
    part: Part, book: Codebook | None, device: torch.device, width: int, budget: int | None = None
) -> Lists | None:
    """The lists of a segment's part, copied from its mapped file; None where it has none.

    Beyond a budget in bytes the least used ones wait in the machine's memory."""
    segment, meta = part.segment, part.segment.meta
    if meta.kind == "none":
        return None
    keys, kept = segment.keys.copy(), part.kept()
    sizes = np.diff(_starts(segment.list_starts, kept))
    codec = "fp16" if meta.kind == "sparse" else meta.codec
    scales = book.scales_for(keys) if book is not None and codec.startswith("pq") else np.ones(len(keys), np.float32)
    rows, ranges = skip_rows(sizes), Ranges(-(-(part.stop - part.first) // width), width)
    if budget is not None:
        budget -= 4 * (int(rows.max(initial=-1)) + 1) * (ranges.count + 1)
    cold = None if budget is None else choose_cold(sizes, posting_bytes(segment), budget)
    rest = None
    if cold is None:
        columns, starts = _columns(part, codec, kept, device, 0), _starts(segment.list_starts, kept)[:-1]
        parts = [(columns.documents, sizes)]
    else:
        chosen = np.repeat(cold, np.diff(segment.list_starts))
        everything = np.ones(len(chosen), bool) if kept is None else kept
        room = staging_room(np.sort(sizes[cold])[::-1])
        waiting = _columns(part, codec, everything & chosen, torch.device("cpu"), 0, pinned=device.type == "cuda")
        columns = _columns(part, codec, everything & ~chosen, device, room)
        starts, cold_starts = (_starts(segment.list_starts, everything & those)[:-1] for those in (~chosen, chosen))
        rest = Cold(np.where(cold, cold_starts, -1), waiting, len(columns.documents) - room, room)
        parts = [(columns.documents, np.where(cold, 0, sizes)), (waiting.documents, np.where(cold, sizes, 0))]
    skips = make_skips(rows, ranges, device, parts)
    coded = Rows(codec, columns.codes, columns.scales)
    return Lists(keys, starts, sizes, scales, columns.documents, coded, columns.weights, rows, skips, rest)


def _starts(starts: NDArray[np.int64], kept: NDArray[np.bool_] | None) -> NDArray[np.int64]:
    """Where the lists begin once only the kept postings are there [K + 1]."""
    return starts.copy() if kept is None else np.concatenate([[0], np.cumsum(kept)]).astype(np.int64)[starts]


def posting_bytes(segment: Segment) -> int:
    """Bytes that a posting takes on the card."""
    meta = segment.meta
    vector = 2 if meta.kind == "sparse" else meta.code_width * TYPES[meta.codec].itemsize
    scale = 2 if meta.kind != "sparse" and meta.codec == "int8" else 0
    return 4 + vector + scale + ("WEIGHTS" in segment.file)


def _columns(
    part: Part, codec: str, kept: NDArray[np.bool_] | None, device: torch.device, room: int, pinned: bool = False
) -> Columns:
    """The columns of the kept postings, with room for more behind them."""
    segment = part.segment
    count = segment.meta.postings if kept is None else int(kept.sum())
    target = Target(device, count, room, pinned)
    width = 1 if segment.meta.kind == "sparse" else segment.meta.code_width
    numbers = ((some - part.first).astype(np.int32) for some in _chosen(part.documents(), kept))

    def column(name: str, kind: Any, dtype: torch.dtype) -> Tensor:
        parts = (segment.file[name].array(kind, start, stop) for start, stop in pieces(segment.meta.postings))
        return target.fill(dtype, (), _chosen(parts, kept))

    return Columns(
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


def load_semantic(parts: Sequence[Part], device: torch.device) -> Rows | None:
    """The semantic vectors of all parts as one table [N, s]."""
    if not parts or not parts[0].segment.meta.semantic_dimension:
        return None
    meta, total = parts[0].segment.meta, sum(part.stop - part.first for part in parts)
    cut = [
        (part.segment, part.first + start, part.first + stop)
        for part in parts
        for start, stop in pieces(part.stop - part.first)
    ]
    target = Target(device, total)
    found = (segment.semantic(start, stop).codes for segment, start, stop in cut)
    codes = target.fill(TYPES[meta.semantic_codec], (meta.semantic_dimension,), found)
    if meta.semantic_codec != "int8":
        return Rows(meta.semantic_codec, codes, None)
    scales = (segment.file["SEMANTIC_SCALES"].array(np.float16, start, stop) for segment, start, stop in cut)
    return Rows("int8", codes, target.fill(torch.float16, (), scales))


def pieces(count: int) -> Iterator[tuple[int, int]]:
    """0 … count in pieces of CHUNK.

    >>> list(pieces(3))
    [(0, 3)]
    """
    return ((start, min(start + CHUNK, count)) for start in range(0, count, CHUNK))
