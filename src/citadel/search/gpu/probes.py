"""The centroids of a segment's semantic vectors in the card's memory, and the documents nearest to each."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from citadel.index.centroids import read_probe
from citadel.search.gpu.lists import Part


@dataclass(frozen=True)
class Probe:
    """Centroids of the semantic vectors and the documents nearest to each."""

    centroids: Tensor  # [C, s]
    starts: Tensor  # [C + 1]
    documents: Tensor  # [N], numbers in the whole index
    longest: int  # the largest group

    def enough(self, wanted: int, lists: int) -> int:
        """So many groups that any of them hold `wanted` documents together, and at least `lists`."""
        smallest = torch.cumsum(torch.sort(self.starts[1:] - self.starts[:-1]).values, 0)
        needed = int(torch.searchsorted(smallest, wanted)) + 1
        return min(max(needed, lists), len(smallest))

    def capacity(self, wanted: int, lists: int) -> int:
        """The most documents that the groups which hold `wanted` of them, at least `lists` groups, can have."""
        return min(max(wanted + self.longest, lists * self.longest), len(self.documents))


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
