"""All engines implement one protocol, and `open_engine` opens each by name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import citadel
from citadel.errors import UsageError
from citadel.search.engine import ENGINES, Engine, EngineOptions, open_engine
from citadel.search.plan import Options, TermStatistics, plan_vectors
from tests.property.worlds import World, built

METHODS = {name for name in vars(Engine) if not name.startswith("_")}


@pytest.fixture
def index() -> Iterator[citadel.Index]:
    world = World("static", "int8", 8, seed=2, count=20)
    with built(world, [world.documents()]) as index:
        yield index


def open_named(index: citadel.Index, name: str) -> Engine[Any]:
    if name == "gpu":
        pytest.importorskip("torch", reason="torch is not installed: `pip install citadel-ir[gpu]`")
    return open_engine(index.searcher().snapshot, True, (0.0, 0.0), EngineOptions(name))


def test_engine_protocol_methods() -> None:
    assert {"prepare", "prepare_terms", "prepare_filter", "search", "search_batch"} == METHODS


@pytest.mark.parametrize("name", ENGINES)
def test_engines_return_the_same_ranking(name: str, index: citadel.Index) -> None:
    engine, reference = open_named(index, name), open_named(index, "reference")
    assert all(callable(getattr(engine, method)) for method in METHODS)
    query = World("static", "int8", 8, seed=2, count=20).query(1)
    plan = plan_vectors(index.settings, *map(query.get, ("keys", "weights", "vectors", "semantic")))
    expected = reference.search(reference.prepare(plan), Options(5))
    prepared = engine.prepare(plan)
    for scored in (
        engine.search(prepared, Options(5)),
        *engine.search_batch([prepared, prepared], Options(5)),
    ):
        assert len(scored.numbers)
        assert scored.numbers.tolist() == expected.numbers.tolist()
        assert scored.scores.tolist() == expected.scores.tolist()


def test_gpu_engine_rejects_bm25_terms(index: citadel.Index) -> None:
    statistics = TermStatistics(index.searcher().snapshot)
    with pytest.raises(UsageError, match="use --device cpu"):
        open_named(index, "gpu").prepare_terms([b"rome"], [1], statistics)
