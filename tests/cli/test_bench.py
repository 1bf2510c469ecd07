"""`citadel bench latency`: output and usage errors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from citadel.paper.record import Measurement, read_measurement, write_measurement
from tests.cli.conftest import Citadel


@pytest.fixture
def vectors(tmp_path: Path, citadel: Citadel) -> Path:
    """An index of two documents with two postings each."""
    random = np.random.default_rng(0)
    arrays: dict[str, Any] = {
        "ids": np.array(["d1", "d2"]),
        "offsets": np.array([0, 2, 4]),
        "keys": np.array([7, 9, 7, 8]),
        "weights": np.ones(4, np.float32),
        "vectors": random.normal(size=(4, 4)).astype(np.float32),
    }
    np.savez(tmp_path / "corpus.npz", **arrays)
    citadel("index", tmp_path / "corpus.npz", tmp_path / "vec", "--fingerprint", "test")
    return tmp_path / "vec"


def test_prints_one_line_per_stage(vectors: Path, citadel: Citadel) -> None:
    lines = citadel("bench", "latency", vectors, "--limit", 2, "--trials", 1).out.splitlines()
    assert lines[0] == "2 documents, 2 queries, top 2, one thread"
    assert [line[:18].strip() for line in lines[2:6]] == ["plan", "token retrieval", "accumulate", "sort"]
    assert "GB/s" in lines[-1]


def test_json_is_stored_in_a_measurement(vectors: Path, tmp_path: Path, citadel: Citadel) -> None:
    write_measurement(tmp_path / "m.json", Measurement("CITADEL", "tiny", 2, 1))
    done = citadel("bench", "latency", vectors, "--limit", 2, "--json", "--into", tmp_path / "m.json")
    record = json.loads(done.out)
    assert (record["documents"], record["trials"], record["synthetic"]) == (2, 3, False)
    assert read_measurement(tmp_path / "m.json").latency == record


def test_synthetic_index_has_the_requested_size(vectors: Path, citadel: Citadel) -> None:
    done = citadel("bench", "latency", "--like", vectors, "--documents", 5000, "--limit", 2, "--json")
    record = json.loads(done.out)
    assert (record["documents"], record["synthetic"]) == (5000, True)
    assert record["traffic"]["token_products"] > 5000


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "either an INDEX or a synthetic one"),
        (("{vectors}", "--like", "{vectors}"), "either an INDEX or a synthetic one"),
        (("{vectors}", "--queries", "q.jsonl"), "no model to encode texts"),
        (("{index}",), "benchmarks/bm25.py"),
        (("{vectors}", "--device", "tpu"), "unknown device 'tpu'"),
    ],
)
def test_invalid_arguments_are_usage_errors(
    vectors: Path, index: Path, citadel: Citadel, arguments: tuple[str, ...], message: str
) -> None:
    filled = [part.format(vectors=vectors, index=index) for part in arguments]
    assert message in citadel("bench", "latency", *filled, code=2).err
