"""Positions without a table of embeddings: distance classes (MPNet), rotations and windows (ModernBERT)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citadel.encode.config import BackboneConfig
from citadel.types import Floats

_FARTHEST = 128  # distances above it share a class


def distance_classes(positions: int, buckets: int) -> NDArray[np.int64]:
    """Class of the distance j - i, at index j - i + positions - 1; the classes of T5 and MPNet.

    Half of the classes are for each direction; a quarter are for single distances, the others widen.

    >>> distance_classes(3, 32).tolist()
    [2, 1, 0, 17, 18]
    """
    distance = -np.arange(-positions + 1, positions)  # i - j
    half = buckets // 2
    exact = half // 2
    size = np.abs(distance)
    scaled = np.log(np.maximum(size, 1).astype(np.float32) / np.float32(exact))
    steps = scaled / np.float32(math.log(_FARTHEST / exact)) * np.float32(half - exact)
    wide = np.minimum(exact + steps.astype(np.int64), half - 1)
    return np.where(distance < 0, half, 0) + np.where(size < exact, size, wide)


def rotations(shape: BackboneConfig, local: bool) -> tuple[Floats, Floats]:
    """Cosines and sines of rotary positions, each [positions, d/2].

    >>> shape = BackboneConfig(hidden=8, heads=2, positions=16, architecture="modernbert",
    ...     rotary_base=10.0, full_every=1)
    >>> cosines, sines = rotations(shape, local=False)
    >>> cosines.shape, float(cosines[0, 0]), float(sines[0, 0])
    ((16, 2), 1.0, 0.0)
    """
    base = shape.local_rotary_base if local else shape.rotary_base
    exponents = np.arange(0, shape.head_dimension, 2, dtype=np.float32) / np.float32(shape.head_dimension)
    frequencies = (1 / np.power(np.float32(base), exponents)).astype(np.float32)
    angles = np.arange(shape.positions, dtype=np.float32)[:, None] * frequencies  # [positions, d/2]
    return np.cos(angles), np.sin(angles)


def rotated(x: NDArray[Any], cosines: NDArray[Any], sines: NDArray[Any]) -> NDArray[Any]:
    """Rotate the halves of x [heads, T, d] against each other."""
    first, second = np.split(x, 2, axis=-1)
    return np.concatenate([first * cosines - second * sines, second * cosines + first * sines], axis=-1)
