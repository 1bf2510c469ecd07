"""Statistics of routed tokens: list sizes, keys per token by τ, and dot products per query."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from citadel.types import RoutedTokens

TAUS = (0.0, 0.5, 0.7, 0.9, 1.1, 1.3, 1.5)  # no pruning, then as in the paper's Figures 4 and 6


class ActiveKeys:
    """Histogram of document tokens with 0, 1, … keys above τ.

    >>> keys, weights = np.array([7, 9], np.uint32), np.array([2.0, 0.6], np.float32)
    >>> one = RoutedTokens(keys, weights, tokens=np.array([0, 0]))
    >>> counts = ActiveKeys([0.5, 0.9], max_keys=2)
    >>> counts.add([one], tokens=[3])  # three tokens, two of them without a key
    >>> counts.histograms
    {'0.5': [2, 0, 1], '0.9': [2, 1, 0]}
    """

    def __init__(self, taus: Iterable[float], max_keys: int) -> None:
        self._counts = {tau: np.zeros(max_keys + 1, np.int64) for tau in sorted(set(taus))}

    def add(self, routed: Sequence[RoutedTokens], tokens: Sequence[int]) -> None:
        """Count documents; `tokens` is the number of routed tokens of each."""
        starts = np.cumsum([0, *tokens])
        rows = [
            text.tokens + start
            for text, start in zip(routed, starts[:-1], strict=True)
            if text.tokens is not None
        ]
        positions = np.concatenate([np.zeros(0, np.int64), *rows]).astype(np.int64)  # [P]
        weights = np.concatenate([np.zeros(0, np.float32), *(text.weights for text in routed)])  # [P]
        for tau, count in self._counts.items():
            active = np.bincount(positions[weights > np.float32(tau)], minlength=int(starts[-1]))  # [tokens]
            count += np.bincount(active, minlength=len(count))

    @property
    def histograms(self) -> dict[str, list[int]]:
        return {f"{tau:g}": count.tolist() for tau, count in self._counts.items()}


class QueryCost(NamedTuple):
    """Work of one query."""

    query_tokens: int  # rows (token, key)
    lists: int
    token_products: int


def query_cost(keys: NDArray[np.uint32], sizes: Mapping[int, int]) -> QueryCost:
    """Count the work of a query: each row is multiplied with every posting of its list.

    >>> query_cost(np.array([7, 7, 8, 9]), {7: 10, 8: 1})
    QueryCost(query_tokens=4, lists=2, token_products=21)
    """
    lengths = [sizes.get(int(key), 0) for key in keys]
    lists = len({int(key) for key, size in zip(keys, lengths, strict=True) if size})
    return QueryCost(len(keys), lists, sum(lengths))


def size_histogram(sizes: Iterable[int]) -> list[list[int]]:
    """Count lists by size: pairs [size, number of lists], largest first.

    >>> size_histogram([3, 1, 3, 7])
    [[7, 1], [3, 2], [1, 1]]
    """
    return [[size, count] for size, count in sorted(Counter(sizes).items(), reverse=True)]


def list_sizes(histogram: Iterable[Sequence[int]]) -> NDArray[np.int64]:
    """Sizes of all lists, largest first; the inverse of `size_histogram`.

    >>> list_sizes([[7, 1], [3, 2]]).tolist()
    [7, 3, 3]
    """
    pairs = np.array([list(pair) for pair in histogram], np.int64).reshape(-1, 2)
    return np.repeat(pairs[:, 0], pairs[:, 1])


def gini(sizes: NDArray[np.int64]) -> float:
    """Gini coefficient of list sizes: 0 if all are equal, near 1 if one list holds everything.

    >>> gini(np.array([5, 5, 5])), round(gini(np.array([1, 3])), 3)
    (0.0, 0.25)
    """
    ordered = np.sort(sizes).astype(np.float64)
    if not len(ordered) or not ordered.sum():
        return 0.0
    ranks = np.arange(1, len(ordered) + 1)
    return float(
        2 * (ranks * ordered).sum() / (len(ordered) * ordered.sum()) - (len(ordered) + 1) / len(ordered)
    )
