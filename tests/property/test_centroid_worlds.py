"""Random centroid indexes: engines agree, before and after merges, and with the formula."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, seed, settings
from hypothesis import strategies as st

import citadel
from citadel.index.quantize import decode
from citadel.routing import score
from citadel.types import Floats, RoutedTokens
from tests.index.quick import Quick
from tests.property.test_same_answer import EXAMPLES, NIGHT, SEED


@dataclass(frozen=True)
class World:
    """Documents of random token vectors; those of `tied` worlds are often equal."""

    codec: str
    dimension: int
    number: int
    sizes: tuple[int, ...]  # tokens of each document
    tied: bool

    def rows(self, key: int, count: int) -> Floats:
        random = np.random.default_rng((self.number, key))
        shape = (count, self.dimension)
        drawn = random.integers(-1, 2, shape) if self.tied else random.normal(size=shape)
        return np.asarray(drawn, np.float32)

    def documents(self) -> list[dict[str, Any]]:
        return [
            {"id": f"d{number}", "vectors": self.rows(number, size), "odd": number % 2}
            for number, size in enumerate(self.sizes)
        ]


WORLDS = st.builds(
    World,
    st.sampled_from(["int8", "residual1", "residual2", "residual4"]),
    st.sampled_from([8, 24, 64, 136]),
    st.integers(0, 1 << 30),
    st.lists(st.integers(0, 20), min_size=1, max_size=40).map(tuple),
    st.booleans(),
)


def answers(index: citadel.Index, world: World, engine: str) -> list[tuple[list[str], list[float]]]:
    searcher, found = index.searcher(engine=engine), []
    for number in range(2):
        query = world.rows(1000 + number, 1 + 20 * number)
        for options in ({"semantic_mode": "exact"}, {"ef": 3}, {"ef": 5, "filter": {"odd": 1}}):
            hits = searcher.search_vectors(vectors=query, k=4, **options)
            found.append((hits.ids, hits.scores))
    return found


def stored(index: citadel.Index) -> dict[str, Floats]:
    snapshot, vectors = index._snapshot, {}
    for segment in snapshot.segments:
        keys = segment.token_centroids(0, segment.tokens)
        rows = decode(segment.encoded(0, segment.tokens), keys, snapshot.centroids)
        for number in snapshot.live_numbers(segment):
            start, stop = segment.token_starts[number : number + 2]
            vectors[segment.ids([number])[0]] = rows[start:stop]
    return vectors


def routed(rows: Floats) -> RoutedTokens:
    return RoutedTokens(np.zeros(len(rows), np.uint32), np.ones(len(rows), np.float32), rows)


@seed(SEED)
@settings(EXAMPLES, max_examples=300 if NIGHT else 15)
@given(WORLDS, st.integers(1, 300), st.integers(0, 40))
def test_engines_agree_and_merges_change_nothing(world: World, floor: int, deleted: int) -> None:
    documents = world.documents()
    half = len(documents) // 2
    fields = {"lexical": citadel.Field(world.dimension, world.codec)}
    with tempfile.TemporaryDirectory() as folder, mock.patch("citadel.index.spill.SAMPLE_FLOOR", floor):
        index = citadel.Index.create(
            Quick(Path(folder) / "i"), router="centroid", fields=fields, fingerprint="x"
        )
        for part in (documents[:half], documents[half:]):
            index.add_vectors(part)
            index.commit()
        index.delete([f"d{deleted}"])
        index.commit()
        for _ in range(2):
            native = answers(index, world, "native")
            assert native == answers(index, world, "reference")
            require_formula(index, world, native[0])
            index.merge()
        index.check(deep=True)
        coded = index.stats()["codecs"]
        assert answers(index, world, "native") == answers(index, world, "reference")
        assert coded in (["int8"], [world.codec], [])


def require_formula(index: citadel.Index, world: World, found: tuple[list[str], list[float]]) -> None:
    """The scores of `found` are those of the formula over the stored vectors, and no document is better."""
    query, vectors = world.rows(1000, 1), stored(index)
    scores = {id: score(routed(query), routed(rows), False) for id, rows in vectors.items() if len(rows)}
    largest = max((float(np.abs(rows).sum(1).max()) for rows in vectors.values() if len(rows)), default=0.0)
    scale = 0.01 * float(np.abs(query).max()) * largest  # the engine rounds the query to int8
    for id, value in zip(*found, strict=True):
        assert value == pytest.approx(scores[id], abs=scale + 1e-6)
    if found[1]:
        best = [value for value in scores.values() if value is not None]
        assert sum(value > found[1][-1] + 2 * scale + 1e-6 for value in best) <= len(found[0])
