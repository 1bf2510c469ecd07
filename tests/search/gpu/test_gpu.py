"""The GPU engine returns the results of the CPU engine, in plain torch and in Triton's interpreter."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("torch", reason="torch is not installed: `pip install citadel-ir[gpu]`")
import citadel
from citadel.errors import Cancelled, ResourceError, UsageError
from citadel.search.gpu import device_engine, host_lists
from citadel.search.gpu.engine import GpuEngine
from citadel.search.plan import Options
from tests.property.worlds import World, answers, built, worlds
from tests.search.gpu.same import check, check_mixed
from tests.support.children import ROOT, environment

VECTORS = ("static", "dynamic", "all_to_all", "none", "sparse")
FEW = settings(max_examples=25, deadline=None)


def gpu_engine(searcher: citadel.Searcher) -> device_engine.DeviceEngine:
    assert isinstance(searcher._engine, GpuEngine)
    return searcher._engine.engines[0]


@FEW
@given(worlds(VECTORS), st.sampled_from([0, 1, 3, 1000]), st.data())
def test_gpu_engine_equals_native_engine(world: World, k: int, data: st.DataObject) -> None:
    cut = data.draw(st.integers(1, world.count))
    with built(world, [world.documents()[:cut], world.documents()[cut:]]) as index:
        index.delete([f"d{n}" for n in data.draw(st.sets(st.integers(0, world.count), max_size=3))])
        index.commit()
        assert answers(world, index, k, engine="gpu") == answers(world, index, k)


@pytest.mark.parametrize("mode", ["exact", "rerank", "off"])
def test_few_candidates_tau_and_deletions(mode: str) -> None:
    """With so few candidates that their choice matters, in three segments of several ranges."""
    for tied in (False, True):
        world = World("dynamic", "int8", 8, "int8", seed=7, count=60, tied=tied)
        check(world, Options(4, mode, 6, 6, weight_floor=30), cuts=[20, 41], deleted=[0, 3, 59], width=16)


@pytest.mark.parametrize("codec", ["pq2", "pq1"])
def test_segments_before_and_after_the_codebook(codec: str) -> None:
    check_mixed(World("dynamic", codec, 16, "int8", seed=3, count=14), Options(6, "exact"))


def test_kernels_in_the_interpreter() -> None:
    if find_spec("triton") is None:
        pytest.skip("triton is not installed here")
    variables = environment() | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tests.search.gpu.interpreted"]
    ended = subprocess.run(
        command, cwd=ROOT, env=variables, capture_output=True, text=True, timeout=600, check=False
    )
    assert ended.stdout == "equal\n", ended.stderr


@pytest.mark.parametrize("capacity", [30, -1])  # enough, and so small that every part is rerun
def test_split_batch_equals_single_searches(capacity: int) -> None:
    world = World("dynamic", "int8", 8, "int8", seed=2, count=30)
    with built(world, [world.documents()]) as index:
        queries = {str(number): world.query(number) for number in range(7)}
        with (
            mock.patch.object(
                device_engine, "bytes_per_query", return_value=device_engine.WORKSPACE_BYTES // 2
            ),  # two at a time
            mock.patch.object(device_engine, "capacity", return_value=capacity),
        ):
            ranking = index.searcher(engine="gpu").search_vectors_batch(queries, k=9)
        searcher = index.searcher(engine="gpu")
        for name, hits in ranking:
            alone = searcher.search_vectors(**queries[name], k=9)
            assert [(hit.id, hit.score) for hit in hits] == list(zip(alone.ids, alone.scores, strict=True))


def test_failed_part_does_not_leave_another_running() -> None:
    """The next part is already running: it is waited for, and the failed one is not retried."""
    world, finished = World("static", "int8", 8, seed=2, count=30), list[list[int]]()

    def finish(
        self: device_engine.DeviceEngine, part: device_engine.InFlight, options: object
    ) -> dict[int, object]:
        finished.append(part.positions)
        part.recorded.wait(part.slot)
        if len(finished) == 1:
            raise RuntimeError("the GPU fell off the bus")
        return {}

    queries = {str(number): world.query(number) for number in range(7)}
    with (
        built(world, [world.documents()]) as index,
        mock.patch.object(
            device_engine, "bytes_per_query", return_value=device_engine.WORKSPACE_BYTES // 2
        ),  # two at a time
        mock.patch.object(device_engine.DeviceEngine, "_finish", finish),
        pytest.raises(RuntimeError, match="fell off"),
    ):
        index.searcher(engine="gpu").search_vectors_batch(queries, k=9)
    assert finished == [[0, 1], [2, 3]]


def test_ties_beyond_the_candidate_buffer_are_ordered() -> None:
    """More documents share a score than the candidate buffer holds."""
    with built(World("sparse"), []) as index:
        index.add_vectors([{"id": f"d{n}", "keys": [1], "weights": [1.0]} for n in range(9)])
        hits = index.commit().searcher(engine="gpu").search_vectors(keys=[1], k=4)
        assert (hits.ids, hits.scores) == (["d0", "d1", "d2", "d3"], [1.0] * 4)


def test_cancelled_search_raises() -> None:
    flag = citadel.CancelFlag()
    flag.set()
    with built(World("sparse"), [World("sparse").documents()]) as index, pytest.raises(Cancelled):
        index.searcher(engine="gpu").search_vectors(keys=[1], cancel=flag)


def test_bm25_is_rejected() -> None:
    with built(World("bm25"), []) as index, pytest.raises(UsageError, match="use --device cpu"):
        index.searcher(engine="gpu")


def test_dot_products_equal_those_of_the_native_engine() -> None:
    world = World("static", "int8", 8, seed=2, count=30)
    with built(world, [world.documents()]) as index:
        both = [
            index.searcher(engine=name).search_vectors(**world.query(1)).dot_products
            for name in ("gpu", "native")
        ]
        assert both[0] == both[1] > 0


def test_empty_index_returns_no_hits() -> None:
    with built(World("static"), []) as index:
        assert index.searcher(engine="gpu").search_vectors(keys=[1], vectors=np.ones((1, 8))).ids == []


@pytest.mark.parametrize(
    ("router", "codec"), [("dynamic", "int8"), ("static", "pq2"), ("none", "int8"), ("sparse", "fp16")]
)
@pytest.mark.parametrize("devices", [2, 3])
def test_several_devices_return_the_same_ranking(router: str, codec: str, devices: int) -> None:
    """Shard borders lie within segments; each device has its own part of every list."""
    world = World(router, codec, 8, None if router == "sparse" else "int8", seed=9, count=31, tied=True)
    with built(world, [world.documents()[:12], world.documents()[12:]]) as index:
        index.delete(["d3", "d20"])
        index.commit()
        one, several = (
            index.searcher(engine="gpu", device=name) for name in ("cpu", ",".join(["cpu"] * devices))
        )
        for query in world.queries():
            for mode in set(world.modes) - {"rerank"}:
                single, split = (
                    world.search(searcher, query, 7, semantic_mode=mode) for searcher in (one, several)
                )
                assert split.ids == single.ids
                assert split.scores == single.scores


def test_text_queries_are_encoded_on_the_device(tiny_model: Callable[..., Path], tmp_path: Path) -> None:
    """The exported model run by torch gives the rankings of the CPU encoder."""
    pytest.importorskip("safetensors", reason="a model is loaded with the extra [train]")
    texts = ["a theory of relativity", "the history of rome", "light and time", "apples of rome"]
    with citadel.Index.create(tmp_path / "index", model=tiny_model()) as index:
        index.add([{"id": f"d{n}", "text": text} for n, text in enumerate(texts)])
        cpu, device = index.commit().searcher(), index.searcher(device="cpu,cpu")
        assert device._query_encoder is not None
        for query in ("relativity of time", "rome"):
            expected, hits = cpu.search(query), device.search(query)
            assert hits.ids == expected.ids
            np.testing.assert_allclose(hits.scores, expected.scores, rtol=1e-4)
        batches = [searcher.search_batch(texts, k=2) for searcher in (cpu, device)]
        assert len({str([[hit.id for hit in hits] for _, hits in ranking]) for ranking in batches}) == 1


@pytest.mark.parametrize(("router", "codec"), [("dynamic", "int8"), ("static", "pq2"), ("sparse", "fp16")])
def test_lists_in_host_memory_are_searched(router: str, codec: str) -> None:
    """Some postings are on the device, some on the host; queries read both."""
    world = World(router, codec, 8, None, seed=4, count=40)
    with built(world, [world.documents()[:20], world.documents()[20:]]) as index:
        whole = index.searcher(engine="gpu")
        device_index = gpu_engine(whole).index
        with mock.patch.object(host_lists, "STAGED_LISTS", 1):
            half = index.searcher(engine="gpu", gpu_memory=device_index.bytes * 7 // 10)
        lists = [own for own in gpu_engine(half).index.lists if own is not None]
        assert all(
            own.on_host is not None and 0 < (own.on_host.starts >= 0).sum() < len(own.keys) for own in lists
        )
        assert gpu_engine(half).index.bytes < device_index.bytes
        answered = 0
        for number in range(12):
            expected = world.search(whole, world.query(number), 9)
            try:
                hits = world.search(half, world.query(number), 9)
            except ResourceError as error:  # two host lists, but staging space for one
                assert "rare lists of this query do not fit into GPU memory" in str(error)  # noqa: PT017
                continue
            assert (hits.ids, hits.scores) == (expected.ids, expected.scores)
            answered += 1
        assert answered > 6


def test_batch_is_split_when_its_host_lists_do_not_fit() -> None:
    documents = [{"id": f"d{n}", "keys": [n % 4], "weights": [1.0 + n]} for n in range(12)]
    queries = {str(key): {"keys": [key]} for key in range(4)}
    with built(World("sparse"), []) as index:
        index.add_vectors(documents)
        with mock.patch.object(host_lists, "STAGED_LISTS", 1):
            searcher = index.commit().searcher(engine="gpu", gpu_memory=6 * 7)  # one list, and another staged
        ranking = searcher.search_vectors_batch(queries, k=1)
        assert [hits[0].id for _, hits in ranking] == ["d8", "d9", "d10", "d11"]


def test_rerun_part_stages_its_host_lists_again() -> None:
    """The next part's lists have overwritten them."""
    documents = [{"id": f"d{n}", "keys": [n % 8], "weights": [1.0 + n]} for n in range(24)]
    queries = {str(key): {"keys": [key]} for key in range(8)}
    with built(World("sparse"), []) as index:
        index.add_vectors(documents)
        with (
            mock.patch.object(host_lists, "STAGED_LISTS", 2),
            mock.patch.object(device_engine, "capacity", return_value=-1),
        ):
            # Two lists can be staged, so two queries run at a time.
            searcher = index.commit().searcher(engine="gpu", gpu_memory=6 * 7)
            ranking = searcher.search_vectors_batch(queries, k=1)
        assert [hits[0].id for _, hits in ranking] == [f"d{16 + key}" for key in range(8)]


def test_too_little_gpu_memory_message() -> None:
    world = World("static", "int8", 8, seed=4, count=40)
    with (
        built(world, [world.documents()]) as index,
        pytest.raises(ResourceError, match=r"at least \d+ with --gpu-memory"),
    ):
        index.searcher(engine="gpu", gpu_memory=10)


@pytest.mark.parametrize("limit", [{"gpu_memory": 10}, {"card_memory": 10}])
def test_memory_limit_by_current_and_former_name(limit: dict[str, Any]) -> None:
    world = World("static", "int8", 8, seed=4, count=40)
    with built(world, [world.documents()]) as index:
        snapshot = index.searcher().snapshot
        with pytest.raises(ResourceError, match="10 bytes of GPU memory are too few"):
            index.searcher(engine="gpu", **limit)
        with pytest.raises(ResourceError, match="10 bytes of GPU memory are too few"):
            citadel.Searcher(snapshot, engine="gpu", **limit)
