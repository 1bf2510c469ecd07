"""Test collections in their published formats."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from citadel.errors import InputError, UsageError
from citadel.eval import Dataset, drop_same_id, evaluate_queries, open_dataset
from citadel.types import Document, Hit, Ranking


@pytest.fixture
def beir(tmp_path: Path) -> Path:
    folder = tmp_path / "tiny"
    (folder / "qrels").mkdir(parents=True)
    (folder / "corpus.jsonl").write_text('{"_id": "d1", "title": "Relativity", "text": "E = mc"}\n')
    (folder / "queries.jsonl").write_text(
        '{"_id": "q1", "text": "relativity"}\n{"_id": "q2", "text": "rome"}\n'
    )
    for split, grade in (("test", 1), ("dev", 2)):
        (folder / "qrels" / f"{split}.tsv").write_text(f"query-id\tcorpus-id\tscore\nq1\td1\t{grade}\n")
    return folder


@pytest.fixture
def msmarco(tmp_path: Path) -> Path:
    folder = tmp_path / "msmarco"
    folder.mkdir()
    with gzip.open(folder / "collection.tsv.gz", "wt") as file:
        file.write("7\tthe seventh passage\n8\tthe eighth passage\n")
    (folder / "queries.dev.small.tsv").write_text("1\tseventh\n")
    (folder / "qrels.dev.small.tsv").write_text("1\t0\t7\t1\n")
    (folder / "msmarco-test2019-queries.tsv").write_text("2\teighth\n")
    (folder / "2019qrels-pass.txt").write_text("2 Q0 7 1\n2 Q0 8 3\n")
    return folder


def test_beir_folder(beir: Path) -> None:
    dataset = open_dataset(beir)
    assert (dataset.name, dataset.judged, dataset.qrels) == (
        "tiny",
        [("q1", "relativity")],
        {"q1": {"d1": 1}},
    )
    assert list(dataset.documents()) == list(dataset.documents()) == [Document("d1", "E = mc", "Relativity")]
    assert open_dataset(beir, "dev").qrels == {"q1": {"d1": 2}}


@pytest.mark.parametrize(("name", "drops"), [("arguana", True), ("Quora", True), ("scifact", False)])
def test_arguana_and_quora_drop_the_query_document(beir: Path, name: str, drops: bool) -> None:
    assert open_dataset(beir.rename(beir.parent / name)).drop_same_id is drops


def test_drop_same_id_renumbers_ranks() -> None:
    hits = (Hit("d1", 3.0, 1), Hit("q1", 2.0, 2), Hit("d2", 1.0, 3))
    assert drop_same_id(Ranking(("q1", "q2"), (hits, hits)), k=2).hits == (
        (Hit("d1", 3.0, 1), Hit("d2", 1.0, 2)),
        (Hit("d1", 3.0, 1), Hit("q1", 2.0, 2)),
    )


def test_msmarco_files(msmarco: Path) -> None:
    dataset = open_dataset(msmarco)
    assert (dataset.name, dataset.judged, dataset.relevant) == ("msmarco-dev-small", [("1", "seventh")], 1)
    assert [document.id for document in dataset.documents()] == ["7", "8"]


def test_trec_dl_uses_grade_2_for_binary_measures(msmarco: Path) -> None:
    pytest.importorskip("ir_measures", reason="ir-measures is not installed: the extra [eval]")
    dataset = open_dataset(msmarco, "dl19")
    run = Ranking(("2",), ((Hit("7", 2.0, 1),),))  # retrieves grade 1, misses grade 3
    values = evaluate_queries(run, dataset.qrels, "R@10 RR@10 AP nDCG@10 R(rel=1)@10", dataset.relevant)
    assert {name: value["2"] for name, value in values.items() if name != "nDCG@10"} == {
        "R@10": 0.0, "RR@10": 0.0, "AP": 0.0, "R(rel=1)@10": 0.5,
    }  # fmt: skip
    assert values["nDCG@10"]["2"] > 0


@pytest.mark.parametrize(
    ("split", "message"), [("dl20", "no msmarco-test2020-queries.tsv"), ("test", "unknown split 'test'")]
)
def test_missing_msmarco_split_is_named(msmarco: Path, split: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        open_dataset(msmarco, split)


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("qrels/test.tsv", "query-id\tcorpus-id\tscore\nq1\td1\n", r"test\.tsv:2: 2 columns"),
        ("qrels/test.tsv", "q1\td1\t1\nq1\td1\t2\n", r"test\.tsv:2: document 'd1' is judged twice"),
        ("queries.jsonl", '{"_id": "q1", "text": "a"}\n{"_id": "q', r"queries\.jsonl:2"),
        ("corpus.jsonl", '{"_id": "d1", "text": "a"}\n{"_id": "d2"', r"corpus\.jsonl:2"),
    ],
)
def test_bad_line_is_named(beir: Path, file: str, text: str, message: str) -> None:
    (beir / file).write_text(text)
    with pytest.raises(InputError, match=message):
        list(open_dataset(beir).documents())


def test_missing_folder_and_missing_corpus(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such folder"):
        open_dataset(tmp_path / "none")
    with pytest.raises(InputError, match=r"no corpus\.jsonl"):
        open_dataset(tmp_path)


# ir_datasets


class Doc(NamedTuple):
    doc_id: str
    title: str
    text: str


class Topic(NamedTuple):
    query_id: str
    title: str
    narrative: str


class Judgement(NamedTuple):
    query_id: str
    doc_id: str
    relevance: int
    iteration: str = "0"


@pytest.fixture
def stub() -> str:
    """A collection in memory, registered with ir_datasets."""
    library = pytest.importorskip("ir_datasets", reason="ir_datasets is not installed: the extra [datasets]")
    formats = library.formats

    class Docs(formats.BaseDocs):  # type: ignore[misc, name-defined]
        def docs_iter(self) -> Any:
            return iter([Doc("d1", "Relativity", "E = mc")])

        def docs_cls(self) -> Any:
            return Doc

    class Queries(formats.BaseQueries):  # type: ignore[misc, name-defined]
        def queries_iter(self) -> Any:
            return iter([Topic("1", "relativity", "not about families")])

        def queries_cls(self) -> Any:
            return Topic

    class Qrels(formats.BaseQrels):  # type: ignore[misc, name-defined]
        def qrels_iter(self) -> Any:
            return iter([Judgement("1", "d1", 2)])

        def qrels_cls(self) -> Any:
            return Judgement

    name = "citadel-test/arguana"
    if name not in library.registry._registered:
        library.registry.register(name, library.Dataset(Docs(), Queries(), Qrels()))
        library.registry.register("citadel-test/documents-alone", library.Dataset(Docs()))
    return name


def test_ir_datasets_id(stub: str) -> None:
    dataset = open_dataset(f"ir_datasets:{stub}")
    assert isinstance(dataset, Dataset)
    assert (dataset.judged, dataset.qrels) == ([("1", "relativity")], {"1": {"d1": 2}})
    assert list(dataset.documents()) == [Document("d1", "E = mc", "Relativity")]
    assert (dataset.name, dataset.drop_same_id, dataset.relevant) == ("citadel-test-arguana", True, 1)


def test_unusable_ir_datasets_ids(stub: str) -> None:
    with pytest.raises(InputError, match="unknown ir_datasets id"):
        open_dataset("ir_datasets:no/such/thing")
    with pytest.raises(InputError, match="has no queries"):
        open_dataset("ir_datasets:citadel-test/documents-alone")
    with pytest.raises(UsageError, match="already names its split"):
        open_dataset(f"ir_datasets:{stub}", "test")


def test_failed_download_says_what_to_do(stub: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import ir_datasets

    def no_network() -> Any:
        raise ConnectionError("no route to host\nand more")

    monkeypatch.setattr(ir_datasets.load(stub), "qrels_iter", no_network)
    with pytest.raises(InputError, match=r"cannot provide it \(no route to host\): check the network"):
        open_dataset(f"ir_datasets:{stub}")


def test_missing_ir_datasets_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "ir_datasets", None)
    with pytest.raises(UsageError, match=r"citadel-ir\[datasets\]"):
        open_dataset("ir_datasets:beir/scifact/test")


def test_blank_lines_and_missing_last_newline(beir: Path) -> None:
    """Neither makes a file partial."""
    (beir / "queries.jsonl").write_text("\n" + json.dumps({"_id": "q1", "text": "relativity"}))
    assert open_dataset(beir).judged == [("q1", "relativity")]
