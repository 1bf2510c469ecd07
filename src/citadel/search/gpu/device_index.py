"""An index in the memory of one device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from citadel.index.snapshot import Snapshot
from citadel.search.gpu.lists import CodedRows, DeviceLists, SegmentPart, load_lists, load_semantic
from citadel.search.gpu.pq_tables import load_centroids
from citadel.search.gpu.probes import DeviceProbe, load_probe

RANGES = 4096  # programs per query: about as many as a GPU runs at once
MAX_WIDTH, MIN_WIDTH = 1 << 11, 1 << 8  # documents per range


@dataclass(frozen=True)
class DeviceIndex:
    """The sections of a snapshot that a search reads, on one device."""

    device: torch.device
    documents: int
    first: int  # number of its first document in the whole index
    bases: tuple[int, ...]  # of the segments
    sizes: tuple[int, ...]  # documents of each segment
    lists: tuple[DeviceLists | None, ...]
    semantic: CodedRows | None
    probes: tuple[DeviceProbe, ...]
    alive: Tensor | None  # [N], 1 where a document is not deleted; None without deletions
    width: int  # documents per range
    borders: Tensor  # [R], the first document of each range
    spans: Tensor  # [R], documents of each range
    centroids: Tensor | None = None  # [S, sub, 256], of pq

    @property
    def bytes(self) -> int:
        """Size of lists and semantic vectors."""
        return sum(own.bytes for own in self.lists if own) + (self.semantic.bytes if self.semantic else 0)

    def ranges(self, segment: int) -> int:
        """Number of ranges of a segment."""
        return -(-self.sizes[segment] // self.width)


def range_width(documents: int) -> int:
    """Documents per range: a power of two that gives about RANGES ranges.

    >>> range_width(8_841_823), range_width(100)
    (2048, 256)
    """
    return min(max(1 << (documents // RANGES).bit_length(), MIN_WIDTH), MAX_WIDTH)


def make_ranges(
    bases: list[int], sizes: list[int], width: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    """First document and size of each range; no range holds documents of two segments."""
    borders = [np.arange(base, base + size, width) for base, size in zip(bases, sizes, strict=True)]
    spans = [np.minimum(width, size - np.arange(0, size, width)) for size in sizes]
    none = np.zeros(0, np.int64)
    return (
        torch.from_numpy(np.concatenate([none, *borders])).to(device),
        torch.from_numpy(np.concatenate([none, *spans])).to(device),
    )


def shard_borders(documents: int, shards: int) -> list[int]:
    """Split documents into equal ranges, one per device.

    >>> shard_borders(10, 2)
    [0, 5, 10]
    """
    return [documents * shard // shards for shard in range(shards + 1)]


def load_device_index(
    snapshot: Snapshot,
    device: torch.device,
    width: int = 0,
    shard: Sequence[int] = (),
    memory: int | None = None,
) -> DeviceIndex:
    """Copy a snapshot to a device, or only the documents of a shard, first … stop − 1.

    Where `memory` bytes are too few for all lists, the least used ones stay in host memory."""
    first, stop = shard or (0, int(snapshot.passage_bases[-1]))
    parts = _parts(snapshot, first, stop)
    sizes = [part.stop - part.first for part in parts]
    bases = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)[:-1].tolist()
    width = width or range_width(sum(sizes))
    semantic = load_semantic(parts, device)
    alive = [snapshot.alive(part.segment)[part.first : part.stop] for part in parts]

    def budget(part: SegmentPart) -> int | None:
        """Bytes for a segment's lists, by its share of the postings."""
        if memory is None:
            return None
        postings = max(sum(one.segment.meta.postings for one in parts), 1)
        left = max(memory - (semantic.bytes if semantic else 0), 0)
        return left * part.segment.meta.postings // postings

    mask = torch.from_numpy(np.concatenate([np.zeros(0, bool), *alive]).astype(np.uint8))
    return DeviceIndex(
        device,
        sum(sizes),
        first,
        tuple(bases),
        tuple(sizes),
        tuple(load_lists(part, snapshot.codebook, device, width, budget(part)) for part in parts),
        semantic,
        tuple(load_probe(part, base, device) for part, base in zip(parts, bases, strict=True))
        if semantic
        else (),
        None if bool(mask.all()) else mask.to(device),
        width,
        *make_ranges(bases, sizes, width, device),
        load_centroids(device, snapshot.codebook),
    )


def _parts(snapshot: Snapshot, first: int, stop: int) -> list[SegmentPart]:
    """The segments, cut to documents first … stop − 1."""
    parts = []
    for segment, base in zip(snapshot.segments, snapshot.passage_bases[:-1].tolist(), strict=True):
        start, end = max(first - base, 0), min(stop - base, segment.passages)
        if start < end:
            parts.append(SegmentPart(segment, start, end))
    return parts
