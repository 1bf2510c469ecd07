"""Skip table: where each range of documents begins in the long lists."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from citadel.index.packing import list_groups

LONG = 512  # postings; shorter lists have no skips: binary search takes nine steps
CHUNK = 1 << 22  # postings processed at a time


@dataclass(frozen=True)
class Ranges:
    """Number of ranges, and documents per range."""

    count: int
    width: int


def skip_rows(sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """The skip table row of each long list, -1 for the others.

    >>> skip_rows(np.array([9, 512, 3, 700])).tolist()
    [-1, 0, -1, 1]
    """
    long = sizes >= LONG
    return np.where(long, np.cumsum(long) - 1, -1)


def make_skips(
    rows: NDArray[np.int64],
    ranges: Ranges,
    device: torch.device,
    parts: list[tuple[Tensor, NDArray[np.int64]]],
) -> Tensor:
    """The skip table [rows, R + 1], one row per long list.

    A part is the documents of some lists with the size of every list in it, 0 for none."""
    table = torch.zeros(
        max(int(rows.max(initial=-1)) + 1, 1), ranges.count + 1, dtype=torch.int32, device=device
    )
    for documents, sizes in parts:
        for own, values in _part_skips(documents, sizes, rows, ranges):
            table[torch.from_numpy(own).to(device)] = values.to(device)
    return table


def _part_skips(
    documents: Tensor, sizes: NDArray[np.int64], rows: NDArray[np.int64], ranges: Ranges
) -> Iterator[tuple[NDArray[np.int64], Tensor]]:
    starts = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    span = (ranges.count + 1) * ranges.width
    borders = torch.arange(ranges.count + 1, device=documents.device) * ranges.width
    for first, stop in list_groups(sizes, CHUNK):
        long = np.flatnonzero((rows[first:stop] >= 0) & (sizes[first:stop] > 0))
        if not len(long):
            continue
        counts = torch.from_numpy(sizes[first:stop]).to(documents.device)
        owner = torch.repeat_interleave(torch.arange(stop - first, device=documents.device), counts)
        joined = owner * span + documents[int(starts[first]) : int(starts[stop])]
        own = torch.from_numpy(long).to(documents.device)
        positions = torch.searchsorted(joined, own[:, None] * span + borders)  # [lists, R + 1]
        offsets = torch.from_numpy(starts[first + long] - starts[first]).to(documents.device)
        yield rows[first + long], (positions - offsets[:, None]).to(torch.int32)
