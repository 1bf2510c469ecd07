"""Test collections in the forms they are published in."""

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
    (folder / "queries.jsonl").write_text('{"_id": "q1", "text": "relativity"}\n{"_id": "q2", "text": "rome"}\n')
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


def test_a_beir_folder(beir: Path) -> None:
    found = open_dataset(beir)
    assert (found.name, found.judged, found.qrels) == ("tiny", [("q1", "relativity")], {"q1": {"d1": 1}})
    assert list(found.documents()) == list(found.documents()) == [Document("d1", "E = mc", "Relativity")]
    assert open_dataset(beir, "dev").qrels == {"q1": {"d1": 2}}


@pytest.mark.parametrize(("name", "drops"), [("arguana", True), ("Quora", True), ("scifact", False)])
def test_some_beir_sets_ask_to_drop_the_query_itself(beir: Path, name: str, drops: bool) -> None:
    assert open_dataset(beir.rename(beir.parent / name)).drop_same_id is drops


def test_a_hit_that_is_the_query_is_dropped_and_the_ranks_move_up() -> None:
    hits = (Hit("d1", 3.0, 1), Hit("q1", 2.0, 2), Hit("d2", 1.0, 3))
    assert drop_same_id(Ranking(("q1", "q2"), (hits, hits)), k=2).hits == (
        (Hit("d1", 3.0, 1), Hit("d2", 1.0, 2)),
        (Hit("d1", 3.0, 1), Hit("q1", 2.0, 2)),
    )


def test_msmarco_files(msmarco: Path) -> None:
    found = open_dataset(msmarco)
    assert (found.name, found.judged, found.relevant) == ("msmarco-dev-small", [("1", "seventh")], 1)
    assert [document.id for document in found.documents()] == ["7", "8"]


def test_trec_dl_counts_grade_2_for_recall_but_not_for_ndcg(msmarco: Path) -> None:
    pytest.importorskip("ir_measures", reason="ir-measures is not installed: the extra [eval]")
    found = open_dataset(msmarco, "dl19")
    run = Ranking(("2",), ((Hit("7", 2.0, 1),),))  # grade 1 found, grade 3 missed
    values = evaluate_queries(run, found.qrels, "R@10 RR@10 AP nDCG@10 R(rel=1)@10", found.relevant)
    assert {name: value["2"] for name, value in values.items() if name != "nDCG@10"} == {
        "R@10": 0.0, "RR@10": 0.0, "AP": 0.0, "R(rel=1)@10": 0.5,
    }  # fmt: skip
    assert values["nDCG@10"]["2"] > 0


@pytest.mark.parametrize(
    ("split", "says"), [("dl20", "no msmarco-test2020-queries.tsv"), ("test", "unknown split 'test'")]
)
def test_what_msmarco_lacks_is_named(msmarco: Path, split: str, says: str) -> None:
    with pytest.raises(InputError, match=says):
        open_dataset(msmarco, split)


@pytest.mark.parametrize(
    ("file", "text", "says"),
    [
        ("qrels/test.tsv", "query-id\tcorpus-id\tscore\nq1\td1\n", r"test\.tsv:2: 2 columns"),
        ("qrels/test.tsv", "q1\td1\t1\nq1\td1\t2\n", r"test\.tsv:2: document 'd1' is judged twice"),
        ("queries.jsonl", '{"_id": "q1", "text": "a"}\n{"_id": "q', r"queries\.jsonl:2"),
        ("corpus.jsonl", '{"_id": "d1", "text": "a"}\n{"_id": "d2"', r"corpus\.jsonl:2"),
    ],
)
def test_a_partial_file_is_named_with_its_line(beir: Path, file: str, text: str, says: str) -> None:
    (beir / file).write_text(text)
    with pytest.raises(InputError, match=says):
        list(open_dataset(beir).documents())


def test_a_missing_folder_and_a_folder_without_a_corpus(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such folder"):
        open_dataset(tmp_path / "none")
    with pytest.raises(InputError, match=r"no corpus\.jsonl"):
        open_dataset(tmp_path)


# ---- ir_datasets -------------------------------------------------------------------------------------------------


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
    """A collection registered with ir_datasets itself, its contents in memory."""
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


def test_an_id_of_ir_datasets(stub: str) -> None:
    found = open_dataset(f"ir_datasets:{stub}")
    assert isinstance(found, Dataset)
    assert (found.judged, found.qrels) == ([("1", "relativity")], {"1": {"d1": 2}})
    assert list(found.documents()) == [Document("d1", "E = mc", "Relativity")]
    assert (found.name, found.drop_same_id, found.relevant) == ("citadel-test-arguana", True, 1)


def test_ids_that_cannot_be_used(stub: str) -> None:
    with pytest.raises(InputError, match="unknown ir_datasets id"):
        open_dataset("ir_datasets:no/such/thing")
    with pytest.raises(InputError, match="has no queries"):
        open_dataset("ir_datasets:citadel-test/documents-alone")
    with pytest.raises(UsageError, match="already names its split"):
        open_dataset(f"ir_datasets:{stub}", "test")


def test_what_cannot_be_fetched_says_what_to_do(stub: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import ir_datasets

    def no_network() -> Any:
        raise ConnectionError("no route to host\nand more")

    monkeypatch.setattr(ir_datasets.load(stub), "qrels_iter", no_network)
    with pytest.raises(InputError, match=r"cannot provide it \(no route to host\): check the network"):
        open_dataset(f"ir_datasets:{stub}")


def test_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "ir_datasets", None)
    with pytest.raises(UsageError, match=r"citadel-ir\[datasets\]"):
        open_dataset("ir_datasets:beir/scifact/test")


def test_json_of_nothing_else_is_needed(beir: Path) -> None:
    """Blank lines and a file without a last newline are no partial file."""
    (beir / "queries.jsonl").write_text("\n" + json.dumps({"_id": "q1", "text": "relativity"}))
    assert open_dataset(beir).judged == [("q1", "relativity")]
