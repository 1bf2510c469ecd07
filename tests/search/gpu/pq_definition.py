"""pq tables by their definition in docs/how-it-works/search.md, and test data for them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from citadel.index.codebook import Codebook
from citadel.types import Floats

# Sub-vectors and their dimensions; the kernel processes eight sub-vectors at a time.
SHAPES = ((1, 4), (2, 8), (3, 4), (8, 4), (9, 8))


def table(book: Codebook, vector: Floats) -> tuple[NDArray[Any], Any]:
    """The table in integer steps [S, 256], and the step."""
    rows, total = np.zeros(book.centroids.shape[:2], np.float32), np.float32(0)
    for part, (centroids, own) in enumerate(zip(book.centroids, vector.reshape(len(rows), -1), strict=True)):
        rows[part] = centroids[:, 0] * own[0]
        for dimension in range(1, len(own)):
            rows[part] += centroids[:, dimension] * own[dimension]
        total += np.abs(rows[part]).max()
    step = total / np.float32(32767 - len(rows))
    if step < np.finfo(np.float32).tiny:
        return np.zeros_like(rows), np.float32(0)
    return np.rint(rows / step), step


def book(seed: int, parts: int, sub: int) -> Codebook:
    centroids = np.random.default_rng(seed).standard_normal((parts, 256, sub), np.float32)
    return Codebook(centroids, np.zeros(0, np.uint32), np.zeros(0, np.float32), 1.0)


def vectors(seed: int, count: int, dimension: int) -> Floats:
    """Vectors of all magnitudes: zero, one with a subnormal step, one just above that, and others."""
    random = np.random.default_rng(seed)
    sizes = (10.0 ** random.integers(-30, 30, (count, 1))).astype(np.float32)
    sizes[:3, 0] = 0, 1e-38, 1e-33
    return random.standard_normal((count, dimension), np.float32) * sizes


def halves() -> tuple[Codebook, Floats]:
    """A table with step 1 whose entries lie halfway between integers."""
    entries = np.zeros((1, 256, 4), np.float32)
    entries[0, :6, 0] = 32766, 0.5, 1.5, 2.5, -0.5, -1.5
    return Codebook(entries, np.zeros(0, np.uint32), np.zeros(0, np.float32), 1.0), np.eye(
        1, 4, dtype=np.float32
    )
