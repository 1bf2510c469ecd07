"""The PyTerrier transformers: PyTerrier's own test case, experiments, rank cutoffs and errors."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

import citadel

pytest.importorskip("pyterrier", reason="pyterrier is not installed: pip install 'citadel-ir[pyterrier]'")

import pandas as pd
import pyterrier as pt
from pyterrier import testing

from citadel.integrations.pyterrier import CitadelIndexer, CitadelRetriever

pytestmark = pytest.mark.filterwarnings(
    "ignore:(?s).*TransfomerTestCase",  # its report
    "ignore:The inplace keyword",  # PyTerrier's own calls of pandas
)
DATA = Path(os.environ.get("CITADEL_DATA", "data")) / "eval" / "cranfield"
DOCUMENTS: list[dict[str, Any]] = [
    {"docno": "d1", "title": "T", "text": "Einstein proposed relativity", "year": 1905},
    {"docno": "d2", "text": "Darwin proposed evolution", "year": 1859},
    {"docno": "d3", "text": "Curie isolated radium"},
]
QUERIES = pd.DataFrame(
    [["q1", "who proposed relativity", "x"], ["q2", "radium", "y"]], columns=["qid", "query", "kept"]
)


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> citadel.Index:
    return CitadelIndexer(str(tmp_path_factory.mktemp("pyterrier") / "idx"), model="bm25").index(DOCUMENTS)


class TestRetriever(testing.TransformerTestCase):
    @staticmethod
    def get_transformer() -> pt.Transformer:
        folder = tempfile.mkdtemp()
        return CitadelRetriever(CitadelIndexer(folder, model="bm25").index(DOCUMENTS), metadata=["text"])


class TestRetrieverOfADefaultIndex(testing.TransformerTestCase):
    @staticmethod
    def get_transformer() -> pt.Transformer:
        return CitadelRetriever(CitadelIndexer(tempfile.mkdtemp()).index([]))


def test_results_equal_those_of_the_index(index: citadel.Index) -> None:
    found = CitadelRetriever(index, metadata=["text", "title", "year"]).transform(QUERIES)
    assert list(found.columns) == ["qid", "query", "kept", "docno", "score", "rank", "text", "title", "year"]
    rows = found.to_dict("records")
    hits = index.search("who proposed relativity", k=9)
    first = [row for row in rows if row["qid"] == "q1"]
    assert [(row["docno"], row["score"], row["rank"]) for row in first] == [
        (hit.id, hit.score, hit.rank - 1) for hit in hits
    ]
    assert first[0]["kept"] == "x" and first[0]["title"] == "T" and first[0]["year"] == 1905
    [last] = [row for row in rows if row["qid"] == "q2"]
    assert last["docno"] == "d3" and last["kept"] == "y"


def test_options_of_search(index: citadel.Index) -> None:
    old = CitadelRetriever(index, filter={"year": {"$lt": 1900}})
    assert old.search("proposed")["docno"].tolist() == ["d2"]
    assert CitadelRetriever(index, min_score=99.0).search("proposed").empty


def test_rank_cutoffs_are_fused(index: citadel.Index) -> None:
    retriever = CitadelRetriever(index, metadata=["text"], filter={"year": {"$gt": 0}})
    fused: Any = (retriever % 1).compile()
    assert isinstance(fused, CitadelRetriever)
    assert (fused.k, fused.metadata, fused.options) == (1, ("text",), retriever.options)
    again: Any = (fused % 5).compile()
    assert again.k == 1
    pd.testing.assert_frame_equal(fused.transform(QUERIES), (retriever % 1).transform(QUERIES))


def test_operators(index: citadel.Index) -> None:
    retriever = CitadelRetriever(index)
    doubled = (2 * retriever).transform(QUERIES)
    assert doubled["score"].tolist() == (retriever.transform(QUERIES)["score"] * 2).tolist()
    joined = (retriever + retriever).transform(QUERIES)
    assert joined.sort_values(["qid", "rank"])["docno"].tolist() == doubled["docno"].tolist()


def test_empty_input(index: citadel.Index) -> None:
    found = CitadelRetriever(index).transform(QUERIES.iloc[:0])
    assert found.empty and list(found.columns) == ["qid", "query", "kept", "docno", "score", "rank"]


def test_indexer_appends_or_replaces(tmp_path: Path) -> None:
    indexer = CitadelIndexer(str(tmp_path / "idx"), model="bm25")
    assert indexer.index_inputs() == [["docno", "text"]]
    indexer.index(DOCUMENTS[:2])
    assert len(indexer.index(iter(DOCUMENTS[1:]))) == 3
    assert len(CitadelIndexer(str(tmp_path / "idx"), model="bm25", overwrite=True).index(DOCUMENTS[:1])) == 1
    with citadel.Index.open(tmp_path / "idx") as other:  # the lock is free
        other.delete("d1")
        other.commit()


def test_errors(index: citadel.Index, tmp_path: Path) -> None:
    with pytest.raises(citadel.InputError, match="docno"):
        CitadelIndexer(str(tmp_path / "idx"), model="bm25").index([*DOCUMENTS, {"text": "x"}])
    assert len(citadel.Index.open(tmp_path / "idx")) == 0
    with pytest.raises(citadel.UsageError, match="score"):
        CitadelRetriever(index, metadata=["score"])
    with pytest.raises(citadel.IndexNotFoundError):
        CitadelRetriever(tmp_path / "misspelt")
    with pytest.raises(pt.validate.InputValidationError):
        CitadelRetriever(index).transform(QUERIES[["qid"]])


def test_no_java_is_started(index: citadel.Index) -> None:
    CitadelRetriever(index).transform(QUERIES)
    assert not pt.java.started()


def read(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


@pytest.mark.skipif(not DATA.is_dir(), reason="no Cranfield collection: set CITADEL_DATA")
def test_experiment_agrees_with_citadel_eval(tmp_path: Path) -> None:
    corpus = [
        {"docno": row["_id"], "title": row.get("title", ""), "text": row["text"]}
        for row in read(DATA / "corpus.jsonl")
    ]
    queries = pd.DataFrame(
        [[row["_id"], row["text"]] for row in read(DATA / "queries.jsonl")], columns=["qid", "query"]
    )
    lines = (DATA / "qrels" / "test.tsv").read_text().splitlines()[1:]
    qrels = pd.DataFrame([line.split("\t") for line in lines], columns=["qid", "docno", "label"])
    qrels["label"] = qrels["label"].astype(int)
    retriever = CitadelRetriever(CitadelIndexer(str(tmp_path / "idx"), model="bm25").index(corpus))
    from ir_measures import AP, RR, R, nDCG

    measures = [nDCG @ 10, R @ 100, RR @ 10, AP]
    judged = queries[queries["qid"].isin(qrels["qid"])]
    [row] = pt.Experiment([retriever], judged, qrels, measures).to_dict("records")
    command = [
        sys.executable,
        "-m",
        "citadel",
        "eval",
        str(tmp_path / "idx"),
        "--queries",
        str(DATA),
        "--json",
    ]
    options = ["--qrels", str(DATA), "--measures", " ".join(map(str, measures))]
    done = subprocess.run([*command, *options], capture_output=True, text=True, check=True)
    ours = json.loads(done.stdout)["measures"]
    assert {name: row[name] for name in ours} == pytest.approx(
        ours, abs=1e-6
    )  # PyTerrier orders equal scores by docno
    assert ours["nDCG@10"] > 0.3
