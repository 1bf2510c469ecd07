"""benchmarks/peers on two documents: this project's own script, and peers that cannot run and say why."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("ir_measures", reason="ir-measures is not installed: the extra [eval]")
sys.path.insert(0, str(Path(__file__).parent.parent.parent / "benchmarks" / "peers"))

import harness
import prepare
import run as peers


@pytest.fixture
def task(tmp_path: Path) -> Path:
    """Two documents and a query as prepare.py writes them."""
    texts = {"ids": ["d1", "d2"], "texts": ["darwin proposed evolution", "einstein proposed relativity"]}
    (tmp_path / "documents.json").write_text(json.dumps(texts))
    (tmp_path / "queries.json").write_text(json.dumps({"ids": ["q1"], "texts": ["relativity"]}))
    (tmp_path / "qrels.json").write_text(json.dumps({"q1": {"d2": 1}}))
    (tmp_path / "exact.json").write_text(json.dumps({"colbert": [[1, 0]]}))
    return tmp_path


def test_our_own_bm25(task: Path) -> None:
    found = peers.run_one("with_citadel.py", "bm25", task, sys.executable)
    assert found["ranked"] == [[1]]
    cells = peers.row(found, task, "")
    assert cells[:3] == ["citadel bm25", 1.0, "–"] and cells[-1] == ""


@pytest.mark.parametrize("script", ["with_faiss.py", "with_seismic.py", "with_lancedb.py", "with_qdrant.py"])
def test_a_peer_that_cannot_run_says_why(task: Path, script: str) -> None:
    found = peers.run_one(script, "", task, sys.executable)
    assert "No module named" in found["unable"] or "vectors: give prepare.py" in found["unable"]
    assert peers.row(found, task, "colbert")[-1] == found["unable"]


def test_overlap_counts_the_exact_ten(task: Path) -> None:
    assert peers.overlap([[0]], task, "colbert") == 0.5
    assert peers.overlap([[0, 1]], task, "colbert") == 1.0


def test_max_sim_by_hand() -> None:
    rows: Any = harness.Rows(
        np.array([0, 2, 2, 3]),
        np.zeros(3, np.uint32),
        np.ones(3, np.float32),
        np.array([[1, 0], [0, 1], [3, 0]], np.float32),
    )
    query = np.array([[1, 0], [0, 2]], np.float32)
    assert harness.max_sim(query, rows).tolist() == [3.0, -np.inf, 3.0]  # 1 + 2, nothing, 3 + 0
    assert harness.max_sim(query, rows, [2]).tolist() == [3.0]
    assert harness.top(np.array([1.0, 2.0, 2.0])) == [1, 2, 0]


def test_sparse_exact_by_hand(task: Path) -> None:
    sides = {"documents": ([0, 1, 3], [7, 7, 9], [1.0, 2.0, 5.0]), "queries": ([0, 1], [7], [2.0])}
    for side, (offsets, keys, weights) in sides.items():
        arrays: dict[str, Any] = {
            "offsets": np.array(offsets),
            "keys": np.array(keys, np.uint32),
            "weights": np.array(weights, np.float32),
        }
        np.savez(task / f"splade-{side}.npz", **arrays)
    assert prepare.sparse_exact(harness.Task(task)) == [[1, 0]]  # 2·2 and 2·1
