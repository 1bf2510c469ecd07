"""The GPU engine returns what the CPU engine does: in plain torch here, its kernels in Triton's interpreter."""

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
def test_it_answers_as_the_native_engine_does(world: World, k: int, data: st.DataObject) -> None:
    cut = data.draw(st.integers(1, world.count))
    with built(world, [world.documents()[:cut], world.documents()[cut:]]) as index:
        index.delete([f"d{n}" for n in data.draw(st.sets(st.integers(0, world.count), max_size=3))])
        index.commit()
        assert answers(world, index, k, engine="gpu") == answers(world, index, k)


@pytest.mark.parametrize("mode", ["exact", "rerank", "off"])
def test_few_candidates_tau_and_deletions(mode: str) -> None:
    """So few candidates that it matters which they are, in three segments of several ranges."""
    for tied in (False, True):
        world = World("dynamic", "int8", 8, "int8", seed=7, count=60, tied=tied)
        check(world, Options(4, mode, 6, 6, weight_floor=30), cuts=[20, 41], gone=[0, 3, 59], width=16)


@pytest.mark.parametrize("codec", ["pq2", "pq1"])
def test_segments_from_before_and_after_the_codebook(codec: str) -> None:
    check_mixed(World("dynamic", codec, 16, "int8", seed=3, count=14), Options(6, "exact"))


def test_the_kernels_in_the_interpreter() -> None:
    if find_spec("triton") is None:
        pytest.skip("triton is not installed here")
    variables = environment() | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tests.search.gpu.interpreted"]
    ended = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, timeout=600, check=False)
    assert ended.stdout == "equal\n", ended.stderr


@pytest.mark.parametrize("capacity", [30, -1])  # enough, and so little that each part is rerun after the next
def test_a_batch_in_parts_is_one_by_one(capacity: int) -> None:
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


def test_a_part_that_fails_leaves_no_other_behind() -> None:
    """The next part has been started by then; it is waited for, and the failed one is not retried."""
    world, finished = World("static", "int8", 8, seed=2, count=30), list[list[int]]()

    def finish(self: device_engine.DeviceEngine, part: device_engine.InFlight, options: object) -> dict[int, object]:
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


def test_equal_scores_without_room_are_still_ordered() -> None:
    """More documents of one score than the candidate buffer holds."""
    with built(World("sparse"), []) as index:
        index.add_vectors([{"id": f"d{n}", "keys": [1], "weights": [1.0]} for n in range(9)])
        found = index.commit().searcher(engine="gpu").search_vectors(keys=[1], k=4)
        assert (found.ids, found.scores) == (["d0", "d1", "d2", "d3"], [1.0] * 4)


def test_a_cancelled_search_ends() -> None:
    flag = citadel.CancelFlag()
    flag.set()
    with built(World("sparse"), [World("sparse").documents()]) as index, pytest.raises(Cancelled):
        index.searcher(engine="gpu").search_vectors(keys=[1], cancel=flag)


def test_bm25_needs_the_cpu() -> None:
    with built(World("bm25"), []) as index, pytest.raises(UsageError, match="use --device cpu"):
        index.searcher(engine="gpu")


def test_it_counts_the_products_of_the_token_scan() -> None:
    world = World("static", "int8", 8, seed=2, count=30)
    with built(world, [world.documents()]) as index:
        both = [index.searcher(engine=name).search_vectors(**world.query(1)).dot_products for name in ("gpu", "native")]
        assert both[0] == both[1] > 0


def test_an_empty_index() -> None:
    with built(World("static"), []) as index:
        assert index.searcher(engine="gpu").search_vectors(keys=[1], vectors=np.ones((1, 8))).ids == []


@pytest.mark.parametrize(
    ("router", "codec"), [("dynamic", "int8"), ("static", "pq2"), ("none", "int8"), ("sparse", "fp16")]
)
@pytest.mark.parametrize("devices", [2, 3])
def test_shards_over_several_devices(router: str, codec: str, devices: int) -> None:
    """Shard borders lie within segments; each device has its own part of every list."""
    world = World(router, codec, 8, None if router == "sparse" else "int8", seed=9, count=31, tied=True)
    with built(world, [world.documents()[:12], world.documents()[12:]]) as index:
        index.delete(["d3", "d20"])
        index.commit()
        one, several = (index.searcher(engine="gpu", device=name) for name in ("cpu", ",".join(["cpu"] * devices)))
        for query in world.queries():
            for mode in set(world.modes) - {"rerank"}:
                found = [world.search(searcher, query, 7, semantic_mode=mode) for searcher in (one, several)]
                assert found[0].ids == found[1].ids
                assert found[0].scores == found[1].scores


