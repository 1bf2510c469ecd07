"""Train the centroids and bucket values of an index on a sample of its token vectors."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from citadel.index.centroid_book import MAX_CENTROIDS, CentroidBook, CentroidSearch, lloyd, means
from citadel.index.trellis import fit_windows, rotated
from citadel.routing.centroid import nearest_centroids
from citadel.types import Floats

TOKENS_PER_CENTROID = 4  # fewest sampled vectors per centroid
SAMPLE_LIMIT = 1 << 18  # vectors
_SAMPLES_PER_CENTROID = 24  # on which k-means runs
_FLAT_BELOW = 512  # centroids; more are trained in two levels
_ROUNDS = 5
_BUCKET_VALUES = 1 << 19  # residual components that the buckets are fitted to
_LARGEST_CODE = 127
_HEADROOM = 1.25  # of the lengths of residuals over the longest one in the sample


def centroid_count(tokens: int) -> int:
    """The number of centroids for a collection: 16 · √tokens, rounded down to a power of two, as PLAID.

    >>> centroid_count(1_000_000), centroid_count(100)
    (8192, 16)
    """
    wanted = min(16 * math.sqrt(max(tokens, 1)), tokens / TOKENS_PER_CENTROID, MAX_CENTROIDS)
    return 1 << max(int(wanted).bit_length() - 1, 0)


def train_centroids(vectors: Floats, tokens: int, bits: int, seed: int = 0) -> CentroidBook:
    """Train centroids for a collection of `tokens` tokens, and buckets, on sampled vectors [n, d].

    With 0 bits there are no buckets: the vectors themselves are stored."""
    generator = np.random.default_rng(seed)
    most = max(len(vectors) // TOKENS_PER_CENTROID, 1)
    count = min(centroid_count(tokens), 1 << (most.bit_length() - 1))
    sample = _subset(vectors, _SAMPLES_PER_CENTROID * count, generator)
    codes, scales = _int8(cluster(sample, count, generator))
    book = CentroidBook(codes, scales, np.zeros((1, 1), np.int8), 1.0, np.zeros(0, np.float32), 1.0)
    if not bits:
        return replace(book, sampled=len(vectors))
    probe = _subset(vectors, max(_BUCKET_VALUES // vectors.shape[1], 1), generator)
    residuals = probe - book.centroids[book.nearest(probe)]
    buckets, scale = _fit(residuals, bits)
    return CentroidBook(codes, scales, buckets, scale, book.cuts, _step(residuals), len(vectors))


def _fit(residuals: Floats, bits: int) -> tuple[NDArray[np.int8], float]:
    """Bucket values [2^b, 2^(6 − b)] as int8 codes, and their scale, of rotated residuals of length 1."""
    roots = np.sqrt(np.einsum("nd,nd->n", residuals, residuals) / residuals.shape[1])
    units = rotated(residuals[roots > 0] / roots[roots > 0, None])
    values = fit_windows(units if len(units) else np.zeros((1, residuals.shape[1]), np.float32), bits)
    scale = float(np.float32(np.abs(values).max() / _LARGEST_CODE)) or 1.0
    return np.rint(values / scale).astype(np.int8), scale


def _step(residuals: Floats) -> float:
    """The step of lengths with which the longest residual of the sample, and a longer one, have a code."""
    roots = np.sqrt(np.einsum("nd,nd->n", residuals, residuals) / residuals.shape[1])
    return float(np.float32(_HEADROOM * roots.max(initial=0) / 255)) or 1.0


def _subset(vectors: Floats, limit: int, generator: np.random.Generator) -> Floats:
    if len(vectors) <= limit:
        return vectors
    return vectors[np.sort(generator.choice(len(vectors), limit, replace=False))]


def _int8(centroids: Floats) -> tuple[NDArray[np.int8], NDArray[np.float16]]:
    from citadel._native import quantize_int8

    return quantize_int8(np.ascontiguousarray(centroids, np.float32))


def cluster(points: Floats, count: int, generator: np.random.Generator) -> Floats:
    """k-means with many centroids: coarse clusters, centroids inside each, then a round over all of them."""
    if count < _FLAT_BELOW:
        return lloyd(points, count, _ROUNDS, generator)
    heads = 1 << (count.bit_length() // 2)
    coarse = lloyd(_subset(points, 64 * heads, generator), heads, _ROUNDS, generator)
    owners = nearest_centroids(points, coarse)
    sizes = np.bincount(owners, minlength=heads)
    shares = _shares(sizes, count)
    parts = [
        lloyd(points[owners == head], share, _ROUNDS, generator)
        for head, share in enumerate(shares.tolist())
        if share
    ]
    centroids = np.concatenate(parts)
    return means(points, CentroidSearch(*_int8(centroids)).nearest(points), centroids, generator)


def _shares(sizes: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """Centroids per cluster, in proportion to its points; they add up to `count`.

    >>> _shares(np.array([6, 2, 0]), 4).tolist()
    [3, 1, 0]
    """
    exact = sizes * (count / sizes.sum())
    shares: NDArray[np.int64] = np.floor(exact).astype(np.int64)
    order = np.argsort(shares - exact, kind="stable")
    shares[order[: count - shares.sum()]] += 1
    return shares
