"""Unpack document numbers in numpy: blocks of 128 postings, deltas of as many bits as the block needs.

Writing and search use native code; this version is their reference in tests.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

POSTINGS_PER_BLOCK = 128
WINDOW = 1 << 16  # rows of a mapped array read at a time
_OFFSET = np.uint64((1 << 56) - 1)


def blocks_of(postings: NDArray[np.integer] | int) -> NDArray[np.integer] | int:
    """The number of blocks of a list with this many postings.

    >>> blocks_of(129)
    2
    """
    return (postings + POSTINGS_PER_BLOCK - 1) // POSTINGS_PER_BLOCK


def block_sizes(list_lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Postings in each block of lists of these lengths.

    >>> block_sizes(np.array([130, 1])).tolist()
    [128, 2, 1]
    """
    counts = np.asarray(blocks_of(list_lengths), np.int64)
    sizes = np.full(int(counts.sum()), POSTINGS_PER_BLOCK, np.int64)
    filled = list_lengths > 0
    sizes[np.cumsum(counts)[filled] - 1] = (list_lengths[filled] - 1) % POSTINGS_PER_BLOCK + 1
    return sizes


def unpack_values(
    offsets: NDArray[np.uint64], packed: NDArray[np.uint8], sizes: NDArray[np.int64], skip: int = 0
) -> NDArray[np.int64]:
    """Values of blocks [b] as one array [sum of sizes]; the first `skip` of each are not stored and 0."""
    bits = np.repeat((offsets >> np.uint64(56)).astype(np.int64), sizes)  # [P]
    starts = np.repeat((offsets & _OFFSET).astype(np.int64) * 8, sizes)  # [P]
    positions = ranges(sizes) - skip  # [P]
    stored = positions >= 0
    position = starts + positions * bits
    octet = np.where(stored, position >> 3, 0)
    if len(octet) and int(octet.max()) + 8 > len(packed):
        raise ValueError("packed values lie outside the section")
    words: NDArray[np.uint64] = np.ndarray((max(len(packed) - 7, 0),), "<u8", packed, strides=(1,))
    mask = (np.uint64(1) << bits.astype(np.uint64)) - np.uint64(1)
    values = (words[octet] >> (position & 7).astype(np.uint64)) & mask
    return np.where(stored, values, 0).astype(np.int64)


def unpack_documents(
    first: NDArray[np.uint32],
    offsets: NDArray[np.uint64],
    packed: NDArray[np.uint8],
    sizes: NDArray[np.int64],
) -> NDArray[np.int64]:
    """The document numbers of blocks: first [b], offsets [b], sizes [b] → [sum of sizes]."""
    running = np.cumsum(unpack_values(offsets, packed, sizes, skip=1))
    starts = np.cumsum(sizes) - sizes
    documents: NDArray[np.int64] = running + np.repeat(first.astype(np.int64) - running[starts], sizes)
    return documents


def is_first_of_pair(lists: NDArray[Any], documents: NDArray[Any]) -> NDArray[np.bool_]:
    """Which postings, sorted by list and document, differ from the one before.

    >>> is_first_of_pair(np.array([1, 1, 2]), np.array([7, 7, 7])).tolist()
    [True, False, True]
    """
    first = np.ones(len(lists), np.bool_)
    first[1:] = (lists[1:] != lists[:-1]) | (documents[1:] != documents[:-1])
    return first


def ranges(sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """0, 1, …, size − 1 for each size, concatenated.

    >>> ranges(np.array([2, 3])).tolist()
    [0, 1, 0, 1, 2]
    """
    total = int(sizes.sum())
    positions: NDArray[np.int64] = np.arange(total) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return positions


def list_groups(lengths: NDArray[np.int64], chunk: int) -> Iterator[tuple[int, int]]:
    """Runs of lists (first, stop) of at most `chunk` postings; a longer list is a run by itself.

    >>> list(list_groups(np.array([2, 2, 9, 1]), 4))
    [(0, 2), (2, 3), (3, 4)]
    """
    ends, first = np.cumsum(lengths), 0
    while first < len(lengths):
        before = ends[first - 1] if first else 0
        stop = max(int(np.searchsorted(ends, before + chunk, side="right")), first + 1)
        yield first, stop
        first = stop


def windows(values: NDArray[Any], size: int = WINDOW) -> Iterator[NDArray[Any]]:
    """Split an array into parts of `size` rows, to bound the memory for work on a mapped array.

    >>> [part.tolist() for part in windows(np.arange(5), 2)]
    [[0, 1], [2, 3], [4]]
    """
    for start in range(0, len(values), size):
        yield values[start : start + size]


def rises(values: NDArray[Any], limit: int | None = None) -> bool:
    """Whether values never decrease, nor increase by more than `limit` per step.

    >>> rises(np.array([0, 2, 2])), rises(np.array([3, 1])), rises(np.array([0, 9]), limit=5)
    (True, False, False)
    """
    for start in range(0, len(values) - 1, WINDOW):
        part = values[start : start + WINDOW + 1]
        if not (part[1:] >= part[:-1]).all() or (limit is not None and (part[1:] - part[:-1] > limit).any()):
            return False
    return True
