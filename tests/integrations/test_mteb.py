"""The model for mteb: mteb's mock tasks, reranking, odd queries, and SciFact against `citadel eval`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import citadel

pytest.importorskip("mteb", reason="mteb is not installed: pip install 'citadel-ir[mteb]'")

import mteb
from datasets import Dataset
from mteb.abstasks import AbsTaskRetrieval
from mteb.abstasks.task_metadata import TaskMetadata
from mteb.models import EncoderProtocol, SearchProtocol

from citadel.integrations.mteb import CitadelSearch

pytestmark = pytest.mark.slow  # the import alone takes seconds
MODEL = Path(__file__).parents[2] / "models" / "small-en"
DATA = Path(os.environ.get("CITADEL_DATA", "data")) / "eval" / "scifact"
TASK: Any = {"task_metadata": SimpleNamespace(name="A task/1"), "hf_split": "test", "hf_subset": "default"}
CORPUS: list[dict[str, Any]] = [
    {"id": "d1", "title": "Relativity", "text": "Einstein proposed it."},
    {"id": "d2", "title": None, "text": "Darwin proposed evolution."},
    {"id": "d3", "text": ""},
]


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def search(model: CitadelSearch, *texts: Any, **options: Any) -> dict[str, dict[str, float]]:
    queries = [{"id": f"q{number}", "text": text} for number, text in enumerate(texts, 1)]
    return model.search(queries, **{**TASK, "top_k": 10, **options})


@pytest.mark.parametrize("name", ["bm25", "default"])
@pytest.mark.filterwarnings("ignore")  # of mteb and its dependencies
def test_all_compatible_mock_tasks_pass(name: str, default_model: Path) -> None:
    model = CitadelSearch(model="bm25") if name == "bm25" else CitadelSearch()
    assert model.mteb_model_meta.name == f"citadel/{default_model.name if name == 'default' else name}"
    assert isinstance(model, SearchProtocol) and not isinstance(model, EncoderProtocol)
    result = mteb.mock_run(model)
    done = {name for name, status in result.items() if status is not None}
    assert result.all_passed and {"MockRetrievalTask", "MockRerankingTask", "MockRetrievalDialogTask"} <= done


def test_index_and_search(tmp_path: Path) -> None:
    model = CitadelSearch(tmp_path, model="bm25")
    model.index(CORPUS, **TASK)
    found = search(model, "who proposed relativity", "…", "zebra")
    assert list(found["q1"]) == ["d1", "d2"] and found["q2"] == found["q3"] == {}
    with citadel.Index.open(tmp_path / "A_task_1-test-default") as index:
        assert {hit.id: hit.score for hit in index.search("who proposed relativity")} == found["q1"]
    assert list(search(model, "proposed", top_k=1)["q1"]) == ["d1"]
    model.index(CORPUS[:1], **TASK)  # another corpus of this task replaces the first
    assert list(search(model, "proposed")["q1"]) == ["d1"]


def test_reranking_ranks_the_candidates_only() -> None:
    model = CitadelSearch(model="bm25")
    model.index(CORPUS, **TASK)
    found = search(model, "proposed", "evolution", "…", top_ranked={"q1": ["d2", "d3"], "q3": ["d1"]})
    assert [list(each) for each in found.values()] == [["d2"], [], []]


def test_instructions_and_conversations() -> None:
    model = CitadelSearch(model="bm25")
    model.index(CORPUS, **TASK)
    rows: list[dict[str, Any]] = [
        {"id": "q1", "text": "zebra", "instruction": "evolution"},
        {
            "id": "q2",
            "text": [{"role": "user", "content": "zebra"}, {"role": "assistant", "content": "relativity"}],
        },
        {"id": "q3", "text": ["zebra", "relativity"], "instruction": None},
    ]
    found = model.search(rows, **TASK, top_k=1)
    assert [list(each) for each in found.values()] == [["d2"], ["d1"], ["d1"]]


def test_search_before_index_is_an_error() -> None:
    with pytest.raises(citadel.UsageError, match="call index"):
        search(CitadelSearch(model="bm25"), "x")


NAMED: list[tuple[dict[str, Any], str]] = [
    ({}, "small-en"),
    ({"model": "default"}, "small-en"),
    ({"model": MODEL}, "small-en"),
    ({"model": f"{MODEL}/", "tau": 0.5}, "small-en"),
    ({"hybrid": True, "k1": 1.2}, "small-en"),
    ({"model": "bm25"}, "bm25"),
    ({"k1": 1.2}, "bm25"),
    ({"k1": None}, "small-en"),
    ({"router": "bm25"}, "bm25"),
]


@pytest.mark.parametrize(("options", "name"), NAMED, ids=str)
def test_the_named_model_encodes(
    options: dict[str, Any], name: str, default_model: Path, tmp_path: Path
) -> None:
    model = CitadelSearch(tmp_path, **options)
    assert model.mteb_model_meta.name == f"citadel/{name}"
    assert model.mteb_model_meta.model_type == (["sparse"] if name == "bm25" else ["late-interaction"])
    model.index([], **TASK)
    with citadel.Index.open(tmp_path / "A_task_1-test-default") as index:
        assert (index.settings.router == "bm25") is (name == "bm25")


def test_the_variable_names_the_model(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CITADEL_MODEL", "bm25")
    assert CitadelSearch().mteb_model_meta.name == "citadel/bm25"
    (tmp_path / "mine").symlink_to(MODEL)
    monkeypatch.setenv("CITADEL_MODEL", str(tmp_path / "mine"))
    assert CitadelSearch().mteb_model_meta.name == "citadel/mine"


def test_wrong_models_are_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(citadel.InputError, match="no such model folder"):
        CitadelSearch(model=tmp_path / "gone")
    with pytest.raises(citadel.UsageError, match="k1 is for bm25"):
        CitadelSearch(model=MODEL, k1=1.2)


def read(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


class SciFact(AbsTaskRetrieval):
    """SciFact from the data folder; mteb's own would be downloaded."""

    metadata = TaskMetadata(
        name="SciFactFromDisk",
        description="SciFact",
        dataset={"path": "NA", "revision": "NA"},
        type="Retrieval",
        category="t2t",
        modalities=["text"],
        eval_splits=["test"],
        eval_langs=["eng-Latn"],
        main_score="ndcg_at_10",
        date=None,
        domains=None,
        task_subtypes=None,
        license=None,
        annotations_creators=None,
        dialect=None,
        sample_creation=None,
        bibtex_citation="",
    )

    def load_data(self, num_proc: int | None = None, **kwargs: Any) -> None:
        qrels: dict[str, dict[str, int]] = {}
        for line in (DATA / "qrels" / "test.tsv").read_text().splitlines()[1:]:
            query, document, grade = line.split("\t")
            qrels.setdefault(query, {})[document] = int(grade)
        corpus = [
            {"id": row["_id"], "title": row["title"], "text": row["text"]}
            for row in read(DATA / "corpus.jsonl")
        ]
        queries = [
            {"id": row["_id"], "text": row["text"]}
            for row in read(DATA / "queries.jsonl")
            if row["_id"] in qrels
        ]
        split: Any = {
            "corpus": Dataset.from_list(corpus),
            "queries": Dataset.from_list(queries),
            "relevant_docs": qrels,
            "top_ranked": None,
        }
        self.dataset = {"default": {"test": split}}
        self.data_loaded = True


