"""Centroids of a segment's semantic vectors on the device, with the documents nearest to each."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from citadel.index.centroids import read_probe
from citadel.search.gpu.lists import SegmentPart


@dataclass(frozen=True)
class DeviceProbe:
    """Centroids and their groups of documents."""

    centroids: Tensor  # [C, s]
    starts: Tensor  # [C + 1]
    documents: Tensor  # [N], numbers in the whole index
    longest: int  # size of the largest group

    def groups_needed(self, wanted: int, lists: int) -> int:
        """Number of groups that hold `wanted` documents however small they are; at least `lists`."""
        smallest = torch.cumsum(torch.sort(self.starts[1:] - self.starts[:-1]).values, 0)
        needed = int(torch.searchsorted(smallest, wanted)) + 1
        return min(max(needed, lists), len(smallest))

    def capacity(self, wanted: int, lists: int) -> int:
        """Upper bound on the documents in the nearest groups: `wanted` documents, at least `lists` groups."""
        return min(max(wanted + self.longest, lists * self.longest), len(self.documents))


def load_probe(part: SegmentPart, base: int, device: torch.device) -> DeviceProbe:
    """Load a segment's probe structure; without one, all of its documents are one group."""
    segment, size = part.segment, part.stop - part.first
    stored = read_probe(segment.file, segment.passages) if "PROBE_CENTROIDS" in segment.file else None
    if stored is None:
        everything = torch.arange(base, base + size, device=device)
        ends = torch.tensor([0, size], device=device)
        return DeviceProbe(
            torch.zeros(1, segment.meta.semantic_dimension, device=device), ends, everything, size
        )
    documents, starts = stored.documents.astype(np.int64), stored.starts.astype(np.int64)
    kept = (documents >= part.first) & (documents < part.stop)
    starts = np.concatenate([[0], np.cumsum(kept)])[starts]
    numbers = documents[kept] - part.first + base
    table, ends, members = (torch.tensor(array).to(device) for array in (stored.centroids, starts, numbers))
    return DeviceProbe(table, ends, members, int(np.diff(starts).max()))