def test_text_in_ranking_out(tiny_model: Callable[..., Path], tmp_path: Path) -> None:
    """The model through torch on the device, from the exported folder: the answers of the CPU's own."""
    pytest.importorskip("safetensors", reason="a model is loaded with the extra [train]")
    texts = ["a theory of relativity", "the history of rome", "light and time", "apples of rome"]
    with citadel.Index.create(tmp_path / "index", model=tiny_model()) as index:
        index.add([{"id": f"d{n}", "text": text} for n, text in enumerate(texts)])
        here, there = index.commit().searcher(), index.searcher(device="cpu,cpu")
        assert there._query_encoder is not None
        for query in ("relativity of time", "rome"):
            wanted, found = here.search(query), there.search(query)
            assert found.ids == wanted.ids
            np.testing.assert_allclose(found.scores, wanted.scores, rtol=1e-4)
        batches = [searcher.search_batch(texts, k=2) for searcher in (here, there)]
        assert len({str([[hit.id for hit in hits] for _, hits in ranking]) for ranking in batches}) == 1


@pytest.mark.parametrize(("router", "codec"), [("dynamic", "int8"), ("static", "pq2"), ("sparse", "fp16")])
def test_lists_in_host_memory(router: str, codec: str) -> None:
    """Some postings are on the device, some on the host; queries read both."""
    world = World(router, codec, 8, None, seed=4, count=40)
    with built(world, [world.documents()[:20], world.documents()[20:]]) as index:
        whole = index.searcher(engine="gpu")
        device_index = gpu_engine(whole).index
        with mock.patch.object(host_lists, "STAGED_LISTS", 1):
            half = index.searcher(engine="gpu", gpu_memory=device_index.bytes * 7 // 10)
        lists = [own for own in gpu_engine(half).index.lists if own is not None]
        assert all(own.on_host is not None and 0 < (own.on_host.starts >= 0).sum() < len(own.keys) for own in lists)
        assert gpu_engine(half).index.bytes < device_index.bytes
        answered = 0
        for number in range(12):
            wanted = world.search(whole, world.query(number), 9)
            try:
                found = world.search(half, world.query(number), 9)
            except ResourceError as error:  # two host lists, and a staging area for one
                assert "rare lists of this query do not fit into GPU memory" in str(error)  # noqa: PT017
                continue
            assert (found.ids, found.scores) == (wanted.ids, wanted.scores)
            answered += 1
        assert answered > 6


def test_a_batch_is_split_when_its_host_lists_do_not_fit() -> None:
    documents = [{"id": f"d{n}", "keys": [n % 4], "weights": [1.0 + n]} for n in range(12)]
    queries = {str(key): {"keys": [key]} for key in range(4)}
    with built(World("sparse"), []) as index:
        index.add_vectors(documents)
        with mock.patch.object(host_lists, "STAGED_LISTS", 1):
            searcher = index.commit().searcher(engine="gpu", gpu_memory=6 * 7)  # one list, and another staged
        ranking = searcher.search_vectors_batch(queries, k=1)
        assert [hits[0].id for _, hits in ranking] == ["d8", "d9", "d10", "d11"]


def test_a_rerun_part_stages_its_host_lists_again() -> None:
    """The next part's lists have overwritten them meanwhile."""
    documents = [{"id": f"d{n}", "keys": [n % 8], "weights": [1.0 + n]} for n in range(24)]
    queries = {str(key): {"keys": [key]} for key in range(8)}
    with built(World("sparse"), []) as index:
        index.add_vectors(documents)
        with (
            mock.patch.object(host_lists, "STAGED_LISTS", 2),
            mock.patch.object(device_engine, "capacity", return_value=-1),
        ):
            searcher = index.commit().searcher(engine="gpu", gpu_memory=6 * 7)  # two staged lists, so two queries
            ranking = searcher.search_vectors_batch(queries, k=1)
        assert [hits[0].id for _, hits in ranking] == [f"d{16 + key}" for key in range(8)]


def test_too_little_gpu_memory_is_one_sentence() -> None:
    world = World("static", "int8", 8, seed=4, count=40)
    with (
        built(world, [world.documents()]) as index,
        pytest.raises(ResourceError, match=r"at least \d+ with --gpu-memory"),
    ):
        index.searcher(engine="gpu", gpu_memory=10)


@pytest.mark.parametrize("limit", [{"gpu_memory": 10}, {"card_memory": 10}])
def test_the_memory_limit_has_a_former_name(limit: dict[str, Any]) -> None:
    world = World("static", "int8", 8, seed=4, count=40)
    with built(world, [world.documents()]) as index:
        snapshot = index.searcher().snapshot
        with pytest.raises(ResourceError, match="10 bytes of GPU memory are too few"):
            index.searcher(engine="gpu", **limit)
        with pytest.raises(ResourceError, match="10 bytes of GPU memory are too few"):
            citadel.Searcher(snapshot, engine="gpu", **limit)
