"""Vectors of an index as it stands, sampled for a new codebook."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from citadel.index.codebook import SAMPLE_LIMIT, Codebook
from citadel.index.quantize import decode
from citadel.index.segment import Segment
from citadel.types import Floats, Keys

_RUN = 64  # neighbouring postings read at a time: cheaper than one by one, and lists are long


def sample_vectors(segments: Sequence[Segment], book: Codebook | None = None, seed: int = 0) -> tuple[Floats, Keys]:
    """Up to SAMPLE_LIMIT stored vectors [n, d] with their keys [n], spread over all segments."""
    generator = np.random.default_rng(seed)
    total = sum(segment.meta.postings for segment in segments)
    share = min(1.0, SAMPLE_LIMIT / max(total, 1))
    vectors, keys = [], []
    for segment in segments:
        runs = np.arange(0, segment.meta.postings, _RUN)
        for start in runs[generator.random(len(runs)) < share].tolist():
            stop = min(start + _RUN, segment.meta.postings)
            owners = np.searchsorted(segment.list_starts, np.arange(start, stop), side="right") - 1
            keys.append(segment.keys[owners])
            vectors.append(decode(segment.encoded(start, stop), keys[-1], book))
    if not keys:
        dimension = segments[0].meta.dimension if segments else 0
        return np.zeros((0, dimension), np.float32), np.zeros(0, np.uint32)
    return np.concatenate(vectors), np.concatenate(keys)
