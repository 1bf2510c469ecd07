"""Lists that do not fit on the GPU: kept in pinned host memory and copied for the queries that read them.

The lists expected to be read most often stay on the device. Without counts these are the longest, because the
keys of queries are distributed like those of documents. A posting of a host list is read over PCIe at about
50 GB/s; device memory has about 4,000 GB/s.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from citadel.errors import ResourceError

STAGED_LISTS = 32  # of the longest host lists fit into the staging area together


@dataclass(frozen=True)
class PostingColumns:
    """Columns of postings, on the host or on the device."""

    documents: Tensor  # [P]
    codes: Tensor  # [P, width]
    scales: Tensor | None  # [P]
    weights: Tensor | None  # [P]

    def copy(self, to: slice, source: PostingColumns, rows: slice) -> None:
        """Copy rows of other columns into these, without waiting."""
        pairs = ((self.documents, source.documents), (self.codes, source.codes))
        for target, origin in (*pairs, (self.scales, source.scales), (self.weights, source.weights)):
            if target is not None and origin is not None:
                target[to].copy_(origin[rows], non_blocking=True)


@dataclass(frozen=True)
class HostLists:
    """The lists of one segment that are kept on the host."""

    starts: NDArray[np.int64]  # [K], in `columns`; -1 for a list on the device
    columns: PostingColumns
    first: int  # first posting of the staging area on the device
    capacity: int  # postings of the staging area


def choose_host_lists(
    sizes: NDArray[np.int64], bytes_per_posting: int, budget: int, uses: NDArray[np.int64] | None = None
) -> NDArray[np.bool_] | None:
    """Which lists to keep on the host so that the others and the staging area take at most `budget` bytes.

    None if all lists fit.

    >>> choose_host_lists(np.array([5, 1, 9]), 10, 1000) is None
    True
    >>> on_host = choose_host_lists(np.array([90] + [1] * 100), 1, 150)  # 90 + 28, 32 staged
    >>> bool(on_host[0]), int(on_host.sum())
    (False, 72)
    """
    if int(sizes.sum()) * bytes_per_posting <= budget:
        return None
    order = np.argsort(-(sizes if uses is None else uses), kind="stable")
    postings = budget // bytes_per_posting
    ends = np.cumsum(sizes[order])
    on_host = np.ones(len(sizes), bool)
    max_kept = int(np.searchsorted(ends, postings, side="right"))
    for kept in range(max_kept, -1, -1):  # until the rest can be staged
        rest = np.sort(sizes[order[kept:]])[::-1]
        if (ends[kept - 1] if kept else 0) + staging_postings(rest) <= postings:
            on_host[order[:kept]] = False
            return on_host
    needed = staging_postings(np.sort(sizes)[::-1]) * bytes_per_posting
    raise ResourceError(
        f"{budget} bytes of GPU memory are too few for the lists of this index: give at least {needed} with "
        "--gpu-memory, or search with --device cpu"
    )


def staging_postings(sizes: NDArray[np.int64]) -> int:
    """Capacity of the staging area for host lists of these sizes, longest first."""
    return int(sizes[:STAGED_LISTS].sum())


def assign_staging(
    host: HostLists | None, chosen: NDArray[np.int64], sizes: NDArray[np.int64]
) -> dict[int, int]:
    """The first device posting of each chosen list that is kept on the host."""
    if host is None:
        return {}
    starts, at = {}, host.first
    for number in np.unique(chosen[chosen >= 0]).tolist():
        if host.starts[number] >= 0:
            starts[number] = at
            at += int(sizes[number])
    if at > host.first + host.capacity:
        raise ResourceError(
            "the rare lists of this query do not fit into GPU memory together: use fewer words, "
            "raise --gpu-memory, or search with --device cpu"
        )
    return starts


def staged_size(host: HostLists | None, chosen: Sequence[NDArray[np.int64]], sizes: NDArray[np.int64]) -> int:
    """Postings of the chosen lists that are kept on the host."""
    if host is None:
        return 0
    lists = np.unique(np.concatenate([np.zeros(0, np.int64), *chosen]))
    lists = lists[lists >= 0]
    return int(sizes[lists][host.starts[lists] >= 0].sum())
