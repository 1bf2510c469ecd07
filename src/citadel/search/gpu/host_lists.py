"""Lists that have no room on the card: they wait in pinned memory and are copied for the queries that read them.

Which lists those are is decided by how often queries are expected to read them. Without counts the longest lists are
taken to be the most used, for query keys are drawn from the same language as documents' keys. A posting of a waiting
list costs its bytes over PCIe, some 50 GB/s, where the card itself reads 4,000.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from citadel.errors import ResourceError

STAGED = 32  # of the longest waiting lists, which fit into the card's staging room together


@dataclass(frozen=True)
class Columns:
    """The postings' columns, here or on the card."""

    documents: Tensor  # [P]
    codes: Tensor  # [P, width]
    scales: Tensor | None  # [P]
    weights: Tensor | None  # [P]

    def copy(self, at: slice, source: Columns, there: slice) -> None:
        """Put some postings of another's columns into these, without waiting."""
        pairs = ((self.documents, source.documents), (self.codes, source.codes))
        for target, origin in (*pairs, (self.scales, source.scales), (self.weights, source.weights)):
            if target is not None and origin is not None:
                target[at].copy_(origin[there], non_blocking=True)


@dataclass(frozen=True)
class Cold:
    """The waiting lists of one segment; those of the card begin at `starts` −1."""

    starts: NDArray[np.int64]  # [K], in `columns`; -1 for a list that is on the card
    columns: Columns
    first: int  # where the staging room begins on the card
    room: int  # postings it has


def choose_cold(
    sizes: NDArray[np.int64], bytes_a_posting: int, budget: int, uses: NDArray[np.int64] | None = None
) -> NDArray[np.bool_] | None:
    """Which lists wait so that the others and the staging room take at most `budget` bytes; None where all fit.

    >>> choose_cold(np.array([5, 1, 9]), 10, 1000) is None
    True
    >>> cold = choose_cold(np.array([90] + [1] * 100), 1, 150)  # 90, 28 and room for 32 of the 72 others
    >>> bool(cold[0]), int(cold.sum())
    (False, 72)
    """
    if int(sizes.sum()) * bytes_a_posting <= budget:
        return None
    order = np.argsort(-(sizes if uses is None else uses), kind="stable")
    room = budget // bytes_a_posting
    ends = np.cumsum(sizes[order])
    cold = np.ones(len(sizes), bool)
    for hot in range(int(np.searchsorted(ends, room, side="right")), -1, -1):  # fewer, until the rest can be staged
        waiting = np.sort(sizes[order[hot:]])[::-1]
        if (ends[hot - 1] if hot else 0) + staging_room(waiting) <= room:
            cold[order[:hot]] = False
            return cold
    needed = staging_room(np.sort(sizes)[::-1]) * bytes_a_posting
    raise ResourceError(
        f"{budget} bytes of card memory are too few for this index's lists: give at least {needed} with --card-memory, "
        "or search with --device cpu"
    )


def staging_room(sizes: NDArray[np.int64]) -> int:
    """Postings of the longest waiting lists, longest first, that a query may need together."""
    return int(sizes[:STAGED].sum())


def stage(cold: Cold | None, chosen: NDArray[np.int64], sizes: NDArray[np.int64]) -> dict[int, int]:
    """Where on the card each waiting list among the chosen ones will stand."""
    if cold is None:
        return {}
    found, at = {}, cold.first
    for number in np.unique(chosen[chosen >= 0]).tolist():
        if cold.starts[number] >= 0:
            found[number] = at
            at += int(sizes[number])
    if at > cold.first + cold.room:
        raise ResourceError(
            "the query reads more rare lists than the card has room for: ask with fewer words, raise --card-memory, "
            "or search with --device cpu"
        )
    return found


def staged_size(cold: Cold | None, chosen: Sequence[NDArray[np.int64]], sizes: NDArray[np.int64]) -> int:
    """Postings that these queries' waiting lists have together."""
    if cold is None:
        return 0
    lists = np.unique(np.concatenate([np.zeros(0, np.int64), *chosen]))
    lists = lists[lists >= 0]
    return int(sizes[lists][cold.starts[lists] >= 0].sum())
