"""A segment in the card's memory: the sections of its file as they are, but for document numbers, which are unpacked.

A posting takes its codes' bytes, 4 for its document's number (packed: 1 to 2), and where they are stored 2 for an int8
scale and 1 for its weight. Nothing on disk is changed or written.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from citadel.index.codebook import Codebook
from citadel.index.packing import list_groups
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


def load_lists(segment: Segment, book: Codebook | None, device: torch.device) -> Lists | None:
    """The lists of a segment, copied from its mapped file; None where it has none."""
    if segment.meta.kind == "none":
        return None
    starts, keys, postings = segment.list_starts, segment.keys.copy(), segment.meta.postings
    codec, width = ("fp16", 1) if segment.meta.kind == "sparse" else (segment.meta.codec, segment.meta.code_width)
    coded = book is not None and codec.startswith("pq")
    return Lists(
        keys,
        starts[:-1].copy(),
        np.diff(starts),
        book.scales_for(keys) if coded and book is not None else np.ones(len(keys), np.float32),
        copy_in(device, torch.int32, (postings,), _documents(segment)),
        Rows(codec, copy_in(device, TYPES[codec], (postings, width), _codes(segment)), _scales(segment, device)),
        _weights(segment, device),
    )


def _documents(segment: Segment) -> Iterator[NDArray[Any]]:
    for first, stop in list_groups(np.diff(segment.list_starts), CHUNK):
        yield segment.document_numbers(first, stop).astype(np.int32)


def _codes(segment: Segment) -> Iterator[NDArray[Any]]:
    for start, stop in pieces(segment.meta.postings):
        if segment.meta.kind == "sparse":
            yield segment.file["VALUES"].array(np.float16, start, stop)
        else:
            yield segment.encoded(start, stop).codes


def _scales(segment: Segment, device: torch.device) -> Tensor | None:
    if segment.meta.kind == "sparse" or segment.meta.codec != "int8":
        return None
    parts = (segment.file["SCALES"].array(np.float16, start, stop) for start, stop in pieces(segment.meta.postings))
    return copy_in(device, torch.float16, (segment.meta.postings,), parts)


def _weights(segment: Segment, device: torch.device) -> Tensor | None:
    if "WEIGHTS" not in segment.file:
        return None
    parts = (segment.file["WEIGHTS"].array(np.uint8, start, stop) for start, stop in pieces(segment.meta.postings))
    return copy_in(device, torch.uint8, (segment.meta.postings,), parts)


def load_semantic(segments: list[Segment], device: torch.device) -> Rows | None:
    """The semantic vectors of all segments as one table [N, s]."""
    if not segments or not segments[0].meta.semantic_dimension:
        return None
    meta, total = segments[0].meta, sum(segment.documents for segment in segments)
    parts = [(segment, *piece) for segment in segments for piece in pieces(segment.documents)]
    codes = copy_in(
        device,
        TYPES[meta.semantic_codec],
        (total, meta.semantic_dimension),
        (segment.semantic(start, stop).codes for segment, start, stop in parts),
    )
    if meta.semantic_codec != "int8":
        return Rows(meta.semantic_codec, codes, None)
    names = "SEMANTIC_SCALES"
    scales = (segment.file[names].array(np.float16, start, stop) for segment, start, stop in parts)
    return Rows("int8", codes, copy_in(device, torch.float16, (total,), scales))


def load_probe(segment: Segment, base: int, device: torch.device) -> Probe:
    """A segment's probe structure; without one, all of its documents are one group."""
    if "PROBE_CENTROIDS" not in segment.file:
        everything = torch.arange(base, base + segment.documents, device=device)
        ends = torch.tensor([0, segment.documents], device=device)
        return Probe(torch.zeros(1, segment.meta.semantic_dimension, device=device), ends, everything, len(everything))
    starts = segment.file["PROBE_STARTS"].array("<i8")
    documents = segment.file["PROBE_DOCUMENTS"].array("<u4").astype(np.int64)
    if starts[0] != 0 or starts[-1] != len(documents) or (np.diff(starts) < 0).any():
        raise segment.file["PROBE_STARTS"].corrupt("the groups do not follow each other")
    if len(documents) and documents.max() >= segment.documents:
        raise segment.file["PROBE_DOCUMENTS"].corrupt("a document number is out of range")
    centroids = segment.file["PROBE_CENTROIDS"].array(np.float32).reshape(len(starts) - 1, -1)
    longest = int(np.diff(starts).max())
    table, ends, numbers = (torch.tensor(part).to(device) for part in (centroids, starts, documents + base))
    return Probe(table, ends, numbers, longest)


def pieces(count: int) -> Iterator[tuple[int, int]]:
    """0 … count in pieces of CHUNK.

    >>> list(pieces(3))
    [(0, 3)]
    """
    return ((start, min(start + CHUNK, count)) for start in range(0, count, CHUNK))
