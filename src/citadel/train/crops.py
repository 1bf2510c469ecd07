"""Sentences cropped from a passage as further queries for it."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

SHORTEST = 5  # tokens; shorter ones are numbers of lists and abbreviations


def sentences(row: NDArray[Any], ends: NDArray[Any]) -> list[NDArray[Any]]:
    """The sentences of a passage's tokens, [CLS] and [SEP] left out; the last may lack its end.

    >>> ids = np.array([101, 5, 6, 7, 8, 9, 3, 5, 3, 6, 7, 8, 9, 5, 102])
    >>> [each.tolist() for each in sentences(ids, ends=np.array([3]))]
    [[5, 6, 7, 8, 9, 3], [6, 7, 8, 9, 5]]
    """
    inner = row[1:-1]
    stops = np.flatnonzero(np.isin(inner, ends)) + 1
    return [part for part in np.split(inner, stops) if len(part) >= SHORTEST]


def crop(row: NDArray[Any], ends: NDArray[Any], length: int, rng: np.random.Generator) -> NDArray[Any] | None:
    """One sentence of the passage as a query of at most `length` tokens; None where the passage has only one.

    >>> rng = np.random.default_rng(0)
    >>> ids = np.array([101, 5, 6, 7, 8, 9, 3, 6, 7, 8, 9, 5, 102])
    >>> crop(ids, np.array([3]), 5, rng).tolist() in ([101, 5, 6, 7, 102], [101, 6, 7, 8, 102])
    True
    """
    found = sentences(row, ends)
    if len(found) < 2:
        return None
    chosen = found[int(rng.integers(len(found)))][: length - 2]
    return np.concatenate([row[:1], chosen, row[-1:]])
