"""Samples of vectors to train a codebook on: from a stream of new vectors, or from stored segments."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from citadel.index.centroid_book import AnyCodebook
from citadel.index.centroid_train import SAMPLE_LIMIT as TOKEN_LIMIT
from citadel.index.codebook import SAMPLE_LIMIT, Codebook
from citadel.index.quantize import decode
from citadel.index.segment import Segment
from citadel.settings import Settings
from citadel.types import Floats, Keys

_POSTINGS_PER_READ = 64
_MEMORY_SHARE = 8  # divisor of the memory bound for a sample of tokens


class CodebookSample:
    """A uniform random sample of a stream of vectors (reservoir sampling).

    >>> sample = CodebookSample(2)
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

    def add(self, vectors: Floats, keys: Keys) -> None:
        """Draw a priority per vector; the largest SAMPLE_LIMIT stay."""
        draws = self._generator.random(len(keys))
        if len(self) == SAMPLE_LIMIT:
            larger = draws > self._priorities.min()
            draws, vectors, keys = draws[larger], vectors[larger], keys[larger]
        priorities = np.concatenate([self._priorities, draws])
        kept = (
            np.sort(np.argpartition(-priorities, SAMPLE_LIMIT - 1)[:SAMPLE_LIMIT])
            if len(priorities) > SAMPLE_LIMIT
            else slice(None)
        )
        self._priorities = priorities[kept]
        self.vectors = np.concatenate([self.vectors, vectors])[kept]
        self.keys = np.concatenate([self.keys, keys])[kept]


def sample_vectors(
    segments: Sequence[Segment], book: Codebook | None = None, seed: int = 0
) -> tuple[Floats, Keys]:
    """Sample up to SAMPLE_LIMIT stored vectors [n, d] and their keys [n] from all segments."""
    generator = np.random.default_rng(seed)
    total = sum(segment.meta.postings for segment in segments)
    share = min(1.0, SAMPLE_LIMIT / max(total, 1))
    vectors, keys = [], []
    for segment in segments:
        runs = np.arange(0, segment.meta.postings, _POSTINGS_PER_READ)
        for start in runs[generator.random(len(runs)) < share].tolist():
            stop = min(start + _POSTINGS_PER_READ, segment.meta.postings)
            owners = np.searchsorted(segment.list_starts, np.arange(start, stop), side="right") - 1
            keys.append(segment.keys[owners])
            vectors.append(decode(segment.encoded(start, stop), keys[-1], book))
    if not keys:
        dimension = segments[0].meta.dimension if segments else 0
        return np.zeros((0, dimension), np.float32), np.zeros(0, np.uint32)
    return np.concatenate(vectors), np.concatenate(keys)


def token_limit(memory: int, settings: Settings) -> int:
    """How many token vectors a sample for centroids has."""
    dimension = settings.lexical.dimension if settings.lexical else 1
    return max(min(TOKEN_LIMIT, memory // (_MEMORY_SHARE * 4 * dimension)), 1 << 12)


def token_sample(segment: Segment, share: float, book: AnyCodebook | None, seed: int = 0) -> Floats:
    """Sample a share of the stored vectors of a centroid segment [n, d]."""
    generator, total, parts = np.random.default_rng(seed), segment.tokens, []
    runs = np.arange(0, total, _POSTINGS_PER_READ)
    for start in runs[generator.random(len(runs)) < share].tolist():
        stop = min(start + _POSTINGS_PER_READ, total)
        parts.append(decode(segment.encoded(start, stop), segment.token_centroids(start, stop), book))
    return np.concatenate([np.zeros((0, segment.meta.dimension), np.float32), *parts])


def choose_rows(count: int, share: float, seed: int = 0) -> NDArray[np.int64]:
    """A random share of `count` rows, ascending."""
    return np.flatnonzero(np.random.default_rng(seed).random(count) < share)
