"""A sharded index answers like the index it was made from, bit for bit, ties included."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, seed, settings
from hypothesis import strategies as st

import citadel
from citadel.index.shard import shard_index
from tests.index.quick import Quick
from tests.property.test_filtered_search import Scene, scenes
from tests.property.test_same_answer import EXAMPLES, NIGHT, SEED
from tests.property.worlds import ROUTERS, World, answers, built

FIELDS = st.sampled_from([None, "parity", "number"])


@contextmanager
def sharded(index: citadel.Index, shards: int) -> Iterator[citadel.Index]:
    with tempfile.TemporaryDirectory() as folder:
        target = Quick(Path(folder) / "root")
        shard_index(index._snapshot, target, shards)
        with citadel.Index.open(target) as opened:
            yield opened


@seed(SEED)
@settings(EXAMPLES, max_examples=500 if NIGHT else 80)
@given(scenes(), st.integers(1, 5), st.sampled_from([0, 1, 2, 3, 7, 1000]))
def test_rankings_are_equal(scene: Scene, shards: int, k: int) -> None:
    with scene.index() as index, sharded(index, shards) as root:
        assert len(root) == len(index)
        root.check(deep=True)
        for options in (scene.options, scene.options | {"filter": scene.filter}):
            expected = answers(scene.world, index, k, **options)
            assert answers(scene.world, root, k, **options) == expected
            assert answers(scene.world, root, k, engine="reference", **options) == expected


@seed(SEED)
@EXAMPLES
@given(scenes(), st.integers(2, 5), st.integers(0, 9), st.integers(0, 4), FIELDS)
def test_groups_and_pages_are_equal(
    scene: Scene, shards: int, k: int, offset: int, field: str | None
) -> None:
    options: dict[str, Any] = {"k": k, "offset": offset, "filter": scene.filter, "group_by": field}
    with scene.index() as index, sharded(index, shards) as root:
        for query in scene.world.queries():
            rankings = []
            for searcher in (index.searcher(), root.searcher()):
                search = searcher.search if scene.world.router == "bm25" else searcher.search_vectors
                hits = search(**query, **options)
                rankings.append([(hit.id, hit.score, hit.text, hit.metadata) for hit in hits])
            assert rankings[0] == rankings[1]


@pytest.mark.parametrize("router", ROUTERS)
def test_batches_and_statistics_are_equal(router: str) -> None:
    world = World(router, "int8", 8, None if router in ("bm25", "none") else "int8", SEED, 120, tied=True)
    with built(world, [world.documents()[:70], world.documents()[70:]]) as index, sharded(index, 4) as root:
        assert answers(world, root, 9, threads=2) == answers(world, index, 9)
        assert sorted(root.ids()) == sorted(index.ids())
        ours, theirs = root.stats(), index.stats()
        same = ("documents", "passages", "postings", "lists", "largest_lists", "router", "tau", "fingerprint")
        assert [ours[name] for name in same] == [theirs[name] for name in same]
        assert (ours["shards"], ours["smallest_shard"] <= 30 <= ours["largest_shard"]) == (4, True)
        if router == "bm25":
            texts = [str(world.query(number)["query"]) for number in range(50)]
            expected = index.searcher().search_batch(texts, k=5).to_dict()
            assert root.searcher().search_batch(texts, k=5).to_dict() == expected


def test_one_codebook_for_all_shards() -> None:
    world = World("dynamic", "pq2", 8, "int8", SEED, 60)
    with built(world, [world.documents()[:30], world.documents()[30:]]) as index, sharded(index, 3) as root:
        book, own = index._snapshot.codebook, root._snapshot.codebook
        assert book is not None and own is not None
        assert np.array_equal(book.centroids, own.centroids)
        assert answers(world, root, 10) == answers(world, index, 10)


def test_explanations_are_equal() -> None:
    world = World("bm25", seed=SEED, count=40)
    with built(world, [world.documents()]) as index, sharded(index, 3) as root:
        hit = index.search("ant bee cat", 1)[0]
        for searcher in (index.searcher(), root.searcher()):
            explanation = searcher.explain("ant bee cat", hit.id)
            assert explanation.score == hit.score
