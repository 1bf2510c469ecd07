"""pq tables by their definition (docs/how-it-works/search.md), one query token at a time; query vectors for tests."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from citadel.index.codebook import Codebook
from citadel.types import Floats

SHAPES = ((1, 4), (2, 8), (3, 4), (8, 4), (9, 8))  # sub-vectors and their dimensions: a kernel takes eight at a time


def table(book: Codebook, vector: Floats) -> tuple[NDArray[Any], Any]:
    """Whole steps [S, 256] and the step."""
    whole, total = np.zeros(book.centroids.shape[:2], np.float32), np.float32(0)
    for part, (rows, own) in enumerate(zip(book.centroids, vector.reshape(len(whole), -1), strict=True)):
        whole[part] = rows[:, 0] * own[0]
        for place in range(1, len(own)):
            whole[part] += rows[:, place] * own[place]
        total += np.abs(whole[part]).max()
    step = total / np.float32(32767 - len(whole))
    if step < np.finfo(np.float32).tiny:
        return np.zeros_like(whole), np.float32(0)
    return np.rint(whole / step), step


def book(seed: int, parts: int, sub: int) -> Codebook:
    centroids = np.random.default_rng(seed).standard_normal((parts, 256, sub), np.float32)
    return Codebook(centroids, np.zeros(0, np.uint32), np.zeros(0, np.float32), 1.0)


def vectors(seed: int, count: int, dimension: int) -> Floats:
    """Of all sizes: one is 0, one so small that its step is no normal number, and one just above that."""
    random = np.random.default_rng(seed)
    sizes = (10.0 ** random.integers(-30, 30, (count, 1))).astype(np.float32)
    sizes[:3, 0] = 0, 1e-38, 1e-33
    return random.standard_normal((count, dimension), np.float32) * sizes


def halves() -> tuple[Codebook, Floats]:
    """A table whose step is 1 and whose entries lie between two whole numbers."""
    entries = np.zeros((1, 256, 4), np.float32)
    entries[0, :6, 0] = 32766, 0.5, 1.5, 2.5, -0.5, -1.5
    return Codebook(entries, np.zeros(0, np.uint32), np.zeros(0, np.float32), 1.0), np.eye(1, 4, dtype=np.float32)
