"""The cost model: it follows the measured rates, and its page shows what the command prints."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from citadel.cluster import rates
from citadel.cluster.cost_model import Collection, Machine, plan
from citadel.cluster.shard_latencies import SHARD_MS, SHARD_QUANTILES
from citadel.cluster.tail_latency import fan_out
from citadel.errors import UsageError
from tests.cli.conftest import in_process

REPOSITORY = Path(__file__).parents[2]
PAGE = REPOSITORY / "docs" / "how-it-works" / "cluster-cost.md"
SIZES = ("138e6", "1e9", "10e9")


def test_rates_are_those_of_the_results() -> None:
    results = REPOSITORY / "benchmarks" / "results"
    encode = json.loads((results / "encode-model.json").read_text())
    assert rates.ENCODE_CORE.value == pytest.approx(encode["documents_a_second_by_cores"]["1"], abs=0.05)
    assert rates.ENCODE_QUERY.value == pytest.approx(encode["query_whole_ms"], abs=0.01)
    train = json.loads((results / "train.json").read_text())
    assert rates.ENCODE_GPU.value == train["rows"][0]["encoded_per_second"]
    for row in json.loads((results / "build.json").read_text())["rows"]:
        assert rates.POSTING_BYTES[row[0]].value == row[8]
    shards = json.loads((results / "shard-latencies.json").read_text())
    measured = np.interp(SHARD_QUANTILES, np.linspace(0, 1, 1001), shards["shard_ms_quantiles"])
    assert measured.round(4).tolist() == list(SHARD_MS)
    for rate in rates.MEASURED:
        assert (REPOSITORY / rate.source).exists()


def test_more_machines_take_fewer_hours() -> None:
    small, large = (plan(Collection(10**9), Machine(memory=memory << 30)) for memory in (512, 128))
    assert small.machines < large.machines
    assert small.build_hours > large.build_hours
    with_gpus = plan(Collection(10**9), Machine(gpus=8))
    assert with_gpus.encode_hours < small.encode_hours / 10
    assert plan(Collection(10**9, codec="pq1")).index_bytes < small.index_bytes
    assert plan(Collection(1)).machines == 2
    with pytest.raises(UsageError, match="at most"):
        Collection(10**12)
    with pytest.raises(UsageError, match="codec"):
        Collection(10, codec="int4")


def test_hedges_cut_the_tail() -> None:
    for shards in (1, 16, 256):
        plain, hedged = fan_out(shards, False), fan_out(shards, True)
        assert hedged.p99 < plain.p99
        assert hedged.p50 <= 1.01 * plain.p50
        assert plain.p50 <= plain.p95 <= plain.p99
    assert fan_out(256, False).p50 > fan_out(1, False).p99  # some shard is always slow


def test_simulation_agrees_with_probability() -> None:
    """Without hedges, the q-quantile of the slowest of n is the q^(1/n)-quantile of one."""
    for shards in (4, 64):
        expected = np.interp(0.5 ** (1 / shards), SHARD_QUANTILES, SHARD_MS)
        assert fan_out(shards, False).p50 == pytest.approx(expected, rel=0.05)


def shown(*arguments: str) -> str:
    result = in_process("plan", *arguments)
    assert result.code == 0, result.err
    return result.out


def test_the_page_shows_what_the_command_prints() -> None:
    page = PAGE.read_text()
    for documents in SIZES:
        for line in shown("--documents", documents).splitlines():
            assert line in page, line
    for shards in (1, 4, 16, 64, 256):
        plain, hedged = fan_out(shards, False), fan_out(shards, True)
        row = f"| {shards} | {plain.p50:.1f} | {plain.p99:.1f} | {hedged.p50:.1f} | {hedged.p99:.1f} |"
        assert row in page, row
    for rate in rates.MEASURED:
        assert f"| {rate.value:,g} | {rate.unit} | {rate.machine} | {rate.date} |" in page, rate


def test_the_command() -> None:
    made = json.loads(shown("--documents", "5e6", "--shards", "3", "--json"))
    assert made["collection"]["shards"] == 3
    for wrong in ("no", "0", "1e30", "nan"):
        refused = in_process("plan", "--documents", wrong)
        assert (refused.code, "1e9" in refused.err) == (2, True)
