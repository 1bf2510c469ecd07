"""A sample of the vectors that come in, from which a codebook is trained."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from citadel.index.codebook import SAMPLE_LIMIT
from citadel.types import Floats


class Sample:
    """A uniform sample of all vectors seen.

    >>> sample = Sample(2)
    >>> sample.add(np.ones((3, 2), np.float32), np.array([5, 6, 7], np.uint32))
    >>> len(sample)
    3
    """

    def __init__(self, dimension: int, seed: int = 0) -> None:
        self._generator = np.random.default_rng(seed)
        self._priorities = np.zeros(0)
        self.vectors = np.zeros((0, dimension), np.float32)
        self.keys = np.zeros(0, np.uint32)

    def __len__(self) -> int:
        return len(self.keys)

    def add(self, vectors: Floats, keys: NDArray[np.uint32]) -> None:
        """Each vector draws a number; those with the largest stay."""
        draws = self._generator.random(len(keys))
        if len(self) == SAMPLE_LIMIT:
            better = draws > self._priorities.min()
            draws, vectors, keys = draws[better], vectors[better], keys[better]
        priorities = np.concatenate([self._priorities, draws])
        kept = (
            np.sort(np.argpartition(-priorities, SAMPLE_LIMIT - 1)[:SAMPLE_LIMIT])
            if len(priorities) > SAMPLE_LIMIT
            else slice(None)
        )
        self._priorities = priorities[kept]
        self.vectors = np.concatenate([self.vectors, vectors])[kept]
        self.keys = np.concatenate([self.keys, keys])[kept]
