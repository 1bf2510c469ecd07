"""benchmarks/peers on two documents: citadel's script, and peers that cannot run."""

from __future__ import annotations

import importlib.util
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
import tokens


@pytest.fixture
def task(tmp_path: Path) -> Path:
    """Two documents and a query as prepare.py writes them."""
    texts = {"ids": ["d1", "d2"], "texts": ["darwin proposed evolution", "einstein proposed relativity"]}
    (tmp_path / "documents.json").write_text(json.dumps(texts))
    (tmp_path / "queries.json").write_text(json.dumps({"ids": ["q1"], "texts": ["relativity"]}))
    (tmp_path / "qrels.json").write_text(json.dumps({"q1": {"d2": 1}}))
    (tmp_path / "exact.json").write_text(json.dumps({"colbert": [[1, 0]]}))
    return tmp_path


def test_citadel_bm25(task: Path) -> None:
    result = peers.run_one("with_citadel.py", "bm25", task, sys.executable)
    assert result["ranked"] == [[1]]
    cells = peers.row(result, task, "")
    assert cells[:3] == ["citadel bm25", 1.0, "–"] and cells[-1] == ""


@pytest.mark.parametrize(
    ("script", "argument"),
    [("with_faiss.py", ""), ("with_seismic.py", ""), ("with_lancedb.py", ""), ("with_qdrant.py", "exact")],
)
def test_peer_that_cannot_run_reports_why(task: Path, script: str, argument: str) -> None:
    result = peers.run_one(script, argument, task, sys.executable)
    assert "No module named" in result["unable"] or "vectors: give prepare.py" in result["unable"]
    assert peers.row(result, task, "colbert")[-1] == result["unable"]


def test_overlap_with_the_exact_top_10(task: Path) -> None:
    assert peers.overlap([[0]], task, "colbert") == 0.5
    assert peers.overlap([[0, 1]], task, "colbert") == 1.0


def test_max_sim_small_example() -> None:
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


def test_sparse_exact_small_example(task: Path) -> None:
    sides = {"documents": ([0, 1, 3], [7, 7, 9], [1.0, 2.0, 5.0]), "queries": ([0, 1], [7], [2.0])}
    for side, (offsets, keys, weights) in sides.items():
        arrays: dict[str, Any] = {
            "offsets": np.array(offsets),
            "keys": np.array(keys, np.uint32),
            "weights": np.array(weights, np.float32),
        }
        np.savez(task / f"splade-{side}.npz", **arrays)
    assert prepare.sparse_exact(harness.Task(task)) == [[1, 0]]  # 2·2 and 2·1


def test_prepare_a_family(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch", reason="torch is not installed: the extra [train]")
    from tests.support.models import tiny_config, write_checkpoint

    for name, router in prepare.MODELS.items():
        write_checkpoint(tmp_path / "family" / name, tiny_config(router))
    beir, out = tmp_path / "tiny", tmp_path / "out"
    (beir / "qrels").mkdir(parents=True)
    (beir / "corpus.jsonl").write_text('{"_id": "d1", "text": "rome"}\n{"_id": "d2", "text": "newton"}\n')
    (beir / "queries.jsonl").write_text('{"_id": "q1", "text": "newton"}\n')
    (beir / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\nq1\td2\t1\n")
    monkeypatch.setattr(
        sys, "argv", ["prepare.py", str(beir), str(out), "--family", str(tmp_path / "family")]
    )
    prepare.main()
    assert capsys.readouterr().out.count("texts in") == 6  # three models, two sides
    # The query equals the text of d2.
    assert json.loads((out / "exact.json").read_text())["colbert"] == [[1, 0]]
    task = harness.Task(out)
    assert task.routed("citadel", "documents").weights.min() > 1.0  # the tiny model's τ
    assert peers.models_of(out)["citadel"]["tau"] == 1.0
    prepare.main()
    assert "texts in" not in capsys.readouterr().out  # nothing to do for the same models
    write_checkpoint(tmp_path / "family" / "splade", tiny_config("static"))
    with pytest.raises(SystemExit, match="its router is static; --splade needs sparse"):
        prepare.main()


@pytest.fixture
def token_vectors() -> tokens.Tokens:
    """300 documents of up to 9 tokens, the first without any, and 12 queries of 3 tokens."""
    rng = np.random.default_rng(0)
    offsets = tokens.offsets([0, *rng.integers(1, 10, 299).tolist()])
    rows = rng.standard_normal((int(offsets[-1]) + 36, 16)).astype(np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    documents, queries = rows[:-36].astype(np.float16), rows[-36:]
    return tokens.Tokens(documents, offsets, queries, tokens.offsets([3] * 12))


def test_exact_token_search_is_the_plain_loop(
    token_vectors: tokens.Tokens, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokens, "BLOCK", 7)
    for query, ranked in enumerate(tokens.exact(token_vectors)):
        wanted = [
            -(token_vectors.query(query) @ token_vectors.document(number).T).max(1).sum()
            if len(token_vectors.document(number))
            else np.inf
            for number in range(len(token_vectors))
        ]
        assert ranked.tolist() == np.argsort(wanted)[: tokens.K].tolist()


def test_citadel_reaches_the_overlap(token_vectors: tokens.Tokens, tmp_path: Path) -> None:
    truth = tokens.exact(token_vectors)
    name, parameter, overlap, p50, p95, queries = tokens.row(
        "citadel, int8", tokens.ENGINES["citadel, int8"](token_vectors, tmp_path), truth
    )
    assert (name, queries) == ("citadel, int8", 6)
    assert int(parameter) in tokens.EFS and overlap > 0.9 and 0 < p50 <= p95


def test_an_engine_that_never_reaches_the_overlap_is_measured_at_its_best() -> None:
    truth = np.arange(40).reshape(4, 10)
    built = tokens.Built(lambda query, size: truth[query, :size].tolist(), (3, 9, 5))
    assert tokens.row("engine", built, truth)[:3] == ["engine", "9", 0.9]


def test_an_engine_that_is_not_installed_has_no_row(token_vectors: tokens.Tokens, tmp_path: Path) -> None:
    if importlib.util.find_spec("qdrant_edge"):
        pytest.skip("Qdrant Edge is installed")
    file = tmp_path / "tokens.npz"
    arrays: Any = token_vectors._asdict()
    np.savez(file, **arrays)
    np.save(tmp_path / "tokens.exact.npy", tokens.exact(token_vectors))
    [name, reason] = tokens.run_one("Qdrant Edge", file, str(peers.SOURCE), 60)
    assert name == "Qdrant Edge" and "failed with code 1" in reason
