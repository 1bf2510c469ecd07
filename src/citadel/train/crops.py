"""Crop sentences from passages as additional queries."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

MIN_TOKENS = 5  # per sentence; shorter ones are list numbers and abbreviations


def bounds(row: NDArray[Any], ends: NDArray[Any]) -> list[tuple[int, int]]:
    """Start and end of each sentence in a passage, without [CLS] and [SEP]; the last may be cut off.

    >>> ids = np.array([101, 5, 6, 7, 8, 9, 3, 5, 3, 6, 7, 8, 9, 5, 102])
    >>> [ids[low:high].tolist() for low, high in bounds(ids, ends=np.array([3]))]
    [[5, 6, 7, 8, 9, 3], [6, 7, 8, 9, 5]]
    """
    stops = np.flatnonzero(np.isin(row[1:-1], ends)) + 2
    edges = [1, *stops.tolist(), len(row) - 1]
    return [(low, high) for low, high in pairwise(edges) if high - low >= MIN_TOKENS]


def crop(row: NDArray[Any], ends: NDArray[Any], length: int, rng: np.random.Generator) -> NDArray[Any] | None:
    """Draw one sentence as a query of at most `length` tokens; None if the passage has only one sentence.

    >>> rng = np.random.default_rng(0)
    >>> ids = np.array([101, 5, 6, 7, 8, 9, 3, 6, 7, 8, 9, 5, 102])
    >>> crop(ids, np.array([3]), 5, rng).tolist() in ([101, 5, 6, 7, 102], [101, 6, 7, 8, 102])
    True
    """
    sentences = bounds(row, ends)
    if len(sentences) < 2:
        return None
    low, high = sentences[int(rng.integers(len(sentences)))]
    return np.concatenate([row[:1], row[low : min(high, low + length - 2)], row[-1:]])
