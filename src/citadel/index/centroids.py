"""The probe structure of a semantic field: documents grouped by their nearest centroid.

`rerank` probes the groups nearest to the query for documents that share no key with it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from citadel.index.container import CitFile
from citadel.types import Floats

PROBE_FLOOR = 16_384  # documents; scanning a smaller segment is faster
_SAMPLES_PER_CENTROID = 32
_ROUNDS = 6
_ROWS = 8_192  # per read


@dataclass(frozen=True)
class Probe:
    """Centroids [C, s] and the documents nearest to each, grouped by centroid."""

    centroids: Floats
    starts: NDArray[np.uint64]  # [C + 1]
    documents: NDArray[np.uint32]  # [N]

    def parts(self) -> tuple[Floats, NDArray[np.uint64], NDArray[np.uint32]]:
        return self.centroids, self.starts, self.documents


def read_probe(file: CitFile, documents: int) -> Probe:
    """Read and validate the probe structure of a segment."""
    starts = file["PROBE_STARTS"].array("<i8")
    numbers = file["PROBE_DOCUMENTS"].array("<u4")
    if starts[0] != 0 or starts[-1] != len(numbers) or (np.diff(starts) < 0).any():
        raise file["PROBE_STARTS"].corrupt("the groups do not follow each other")
    if len(numbers) and numbers.max() >= documents:
        raise file["PROBE_DOCUMENTS"].corrupt("a document number is out of range")
    centroids = file["PROBE_CENTROIDS"].array(np.float32).reshape(len(starts) - 1, -1)
    return Probe(centroids, starts.view(np.uint64), numbers)


def build_probe(read: Callable[[int, int], Floats], documents: int, seed: int = 0) -> Probe:
    """Cluster the semantic vectors of `documents` documents, read through `read(start, stop)`."""
    generator = np.random.default_rng(seed)
    count = int(2 * np.sqrt(documents))
    sample = _sample(read, documents, count * _SAMPLES_PER_CENTROID, generator)
    centroids = _cluster(sample, count, generator)
    nearest = np.concatenate(
        [
            _nearest(read(start, min(start + _ROWS, documents)), centroids)
            for start in range(0, documents, _ROWS)
        ]
    )
    order = np.argsort(nearest, kind="stable").astype(np.uint32)
    starts = np.concatenate([[0], np.cumsum(np.bincount(nearest, minlength=count))]).astype(np.uint64)
    return Probe(centroids, starts, order)


def _sample(
    read: Callable[[int, int], Floats], documents: int, wanted: int, generator: np.random.Generator
) -> Floats:
    chosen = np.sort(generator.choice(documents, min(wanted, documents), replace=False))
    parts = []
    for start in range(0, documents, _ROWS):
        stop = min(start + _ROWS, documents)
        inside = chosen[(chosen >= start) & (chosen < stop)] - start
        parts.append(read(start, stop)[inside])
    return np.concatenate(parts)


def _cluster(points: Floats, count: int, generator: np.random.Generator) -> Floats:
    centroids = points[generator.choice(len(points), count, replace=False)]
    for _ in range(_ROUNDS):
        nearest = np.concatenate(
            [_nearest(points[i : i + _ROWS], centroids) for i in range(0, len(points), _ROWS)]
        )
        order = np.argsort(nearest, kind="stable")
        filled, starts = np.unique(nearest[order], return_index=True)
        sums = np.add.reduceat(points[order], starts, axis=0)
        sizes = np.diff(np.append(starts, len(points)))
        centroids = centroids.copy()
        centroids[filled] = sums / sizes[:, None]
    return np.ascontiguousarray(centroids, np.float32)


def _nearest(points: Floats, centroids: Floats) -> NDArray[np.int64]:
    """The nearest centroid of each point [n]."""
    half_norms = 0.5 * np.einsum("cd,cd->c", centroids, centroids)
    return np.asarray(np.argmax(points @ centroids.T - half_norms, axis=1), np.int64)
