"""Sentences cropped from a passage as further queries for it, and passages under a title, as collections have them."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

SHORTEST = 5  # tokens; shorter ones are numbers of lists and abbreviations


def bounds(row: NDArray[Any], ends: NDArray[Any]) -> list[tuple[int, int]]:
    """Where the sentences of a passage's tokens begin and end, [CLS] and [SEP] left out; the last may lack its end.

    >>> ids = np.array([101, 5, 6, 7, 8, 9, 3, 5, 3, 6, 7, 8, 9, 5, 102])
    >>> [ids[low:high].tolist() for low, high in bounds(ids, ends=np.array([3]))]
    [[5, 6, 7, 8, 9, 3], [6, 7, 8, 9, 5]]
    """
    stops = np.flatnonzero(np.isin(row[1:-1], ends)) + 2
    edges = [1, *stops.tolist(), len(row) - 1]
    return [(low, high) for low, high in pairwise(edges) if high - low >= SHORTEST]


def crop(row: NDArray[Any], ends: NDArray[Any], length: int, rng: np.random.Generator) -> NDArray[Any] | None:
    """One sentence of the passage as a query of at most `length` tokens; None where the passage has only one.

    >>> rng = np.random.default_rng(0)
    >>> ids = np.array([101, 5, 6, 7, 8, 9, 3, 6, 7, 8, 9, 5, 102])
    >>> crop(ids, np.array([3]), 5, rng).tolist() in ([101, 5, 6, 7, 102], [101, 6, 7, 8, 102])
    True
    """
    made = cloze(row, ends, length, rng)
    return made[0] if made else None


def cloze(
    row: NDArray[Any], ends: NDArray[Any], length: int, rng: np.random.Generator
) -> tuple[NDArray[Any], NDArray[Any]] | None:
    """One sentence as a query, as `crop` gives it, and the passage without it; None where there is only one.

    >>> ids = np.array([101, 5, 6, 7, 8, 9, 3, 6, 7, 8, 9, 5, 102])
    >>> [each.tolist() for each in cloze(ids, np.array([3]), 9, np.random.default_rng(1))]
    [[101, 5, 6, 7, 8, 9, 3, 102], [101, 6, 7, 8, 9, 5, 102]]
    """
    found = bounds(row, ends)
    if len(found) < 2:
        return None
    low, high = found[int(rng.integers(len(found)))]
    query = np.concatenate([row[:1], row[low : min(high, low + length - 2)], row[-1:]])
    return query, np.concatenate([row[:low], row[high:]])


def titled(title: NDArray[Any], row: NDArray[Any], length: int) -> NDArray[Any]:
    """The passage under a title, as one text of at most `length` tokens.

    >>> titled(np.array([101, 1, 2, 102]), np.array([101, 5, 6, 7, 102]), 6).tolist()
    [101, 1, 2, 5, 6, 102]
    """
    return np.concatenate([np.concatenate([title[:-1], row[1:-1]])[: length - 1], row[-1:]])
