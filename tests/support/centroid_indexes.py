"""Small centroid indexes: random token vectors near a few directions."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

import citadel
from citadel.types import Floats
from tests.index.quick import Quick

DIMENSION = 16
_TOPICS = np.random.default_rng(7).normal(size=(24, DIMENSION)).astype(np.float32)


def tokens(random: np.random.Generator, count: int) -> Floats:
    """Unit vectors [count, d] near random topics."""
    rows = _TOPICS[random.integers(0, len(_TOPICS), count)] + 0.6 * random.normal(size=(count, DIMENSION))
    units: Floats = (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)
    return units


def documents(first: int, last: int, seed: int = 0) -> list[dict[str, Any]]:
    """Documents with 0 to 24 tokens and a field."""
    made = []
    for number in range(first, last):
        random = np.random.default_rng((seed, number))
        rows = tokens(random, int(random.integers(0, 25)))
        made.append({"id": f"d{number}", "vectors": rows, "year": number % 5})
    return made


def query(number: int, count: int = 8) -> Floats:
    """The vectors of a query's tokens."""
    return tokens(np.random.default_rng((99, number)), count)


@contextmanager
def few_tokens(floor: int = 400) -> Iterator[None]:
    """Train centroids from `floor` tokens on."""
    with mock.patch("citadel.index.spill.SAMPLE_FLOOR", floor):
        yield


def create(folder: Path, codec: str = "residual2") -> citadel.Index:
    """An empty index."""
    fields = {"lexical": citadel.Field(DIMENSION, codec)}
    return citadel.Index.create(Quick(folder), router="centroid", fields=fields, fingerprint="random")


def mixed(folder: Path, codec: str = "residual2") -> citadel.Index:
    """An index with a segment from before the centroids, one under centroids, and deletions."""
    with few_tokens():
        index = create(folder, codec)
        index.add_vectors(documents(0, 20))
        index.commit()
        index.add_vectors(documents(20, 150))
        index.commit()
        index.delete(["d3", "d40", "d41"])
        index.commit()
    return index