@pytest.mark.skipif(not DATA.is_dir(), reason="no SciFact: set CITADEL_DATA")
@pytest.mark.filterwarnings("ignore")  # of mteb and its dependencies
@pytest.mark.parametrize(("name", "least"), [("bm25", 0.65), ("default", 0.74)], ids=["bm25", "default"])
def test_scifact_agrees_with_citadel_eval(name: str, least: float, tmp_path: Path) -> None:
    model = CitadelSearch(tmp_path, model=name)
    [result] = mteb.evaluate(model, [SciFact()], cache=None, show_progress_bar=False).task_results
    [theirs] = result.scores["test"]
    measures = {"nDCG@10": "ndcg_at_10", "R@100": "recall_at_100", "AP@1000": "map_at_1000"}
    index = str(tmp_path / "SciFactFromDisk-test-default")
    command = [sys.executable, "-m", "citadel", "eval", index, "--queries", str(DATA), "--qrels", str(DATA)]
    options = ["--measures", " ".join(measures), "--json"]
    done = subprocess.run([*command, *options], capture_output=True, text=True, check=True)
    ours = json.loads(done.stdout)["measures"]
    assert {name: theirs[measures[name]] for name in ours} == pytest.approx(ours, abs=1e-4)
    assert ours["nDCG@10"] > least
