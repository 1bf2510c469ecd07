"""Top k of scored documents: highest score first, ties by lower document number."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from citadel.types import Floats, Scored


def best(numbers: NDArray[np.int64], scores: Floats, k: int) -> Scored:
    """The best k documents.

    >>> best(np.array([4, 2, 9]), np.array([1, 1, 3], np.float32), 2).numbers.tolist()
    [9, 2]
    """
    if k < len(scores):
        # Keep everything at or above the k-th score, so that ties are cut by number.
        border = np.partition(scores, len(scores) - k)[len(scores) - k] if k else np.float32(np.inf)
        kept = scores >= border
        numbers, scores = numbers[kept], scores[kept]
    order = np.lexsort((numbers, -scores))[:k]
    return Scored(numbers[order].astype(np.int64), scores[order].astype(np.float32))
