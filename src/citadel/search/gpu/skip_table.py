"""Where each range of documents begins in the long lists, so that a search need not look for it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from citadel.index.packing import list_groups

LONG = 512  # postings from which on a list has skips: a shorter one is searched in nine steps
CHUNK = 1 << 22  # postings looked at together


@dataclass(frozen=True)
class Ranges:
    """So many ranges of so many documents."""

    count: int
    width: int


def skip_rows(sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """The row of each long list, -1 for the others.

    >>> skip_rows(np.array([9, 512, 3, 700])).tolist()
    [-1, 0, -1, 1]
    """
    long = sizes >= LONG
    return np.where(long, np.cumsum(long) - 1, -1)


def make_skips(
    rows: NDArray[np.int64], ranges: Ranges, device: torch.device, parts: list[tuple[Tensor, NDArray[np.int64]]]
) -> Tensor:
    """One row a long list [rows, R + 1]; a part: some lists' documents, and every list's size there, 0 for none."""
    found = torch.zeros(max(int(rows.max(initial=-1)) + 1, 1), ranges.count + 1, dtype=torch.int32, device=device)
    for documents, sizes in parts:
        for own, values in _part_skips(documents, sizes, rows, ranges):
            found[torch.from_numpy(own).to(device)] = values.to(device)
    return found


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
        places = torch.searchsorted(joined, own[:, None] * span + borders)  # [lists, R + 1]
        begun = torch.from_numpy(starts[first + long] - starts[first]).to(documents.device)
        yield rows[first + long], (places - begun[:, None]).to(torch.int32)
