"""`citadel eval`: an index or a run against judgements."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Citadel, write_jsonl

pytest.importorskip("ir_measures", reason="ir-measures is not installed: the extra [eval]")


@pytest.fixture
def beir(index: Path, corpus: Path) -> Path:
    """A BEIR folder: q1 ranks its document first, q2 has no hits, q3 is not judged."""
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


def test_prints_one_line_per_measure(index: Path, beir: Path, citadel: Citadel) -> None:
    done = citadel("eval", index, "--queries", beir / "queries.jsonl", "--qrels", beir / "qrels" / "test.tsv")
    assert done.out == "nDCG@10 0.5000\nRR@10 0.5000\nR@1000 0.5000\n"
    assert done.err == ""


def test_index_of_another_collection_is_refused(index: Path, beir: Path, citadel: Citadel) -> None:
    (beir / "other.txt").write_text("q1 0 x1 1\nq2 0 x2 1\n")
    done = citadel("eval", index, "--queries", beir, "--qrels", beir / "other.txt", code=4)
    assert done.out == ""
    assert f"{index}: none of the 2 judged documents is in this index" in done.err
    (beir / "other.txt").write_text(
        "q1 0 x1 1\nq2 0 d1 1\n"
    )  # one judged document is in the index: 0 is a valid result
    assert (
        citadel("eval", index, "--queries", beir, "--qrels", beir / "other.txt", "--measures", "P@1").out
        == "P@1 0.0000\n"
    )


def test_beir_folder_names_queries_and_judgements(index: Path, beir: Path, citadel: Citadel) -> None:
    assert (
        citadel("eval", index, "--queries", beir, "--qrels", beir, "--measures", "P@1").out == "P@1 0.5000\n"
    )


def test_per_query_and_json(index: Path, beir: Path, citadel: Citadel) -> None:
    command = ["eval", index, "--queries", beir, "--qrels", beir, "--measures", "RR@10", "--per-query"]
    assert citadel(*command).out == "RR@10 q1 1.0000\nRR@10 q2 0.0000\nRR@10 0.5000\n"
    assert json.loads(citadel(*command, "--json").out) == {
        "measures": {"RR@10": 0.5},
        "judged": 2,
        "queries": {"RR@10": {"q1": 1.0, "q2": 0.0}},
    }


def test_run_measures_equal_its_index(index: Path, beir: Path, tmp_path: Path, citadel: Citadel) -> None:
    run = tmp_path / "run.trec"
    citadel("search", index, "--queries", beir, "--run", run, "-k", 1000)
    from_run = citadel("eval", "--run", run, "--qrels", beir / "qrels" / "test.tsv").out
    assert from_run == citadel("eval", index, "--queries", beir, "--qrels", beir).out


def test_trec_qrels(index: Path, beir: Path, tmp_path: Path, citadel: Citadel) -> None:
    (tmp_path / "qrels.txt").write_text("q3 0 d3 2\n")
    done = citadel(
        "eval", index, "--queries", beir, "--qrels", tmp_path / "qrels.txt", "--measures", "nDCG@10 AP"
    )
    assert done.out == "nDCG@10 1.0000\nAP 1.0000\n"


def test_missing_judged_query_scores_0_with_a_warning(
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


def test_bad_run_is_exit_4(beir: Path, citadel: Citadel) -> None:
    (beir / "run.trec").write_text("q1 Q0 d2 1 high tag\n")
    assert (
        "run.trec:1: score 'high'" in citadel("eval", "--run", beir / "run.trec", "--qrels", beir, code=4).err
    )


def test_scifact_with_bm25(data: Path, tmp_path: Path, citadel: Citadel) -> None:
    scifact = data / "eval" / "scifact"
    if not scifact.is_dir():
        pytest.skip("no SciFact in CITADEL_DATA")
    assert "5,183 documents" in citadel("index", scifact, tmp_path / "scifact").out
    done = citadel(
        "eval", tmp_path / "scifact", "--queries", scifact, "--qrels", scifact, "--measures", "nDCG@10"
    )
    name, value = done.out.split()
    assert name == "nDCG@10"
    assert float(value) >= 0.665


# ---- datasets, baselines and written files -----------------------------------------------------------------


def test_dataset_names_queries_and_judgements(index: Path, beir: Path, citadel: Citadel) -> None:
    assert citadel("eval", index, "--dataset", beir, "--measures", "P@1").out == "P@1 0.5000\n"
    done = citadel("eval", index, "--dataset", beir, "--qrels", beir, code=2)
    assert "leave --queries and --qrels out" in done.err


@pytest.fixture
def runs(tmp_path: Path) -> dict[str, Path]:
    """Four queries with d1 at ranks 1 1 1 2, and at 2 2 2 2 in the baseline."""
    files = {}
    for name, ranks in (("mine", [1, 1, 1, 2]), ("base", [2, 2, 2, 2])):
        lines = []
        for query, rank in enumerate(ranks, 1):
            order = ["d1", "d2"] if rank == 1 else ["d2", "d1"]
            lines += [
                f"q{query} Q0 {id} {position} {3 - position} {name}\n" for position, id in enumerate(order, 1)
            ]
        files[name] = tmp_path / f"{name}.trec"
        files[name].write_text("".join(lines))
    files["qrels"] = tmp_path / "qrels.txt"
    files["qrels"].write_text("".join(f"q{query} 0 d1 1\n" for query in range(1, 5)))
    return files


def test_baseline_is_compared_query_by_query(runs: dict[str, Path], citadel: Citadel) -> None:
    command = [
        "eval",
        "--run",
        runs["mine"],
        "--qrels",
        runs["qrels"],
        "--baseline",
        runs["base"],
        "--measures",
        "RR",
    ]
    # Differences ½ ½ ½ 0: mean 3/8, deviation ¼, t = (3/8) / (¼ / 2) = 3, 3 degrees of freedom, p = 0.0577.
    line = citadel(*command).out
    assert line.startswith("RR 0.8750  baseline 0.5000  +0.3750 [+0.1250, +0.5000]  p 0.0577")
    comparison = json.loads(citadel(*command, "--json").out)["baseline"]["RR"]
    assert (comparison["mean"], comparison["t"], comparison["queries"]) == (0.5, pytest.approx(3.0), 4)
    assert comparison["p"] == pytest.approx(0.05767, abs=1e-5)


def test_run_compared_with_itself_has_no_difference(runs: dict[str, Path], citadel: Citadel) -> None:
    done = citadel("eval", "--run", runs["mine"], "--qrels", runs["qrels"], "--baseline", runs["mine"])
    assert all(line.endswith("+0.0000 [+0.0000, +0.0000]  p 1.0000") for line in done.out.splitlines())


def test_run_qrels_and_values_can_be_written(
    index: Path, beir: Path, tmp_path: Path, citadel: Citadel
) -> None:
    files = {name: tmp_path / name for name in ("run.xz", "qrels.trec", "values.json")}
    options = (
        "--save-run",
        files["run.xz"],
        "--save-qrels",
        files["qrels.trec"],
        "--save-queries",
        files["values.json"],
    )
    printed = citadel("eval", index, "--dataset", beir, *options).out
    assert citadel("eval", "--run", files["run.xz"], "--qrels", files["qrels.trec"]).out == printed
    assert json.loads(files["values.json"].read_text())["measures"]["RR@10"] == {"q1": 1.0, "q2": 0.0}
    assert files["qrels.trec"].read_text() == "q1 0 d2 1\nq2 0 d1 1\n"


def test_drop_same_id(tmp_path: Path, citadel: Citadel) -> None:
    (tmp_path / "run.trec").write_text("q1 Q0 q1 1 2.0 x\nq1 Q0 d1 2 1.0 x\n")
    (tmp_path / "qrels.txt").write_text("q1 0 d1 1\n")
    command = ["eval", "--run", tmp_path / "run.trec", "--qrels", tmp_path / "qrels.txt", "--measures", "RR"]
    assert citadel(*command).out == "RR 0.5000\n"
    assert citadel(*command, "--drop-same-id").out == "RR 1.0000\n"


def test_relevant_sets_the_lowest_grade(tmp_path: Path, citadel: Citadel) -> None:
    (tmp_path / "run.trec").write_text("q1 Q0 d1 1 2.0 x\n")
    (tmp_path / "qrels.txt").write_text("q1 0 d1 1\nq1 0 d2 2\n")
    command = [
        "eval",
        "--run",
        tmp_path / "run.trec",
        "--qrels",
        tmp_path / "qrels.txt",
        "--measures",
        "R@10",
    ]
    assert citadel(*command).out == "R@10 0.5000\n"
    assert citadel(*command, "--relevant", 2).out == "R@10 0.0000\n"


def test_runs_of_other_or_fewer_queries(runs: dict[str, Path], tmp_path: Path, citadel: Citadel) -> None:
    (tmp_path / "other.trec").write_text("x1 Q0 d1 1 2.0 x\n")
    (tmp_path / "part.trec").write_text("q1 Q0 d1 1 2.0 x\n")
    (tmp_path / "torn.trec").write_text("q1 Q0 d1 1 2.0 x\nq2 Q0 d1 1")
    command = ["eval", "--qrels", runs["qrels"], "--measures", "RR", "--run"]
    assert (
        "other.trec: none of the judged queries is in this run"
        in citadel(*command, tmp_path / "other.trec", code=4).err
    )
    assert (
        "torn.trec:2: 4 columns where 6 are needed" in citadel(*command, tmp_path / "torn.trec", code=4).err
    )
    done = citadel(*command, runs["mine"], "--baseline", tmp_path / "part.trec")
    assert "3 judged queries not in" in done.err and "part.trec: counted as 0" in done.err


def test_saved_run_fails_if_a_document_id_has_white_space(
    index: Path, beir: Path, tmp_path: Path, citadel: Citadel
) -> None:
    citadel("add", index, write_jsonl(tmp_path / "more.jsonl", [{"id": "d 4", "text": "camel"}]))
    command, run = ["eval", index, "--queries", beir, "--qrels", beir], tmp_path / "run.trec"
    assert "the id 'd 4' does not fit a TREC run" in citadel(*command, "--save-run", run, code=4).err
    assert not run.exists()
    citadel(*command)
