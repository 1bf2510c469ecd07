"""A segment in the card's memory: the sections of its file as they are, but for document numbers, which are unpacked.

A posting takes its codes' bytes, 4 for its document's number (packed: 1 to 2), and where they are stored 2 for an int8
scale and 1 for its weight. Nothing on disk is changed or written.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from citadel.index.codebook import Codebook
from citadel.index.packing import list_groups
from citadel.index.probe import read_probe
from citadel.index.segment import Segment

CHUNK = 1 << 22  # postings or documents copied at a time
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

    @property
    def bytes(self) -> int:
        """What the postings take on the card."""
        weights = 0 if self.weights is None else self.weights.numel()
        return self.documents.numel() * 4 + self.rows.bytes + weights

    def find(self, keys: NDArray[np.uint32]) -> NDArray[np.int64]:
        """The list of each key, -1 where there is none."""
        if not len(self.keys):
            return np.full(len(keys), -1, np.int64)
        place = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
        return np.where(self.keys[place] == keys, place, -1)


@dataclass(frozen=True)
class Probe:
    """Centroids of the semantic vectors and the documents nearest to each."""

    centroids: Tensor  # [C, s]
    starts: Tensor  # [C + 1]
    documents: Tensor  # [N], numbers in the whole index
    longest: int  # the largest group

    def capacity(self, wanted: int, lists: int) -> int:
        """The most documents that the groups which hold `wanted` of them, at least `lists` groups, can have."""
        return min(max(wanted + self.longest, lists * self.longest), len(self.documents))


def copy_in(device: torch.device, dtype: torch.dtype, shape: tuple[int, ...], parts: Iterator[NDArray[Any]]) -> Tensor:
    """Arrays, one after the other, as one tensor on the card; they pass through one small pinned buffer."""
    whole = torch.empty(shape, dtype=dtype, device=device)
    flat, done = whole.view(-1), 0
    staging = torch.empty(0, dtype=dtype)
    for part in parts:
        if part.size > len(staging):
            staging = torch.empty(part.size, dtype=dtype, pin_memory=device.type == "cuda")
        staging.numpy()[: part.size] = part.reshape(-1)
        flat[done : done + part.size].copy_(staging[: part.size])
        done += part.size
    assert done == len(flat)
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


def load_lists(part: Part, book: Codebook | None, device: torch.device) -> Lists | None:
    """The lists of a segment's part, copied from its mapped file; None where it has none."""
    segment, meta = part.segment, part.segment.meta
    if meta.kind == "none":
        return None
    keys, kept = segment.keys.copy(), part.kept()
    starts = segment.list_starts
    starts = starts.copy() if kept is None else np.concatenate([[0], np.cumsum(kept)]).astype(np.int64)[starts]
    codec, width = ("fp16", 1) if meta.kind == "sparse" else (meta.codec, meta.code_width)
    scales = book.scales_for(keys) if book is not None and codec.startswith("pq") else np.ones(len(keys), np.float32)
    numbers = (documents[(documents >= part.first) & (documents < part.stop)] for documents in part.documents())
    return Lists(
        keys,
        starts[:-1],
        np.diff(starts),
        scales,
        copy_in(device, torch.int32, (int(starts[-1]),), ((some - part.first).astype(np.int32) for some in numbers)),
        _rows(segment, codec, width, kept, device),
        _column(segment, "WEIGHTS", np.uint8, torch.uint8, kept, device) if "WEIGHTS" in segment.file else None,
    )


def _rows(segment: Segment, codec: str, width: int, kept: NDArray[np.bool_] | None, device: torch.device) -> Rows:
    count = segment.meta.postings if kept is None else int(kept.sum())
    codes = copy_in(device, TYPES[codec], (count, width), _chosen(_codes(segment, width), kept))
    scaled = codec == "int8"
    return Rows(codec, codes, _column(segment, "SCALES", np.float16, torch.float16, kept, device) if scaled else None)


def _codes(segment: Segment, width: int) -> Iterator[NDArray[Any]]:
    for start, stop in pieces(segment.meta.postings):
        if segment.meta.kind == "sparse":
            yield segment.file["VALUES"].array(np.float16, start, stop).reshape(-1, width)
        else:
            yield segment.encoded(start, stop).codes


def _column(
    segment: Segment, name: str, kind: Any, dtype: torch.dtype, kept: NDArray[np.bool_] | None, device: torch.device
) -> Tensor:
    """A section of one number a posting."""
    count = segment.meta.postings if kept is None else int(kept.sum())
    parts = (segment.file[name].array(kind, start, stop) for start, stop in pieces(segment.meta.postings))
    return copy_in(device, dtype, (count,), _chosen(parts, kept))


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
    shape = (total, meta.semantic_dimension)
    found = (segment.semantic(start, stop).codes for segment, start, stop in cut)
    codes = copy_in(device, TYPES[meta.semantic_codec], shape, found)
    if meta.semantic_codec != "int8":
        return Rows(meta.semantic_codec, codes, None)
    scales = (segment.file["SEMANTIC_SCALES"].array(np.float16, start, stop) for segment, start, stop in cut)
    return Rows("int8", codes, copy_in(device, torch.float16, (total,), scales))


def load_probe(part: Part, base: int, device: torch.device) -> Probe:
    """A segment's probe structure; without one, all of its documents are one group."""
    segment, size = part.segment, part.stop - part.first
    found = read_probe(segment.file, segment.documents) if "PROBE_CENTROIDS" in segment.file else None
    if found is None:
        everything = torch.arange(base, base + size, device=device)
        ends = torch.tensor([0, size], device=device)
        return Probe(torch.zeros(1, segment.meta.semantic_dimension, device=device), ends, everything, size)
    documents, starts = found.documents.astype(np.int64), found.starts.astype(np.int64)
    kept = (documents >= part.first) & (documents < part.stop)
    starts = np.concatenate([[0], np.cumsum(kept)])[starts]
    numbers = documents[kept] - part.first + base
    table, ends, members = (torch.tensor(array).to(device) for array in (found.centroids, starts, numbers))
    return Probe(table, ends, members, int(np.diff(starts).max()))


def pieces(count: int) -> Iterator[tuple[int, int]]:
    """0 … count in pieces of CHUNK.

    >>> list(pieces(3))
    [(0, 3)]
    """
    return ((start, min(start + CHUNK, count)) for start in range(0, count, CHUNK))
