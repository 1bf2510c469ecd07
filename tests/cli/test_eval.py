"""`citadel eval`: an index or a run against judgements."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Citadel, write_jsonl

pytest.importorskip("ir_measures", reason="ir-measures is not installed: the extra [eval]")


@pytest.fixture
def beir(index: Path, corpus: Path) -> Path:
    """The corpus' folder with queries and judgements: q1 finds its document first, q2 none, q3 is not judged."""
    folder = corpus.parent
    rows: list[dict[str, object]] = [
        {"_id": "q1", "text": "evolution"},
        {"_id": "q2", "text": "zebra"},
        {"_id": "q3", "text": "gravity"},
    ]
    write_jsonl(folder / "queries.jsonl", rows)
    (folder / "qrels").mkdir()
    (folder / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\nq1\td2\t1\nq2\td1\t1\n")
    return folder


def test_a_line_per_measure(index: Path, beir: Path, citadel: Citadel) -> None:
    done = citadel("eval", index, "--queries", beir / "queries.jsonl", "--qrels", beir / "qrels" / "test.tsv")
    assert done.out == "nDCG@10 0.5000\nRR@10 0.5000\nR@1000 0.5000\n"
    assert done.err == ""


def test_a_beir_folder_is_enough(index: Path, beir: Path, citadel: Citadel) -> None:
    assert citadel("eval", index, "--queries", beir, "--qrels", beir, "--measures", "P@1").out == "P@1 0.5000\n"


def test_per_query_and_json(index: Path, beir: Path, citadel: Citadel) -> None:
    command = ["eval", index, "--queries", beir, "--qrels", beir, "--measures", "RR@10", "--per-query"]
    assert citadel(*command).out == "RR@10 q1 1.0000\nRR@10 q2 0.0000\nRR@10 0.5000\n"
    assert json.loads(citadel(*command, "--json").out) == {
        "measures": {"RR@10": 0.5},
        "judged": 2,
        "queries": {"RR@10": {"q1": 1.0, "q2": 0.0}},
    }


def test_a_run_measures_like_the_index_it_came_from(index: Path, beir: Path, tmp_path: Path, citadel: Citadel) -> None:
    run = tmp_path / "run.trec"
    citadel("search", index, "--queries", beir, "--run", run)
    from_run = citadel("eval", "--run", run, "--qrels", beir / "qrels" / "test.tsv").out
    assert from_run == citadel("eval", index, "--queries", beir, "--qrels", beir).out


def test_trec_qrels(index: Path, beir: Path, tmp_path: Path, citadel: Citadel) -> None:
    (tmp_path / "qrels.txt").write_text("q3 0 d3 2\n")
    done = citadel("eval", index, "--queries", beir, "--qrels", tmp_path / "qrels.txt", "--measures", "nDCG@10 AP")
    assert done.out == "nDCG@10 1.0000\nAP 1.0000\n"


def test_a_judged_query_that_is_missing_scores_0_and_is_told(
    index: Path, beir: Path, tmp_path: Path, citadel: Citadel
) -> None:
    (tmp_path / "qrels.txt").write_text("q1 0 d2 1\nq9 0 d1 1\n")
    done = citadel("eval", index, "--queries", beir, "--qrels", tmp_path / "qrels.txt", "--measures", "RR@10")
    assert done.out == "RR@10 0.5000\n"
    assert "1 judged query not in" in done.err


@pytest.mark.parametrize(
    ("qrels", "measures", "code", "message"),
    [
        ("q1 0 d2 1\n", "nDCG@ten", 2, "unknown measure 'nDCG@ten'"),
        ("q1 0 d2\n", "RR@10", 4, "qrels.txt:1: 3 columns"),
        ("", "RR@10", 4, "no judgement"),
    ],
)
def test_bad_measures_and_judgements(
    qrels: str, measures: str, code: int, message: str, index: Path, beir: Path, citadel: Citadel
) -> None:
    (beir / "qrels.txt").write_text(qrels)
    command = ["eval", index, "--queries", beir, "--qrels", beir / "qrels.txt", "--measures", measures]
    assert message in citadel(*command, code=code).err


def test_a_bad_run_is_exit_4(beir: Path, citadel: Citadel) -> None:
    (beir / "run.trec").write_text("q1 Q0 d2 1 high tag\n")
    assert "run.trec:1: score 'high'" in citadel("eval", "--run", beir / "run.trec", "--qrels", beir, code=4).err


def test_scifact_with_bm25(data: Path, tmp_path: Path, citadel: Citadel) -> None:
    scifact = data / "eval" / "scifact"
    if not scifact.is_dir():
        pytest.skip("no SciFact in CITADEL_DATA")
    assert "5,183 documents" in citadel("index", scifact, tmp_path / "scifact").out
    done = citadel("eval", tmp_path / "scifact", "--queries", scifact, "--qrels", scifact, "--measures", "nDCG@10")
    name, value = done.out.split()
    assert name == "nDCG@10"
    assert float(value) >= 0.665
