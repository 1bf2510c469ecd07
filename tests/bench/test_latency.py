"""Stage timers and traffic of queries, on indexes small enough to count by hand; no times are asserted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from citadel.api import Index
from citadel.bench.latency import ALL_STAGES, MIN_QUERIES, Bench, Latency, affordable, measure_latency
from citadel.bench.random_queries import random_queries
from citadel.bench.synthetic import SyntheticSnapshot, synthetic_index
from citadel.errors import InputError, UsageError
from citadel.index.snapshot import Snapshot
from citadel.index.stats import list_lengths
from citadel.routing import get_router
from citadel.search.cpu import STAGES, CpuEngine
from citadel.search.plan import plan_options, plan_vectors
from citadel.settings import Field
from citadel.types import RoutedTokens

DIMENSION, SEMANTIC = 4, 8
FIELDS: Mapping[str, Field] = {"lexical": Field(DIMENSION, "int8"), "semantic": Field(SEMANTIC, "int8")}


def build(
    folder: Path, router: str = "dynamic", fields: Mapping[str, Field] = FIELDS, documents: int = 3
) -> Index:
    """Document i has key 7 i + 1 times and key 9 once."""
    index = Index.create(folder, fields=fields, router=router, fingerprint="test")
    random = np.random.default_rng(0)
    rows: list[dict[str, Any]] = []
    for number in range(documents):
        keys = [7] * (number + 1) + [9]
        row: dict[str, Any] = {"id": f"d{number}"}
        if "lexical" in fields:
            row |= {"keys": keys, "weights": [1.0] * len(keys)}
            if fields["lexical"].dimension:
                row["vectors"] = random.normal(size=(len(keys), DIMENSION)).astype(np.float32)
        if "semantic" in fields:
            row["semantic"] = random.normal(size=SEMANTIC).astype(np.float32)
        rows.append(row)
    index.add_vectors(rows)
    return index.commit()


def bench(snapshot: Snapshot, queries: list[RoutedTokens], semantic: str = "exact") -> Bench:
    engine = CpuEngine(snapshot, get_router(snapshot.settings.router).floor, (0.0, 0.0), 1)
    return Bench(snapshot, engine, plan_options(snapshot, 10, semantic, None), queries, ids=None)


def query(*keys: int) -> RoutedTokens:
    random = np.random.default_rng(1)
    ones = np.ones(len(keys), np.float32)
    vectors = random.normal(size=(len(keys), DIMENSION)).astype(np.float32)
    return RoutedTokens(
        np.array(keys, np.uint32), ones, vectors, random.normal(size=SEMANTIC).astype(np.float32)
    )


def test_traffic_of_a_query_by_hand(tmp_path: Path) -> None:
    snapshot = build(tmp_path).searcher().snapshot
    latency = measure_latency(bench(snapshot, [query(7, 7, 8)]), trials=1)
    # Key 7 has 1 + 2 + 3 postings, each scored by two query tokens; key 8 has no list.
    assert latency.traffic["token_products"] == 12
    assert latency.traffic["semantic_products"] == 3
    # Read once: six int8 vectors of four with their scales, one block (4 + 8), five deltas of one bit.
    assert latency.traffic["list_bytes"] == 6 * (4 + 2) + 12 + 1
    assert latency.traffic["semantic_bytes"] == 3 * (8 + 2)


def test_every_stage_has_mean_and_percentiles(tmp_path: Path) -> None:
    snapshot = build(tmp_path).searcher().snapshot
    latency = measure_latency(bench(snapshot, [query(7), query(9)]), trials=2)
    assert list(latency.milliseconds) == [*STAGES, "search", "whole"]
    assert all(set(figures) == {"mean", "p50", "p95", "p99"} for figures in latency.milliseconds.values())
    assert len(latency.means) == 2
    assert latency.milliseconds["whole"]["mean"] == pytest.approx(min(latency.means))


def test_floor_is_bytes_over_bandwidth() -> None:
    traffic = {"token_products": 0.0, "semantic_products": 0.0, "list_bytes": 3e6, "semantic_bytes": 1e6}
    latency = Latency({}, traffic, bandwidth=1e9, queries=1, trials=1)
    assert (latency.floor("token retrieval"), latency.floor("semantic"), latency.floor("search")) == (
        3.0,
        1.0,
        4.0,
    )
    assert latency.floor("sort") is None
    assert "encode" in ALL_STAGES


@pytest.mark.parametrize("semantic", ["exact", "rerank", "off"])
def test_timed_search_returns_the_same_result(tmp_path: Path, semantic: str) -> None:
    snapshot = build(tmp_path, documents=40).searcher().snapshot
    prepared = bench(snapshot, [], semantic)
    plan = plan_vectors(snapshot.settings, [7, 9], [1.0, 2.0], np.eye(2, DIMENSION), np.ones(SEMANTIC))
    plain = prepared.engine.search(prepared.engine.prepare(plan), prepared.options)
    timed, stages = prepared.engine.search_timed(prepared.engine.prepare(plan), prepared.options)
    assert timed.numbers.tolist() == plain.numbers.tolist()
    assert timed.scores.tolist() == plain.scores.tolist()
    assert timed.dot_products == plain.dot_products
    assert list(stages) == list(STAGES) and all(seconds >= 0 for seconds in stages.values())
    assert sum(stages.values()) > 0


def test_queries_are_limited_by_time(tmp_path: Path) -> None:
    prepared = bench(build(tmp_path).searcher().snapshot, [query(7)] * 50)
    assert len(affordable(prepared, seconds=1e9).queries) == 50
    assert len(affordable(prepared, seconds=0).queries) == MIN_QUERIES == 10


def test_bench_without_queries_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no query to time"):
        measure_latency(bench(build(tmp_path).searcher().snapshot, []))


# ---- synthetic indexes -------------------------------------------------------------------------------------


def scaled(tmp_path: Path, documents: int, **options: Any) -> tuple[Snapshot, SyntheticSnapshot]:
    real = build(tmp_path / "real", **options).searcher().snapshot
    return real, synthetic_index(real, documents, [7, 9, 1234], str(tmp_path / "made"))


@pytest.mark.parametrize("codec", ["fp16", "int8"])
def test_synthetic_lists_scale_with_the_documents(tmp_path: Path, codec: str) -> None:
    fields = {"lexical": Field(DIMENSION, codec), "semantic": Field(SEMANTIC, codec)}
    _, made = scaled(tmp_path, 3000, fields=fields)
    assert list_lengths(made) == {7: 6000, 9: 3000}  # a thousand times 6 and 3
    latency = measure_latency(bench(made, [query(7), query(9)]), trials=1)
    assert latency.traffic["token_products"] == (6000 + 3000) / 2
    assert latency.traffic["semantic_products"] == 3000


@pytest.mark.parametrize("semantic", ["exact", "rerank", "off"])
def test_gpu_traffic_equals_cpu_traffic(tmp_path: Path, semantic: str) -> None:
    pytest.importorskip("torch", reason="torch is not installed: the extra [gpu]")
    from citadel.bench.gpu_stages import GpuSearch

    _, made = scaled(tmp_path, 3000)
    cpu = bench(made, [query(7), query(7, 9)], semantic)
    latency = measure_latency(replace(cpu, gpu=GpuSearch(made, True, "cpu")), trials=1)
    assert latency.traffic == measure_latency(cpu, trials=1).traffic
    assert list(latency.milliseconds) == ["plan", "search", "whole"]  # timed as a whole
    assert latency.bandwidth > 0


def test_large_synthetic_index_is_probed(tmp_path: Path) -> None:
    _, made = scaled(tmp_path, 20_000)
    latency = measure_latency(bench(made, [query(7)], "rerank"), trials=1)
    assert 0 < latency.traffic["semantic_products"] < 20_000


@pytest.mark.parametrize(
    ("router", "fields"),
    [
        ("sparse", {"lexical": Field(0)}),
        ("none", {"semantic": Field(SEMANTIC)}),
        ("static", {"lexical": Field(DIMENSION, "int8")}),
    ],
)
def test_random_queries_and_synthetic_index_for_every_router(
    tmp_path: Path, router: str, fields: dict[str, Field]
) -> None:
    real = build(tmp_path / "real", router, fields).searcher().snapshot
    queries = random_queries(real, 3, tokens=4)
    keys = [int(key) for query in queries for key in query.keys]
    made = synthetic_index(real, 600, keys, str(tmp_path / "made"))
    assert len(made) == 600
    for snapshot in (real, made):
        assert measure_latency(bench(snapshot, queries), trials=1).queries == 3


def test_random_queries_need_postings(tmp_path: Path) -> None:
    index = Index.create(tmp_path, fields=FIELDS, fingerprint="test")
    with pytest.raises(InputError, match="no postings"):
        random_queries(index.searcher().snapshot, 1, 1)
