"""Concurrent and cancelled searches: the engine releases the GIL."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import citadel
from citadel._native import Cancel
from tests.index.quick import Quick
from tests.property.worlds import World, answers, built


@pytest.fixture(scope="module")
def long_index(tmp_path_factory: pytest.TempPathFactory) -> Iterator[citadel.Index]:
    """One list of 40,000 vectors; a query of 20,000 tokens needs 800 million dot products."""
    random = np.random.default_rng(1)
    folder = tmp_path_factory.mktemp("long") / "i"
    with citadel.Index.create(
        Quick(folder), fields={"lexical": 8}, router="all_to_all", fingerprint="x"
    ) as index:
        vectors = random.normal(size=(40_000, 8)).astype(np.float32)
        ids = [f"d{n}" for n in range(4000)]
        index.add_vectors({"ids": ids, "offsets": np.arange(0, 40_001, 10), "vectors": vectors})
        yield index.commit()


def query(tokens: int) -> np.ndarray:
    return np.random.default_rng(2).normal(size=(tokens, 8)).astype(np.float32)


def test_search_can_be_cancelled_from_another_thread(long_index: citadel.Index) -> None:
    """The timer's thread could not run if the search kept the GIL."""
    searcher, cancel = long_index.searcher(threads=1), Cancel()
    before = searcher.search_vectors(vectors=query(3), k=5)
    timer = threading.Timer(0.05, cancel.set)
    timer.start()
    with pytest.raises(citadel.Cancelled, match="cancelled"):
        searcher.search_vectors(vectors=query(20_000), cancel=cancel)
    timer.join()
    again = searcher.search_vectors(vectors=query(3), k=5)
    assert (again.ids, again.scores) == (before.ids, before.scores)


def test_cancelled_flag_stops_the_search_at_once(long_index: citadel.Index) -> None:
    cancel = Cancel()
    searcher = long_index.searcher()
    assert len(searcher.search_vectors(vectors=query(3), cancel=cancel)) == 10
    cancel.set()
    with pytest.raises(citadel.Cancelled):
        searcher.search_vectors(vectors=query(3), cancel=cancel)


@pytest.mark.parametrize("router", ["bm25", "dynamic"])
def test_threads_can_share_a_searcher(router: str) -> None:
    world = World(router, "int8", 8, None if router == "bm25" else "int8", seed=3, count=120)
    with built(world, [world.documents()[:80], world.documents()[80:]]) as index:
        searcher, expected = index.searcher(threads=2), answers(world, index)

        def search(number: int) -> tuple[list[str], list[float], list[str]]:
            hits = world.search(searcher, world.query(number % 3))
            return hits.ids, hits.scores, [hit.document.id for hit in hits]

        with ThreadPoolExecutor(6) as pool:
            results = list(pool.map(search, range(120)))
    for number, (ids, scores, documents) in enumerate(results):
        assert (ids, scores) == expected[number % 3 * len(expected) // 3]
        assert documents == ids


def test_searcher_keeps_its_generation(tmp_path: Path) -> None:
    index = citadel.Index.create(Quick(tmp_path / "i"))
    index.add([{"id": "a", "text": "ant"}])
    old = index.commit().searcher()
    index.delete(["a"])
    index.add([{"id": "b", "text": "ant ant"}])
    index.merge()
    assert [hit.text for hit in old.search("ant")] == ["ant"]
    assert [hit.id for hit in index.searcher().search("ant")] == ["b"]
