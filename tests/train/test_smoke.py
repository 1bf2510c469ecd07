"""The whole pipeline on a CPU by command line: data, training, export, index, search."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.style.calls import ROOT

for library in ("torch", "onnx", "safetensors", "tokenizers"):
    pytest.importorskip(library, reason=f"{library} is not installed: `pip install citadel-ir[train]`")

SOURCE = ROOT / "src"


def citadel(folder: Path, *arguments: str) -> str:
    # One thread: on a busy machine, threads that wait for each other are slower.
    environment = os.environ | {
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(map(str, (SOURCE, ROOT))),
    }
    command = [sys.executable, "-m", "citadel", *arguments]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from scripts.smoke_data import main

    folder = tmp_path_factory.mktemp("smoke")
    main(folder / "build" / "smoke")
    citadel(folder, "train", str(ROOT / "configs" / "smoke.toml"), "--out", "run")
    return folder


def log(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "run" / "log.jsonl").read_text().splitlines()]


def test_loss_falls_and_router_stays_healthy(trained: Path) -> None:
    steps = [row for row in log(trained) if "loss" in row]
    assert steps[-1]["loss"] < steps[0]["loss"] / 2
    assert all(row["largest_share"] < 0.3 and row["distinct_keys"] > 50 for row in steps)
    assert steps[-1]["queries_without_key"] < 0.2


def test_search_finds_training_positives(trained: Path) -> None:
    """Most positives are among the top 10 of 300; by chance one in thirty is."""
    data = trained / "build" / "smoke"
    citadel(trained, "export", "run", "--out", "model", "--precision", "fp32")
    citadel(trained, "index", str(data / "passages.jsonl"), "index", "--model", "model")
    pairs = [json.loads(line) for line in (data / "pairs.jsonl").read_text().splitlines()]
    lines = [json.dumps({"id": pair["positive"], "text": pair["query"]}) + "\n" for pair in pairs]
    (trained / "queries.jsonl").write_text("".join(lines))
    query = ("--queries", "queries.jsonl", "-k", "10", "--json")
    answers = citadel(trained, "search", "index", "--model", "model", *query).splitlines()
    result = [row["query_id"] in [hit["id"] for hit in row["hits"]] for row in map(json.loads, answers)]
    assert len(result) == len(pairs)
    assert sum(result) / len(result) > 0.7
