"""The product quantiser of a field: 256 centroids for each sub-vector, and a scale for each key.

A key's vectors share a length more than a direction, so dividing by the key's scale first lets one global
codebook serve all keys.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from citadel.index.container import CitFile, CitWriter, FileRecord
from citadel.index.storage import Storage
from citadel.types import Floats, Keys

CENTROIDS = 256
SAMPLE_FLOOR = 65_536  # fewest vectors to train a codebook on
SAMPLE_LIMIT = 131_072  # more vectors change the centroids little
_KEY_FLOOR = 16  # fewest sampled vectors for a key to have its own scale
_ROUNDS = 12
_LARGEST_TABLE = 1 << 20
_LARGEST_SCALE = 1e30


@dataclass(frozen=True)
class Codebook:
    """Centroids [S, 256, sub], keys with their own scale, and the scale of all other keys.

    >>> centroids, scales = np.zeros((2, 256, 4), np.float32), np.array([2.0], np.float32)
    >>> book = Codebook(centroids, np.array([5], np.uint32), scales, 1.0)
    >>> book.scales_for(np.array([5, 6], np.uint32)).tolist()
    [2.0, 1.0]
    """

    centroids: Floats  # [S, 256, sub]
    scale_keys: Keys  # [m]
    key_scales: Floats  # [m]
    global_scale: float
    sampled: int = 0

    @property
    def dimension(self) -> int:
        return int(self.centroids.shape[0] * self.centroids.shape[2])

    def scales_for(self, keys: Keys) -> Floats:
        """The scale of each key [P]; keys without their own scale use the global one."""
        if not len(self.scale_keys):
            return np.full(len(keys), self.global_scale, np.float32)
        if self._table is not None:
            return self._table[np.minimum(keys, len(self._table) - 1)]
        position = np.minimum(np.searchsorted(self.scale_keys, keys), len(self.scale_keys) - 1)
        known = self.scale_keys[position] == keys
        return np.where(known, self.key_scales[position], np.float32(self.global_scale)).astype(np.float32)

    @cached_property
    def _table(self) -> Floats | None:
        """Scales indexed by key, then the global one; None when keys are too large for a table."""
        if int(self.scale_keys.max()) >= _LARGEST_TABLE:
            return None
        table = np.full(int(self.scale_keys.max()) + 2, self.global_scale, np.float32)
        table[self.scale_keys] = self.key_scales
        return table


def train(vectors: Floats, keys: Keys, subvector: int, seed: int = 0) -> Codebook:
    """Train a codebook on sampled vectors [n, d] with their keys [n]."""
    squares = np.einsum("nd,nd->n", vectors, vectors, dtype=np.float64)
    global_scale = float(np.float32(np.sqrt(squares.mean()) or 1.0))
    scale_keys, key_scales = _key_scales(squares, keys)
    book = Codebook(np.zeros((0, CENTROIDS, subvector), np.float32), scale_keys, key_scales, global_scale)
    scaled = vectors / book.scales_for(keys)[:, None]
    generator = np.random.default_rng(seed)
    parts = scaled.reshape(len(vectors), -1, subvector).transpose(1, 0, 2)  # [S, n, sub]
    centroids = np.stack([_cluster(np.ascontiguousarray(part), generator) for part in parts])
    return Codebook(centroids, scale_keys, key_scales, global_scale, len(vectors))


def _key_scales(squares: NDArray[np.float64], keys: Keys) -> tuple[Keys, Floats]:
    distinct, positions, counts = np.unique(keys, return_inverse=True, return_counts=True)
    scales = np.sqrt(np.bincount(positions, squares, len(distinct)) / counts).astype(np.float32)
    enough = (counts >= _KEY_FLOOR) & (scales > 0)
    return distinct[enough].astype(np.uint32), scales[enough]


def _cluster(points: Floats, generator: np.random.Generator) -> Floats:
    """k-means: points [n, sub] → centroids [256, sub]; an empty centroid moves to a random point."""
    from citadel._native import pq_assign

    centroids = points[generator.choice(len(points), CENTROIDS, replace=len(points) < CENTROIDS)]
    for _ in range(_ROUNDS):
        nearest = pq_assign(points, centroids[None])[:, 0]
        counts = np.bincount(nearest, minlength=CENTROIDS)
        sums = np.stack([np.bincount(nearest, column, CENTROIDS) for column in points.T], axis=1)
        centroids = (sums / np.maximum(counts, 1)[:, None]).astype(np.float32)
        empty = np.flatnonzero(counts == 0)
        centroids[empty] = points[generator.choice(len(points), len(empty))]
    return centroids


def write_codebook(storage: Storage, index_id: str, file_id: str, book: Codebook) -> FileRecord:
    """Write a codebook file."""
    writer = CitWriter(storage, "codebook", index_id, file_id, sections=4)
    meta = {
        "dimension": book.dimension,
        "subvector": book.centroids.shape[2],
        "global_scale": book.global_scale,
        "sampled": book.sampled,
    }
    writer.section("META", json.dumps(meta).encode())
    writer.section("CENTROIDS", book.centroids)
    writer.section("SCALE_KEYS", book.scale_keys)
    writer.section("KEY_SCALES", book.key_scales)
    return writer.finish()


def read_codebook(
    storage: Storage, record: FileRecord, index_id: str, dimension: int, subvector: int
) -> Codebook:
    """Read a codebook and check it against its field."""
    file = CitFile(storage, record, "codebook", index_id)
    meta = file["META"].json()
    scale, sampled = meta.get("global_scale"), meta.get("sampled")
    shaped = (meta.get("dimension"), meta.get("subvector")) == (dimension, subvector)
    if (
        not shaped
        or not isinstance(scale, float)
        or not 0 < scale < _LARGEST_SCALE
        or not isinstance(sampled, int)
    ):
        raise file["META"].corrupt("it does not fit the index's field")
    # Copies: truncating the file later must not change searches.
    keys = file["SCALE_KEYS"].array(np.uint32).copy()
    centroids = file["CENTROIDS"].sized(np.float32, dimension * CENTROIDS).copy()
    shape = (dimension // subvector, CENTROIDS, subvector)
    scales = file["KEY_SCALES"].sized(np.float32, len(keys)).copy()
    return Codebook(centroids.reshape(shape), keys, scales, scale, sampled)
