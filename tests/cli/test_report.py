"""`citadel measure` and `citadel report`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Citadel, write_jsonl

pytest.importorskip("ir_measures", reason="ir-measures is not installed: the extra [eval]")


@pytest.fixture
def beir(corpus: Path) -> Path:
    folder = corpus.parent
    write_jsonl(
        folder / "queries.jsonl", [{"_id": "q1", "text": "evolution"}, {"_id": "q2", "text": "physics"}]
    )
    (folder / "qrels").mkdir()
    (folder / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\nq1\td2\t1\nq2\td3\t1\n")
    return folder


def test_measure_then_report(beir: Path, tmp_path: Path, citadel: Citadel) -> None:
    out = tmp_path / "measured" / "bm25.json"
    done = citadel("measure", "bm25", "--collection", beir, "--out", out, "--name", "BM25")
    assert done.out.startswith(f"{out}: nDCG@10 ")
    assert "| BM25 |" in citadel("report", out.parent).out
    pytest.importorskip("matplotlib", reason="matplotlib is not installed: the extra [report]")
    written = citadel("report", out.parent, "--out", tmp_path / "report").out.split()
    assert [Path(name).name for name in written] == ["report.md", "report.html"]


def test_fill_measures_a_run_again(beir: Path, tmp_path: Path, citadel: Citadel) -> None:
    out = tmp_path / "m.json"
    first = citadel("measure", "bm25", "--collection", beir, "--out", out).out
    assert citadel("measure", "--fill", out, "--collection", beir).out == first


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("bm25",),
        ("bm25", "--out", "m.json"),
        ("--fill", "m.json"),
        ("bm25", "--fill", "m.json", "--collection", "."),
    ],
)
def test_missing_arguments_are_usage_errors(citadel: Citadel, arguments: tuple[str, ...]) -> None:
    assert "name a MODEL with --collection and --out" in citadel("measure", *arguments, code=2).err


def test_report_of_an_empty_folder_is_exit_4(tmp_path: Path, citadel: Citadel) -> None:
    assert "no measurement below this folder" in citadel("report", tmp_path, code=4).err
