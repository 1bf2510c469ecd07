"""`--hybrid` and `--mode`: build, search, explain, evaluate, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from citadel import Index
from citadel.encode.locate import default_model
from tests.cli.conftest import Citadel

pytestmark = pytest.mark.skipif(default_model() is None, reason="the default model is not installed")

ROWS = [
    {"id": "wing", "text": "the lift and drag of a thin wing"},
    {"id": "delta", "text": "pressure on a delta wing"},
    {"id": "plate", "text": "heat transfer in a flat plate"},
]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("corpus") / "corpus.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return path


@pytest.fixture(scope="module")
def index(corpus: Path) -> Path:
    folder = corpus.parent / "idx"
    with Index.create(folder, model="default", hybrid=True) as made:
        made.add(ROWS)
        made.commit()
    return folder


def test_build_is_repeated_with_the_same_options_only(corpus: Path, tmp_path: Path, citadel: Citadel) -> None:
    build = ["index", str(corpus), str(tmp_path / "idx"), "--model", "default"]
    assert citadel(*build, "--hybrid", "--analyser", "german", "--k1", "1.2").code == 0
    words = Index.open(tmp_path / "idx").settings.words
    assert words is not None and (words.analyser, words.k1) == ("german", 1.2)
    assert "already finished" in citadel(*build, "--hybrid", "--analyser", "german", "--k1", "1.2").out
    done = citadel(*build, code=4)
    assert "this index was built with analyser german" in done.err
    assert citadel("check", str(tmp_path / "idx"), "--deep").code == 0


def test_modes(index: Path, citadel: Citadel) -> None:
    ids = {}
    for mode in ("model", "bm25", "hybrid"):
        done = citadel("search", str(index), "thin wing", "--mode", mode, "--json")
        ids[mode] = [hit["id"] for hit in json.loads(done.out)["hits"]]
    assert ids == {
        "model": ["wing", "delta", "plate"],
        "bm25": ["wing", "delta"],
        "hybrid": ["wing", "delta", "plate"],
    }
    default = citadel("search", str(index), "thin wing", "--json")
    assert [hit["id"] for hit in json.loads(default.out)["hits"]] == ids["model"]
    done = citadel(
        "search", str(index), "thin wing", "--mode", "hybrid", "--fusion", "rrf", "--weights", "1,3"
    )
    assert done.code == 0 and done.out.splitlines()[0].split()[2] == "wing"


def test_explanations_show_each_part(index: Path, citadel: Citadel) -> None:
    done = citadel("explain", str(index), "thin wing", "wing", "--mode", "hybrid")
    assert done.code == 0
    assert [line.split()[0] for line in done.out.splitlines()[1:4]] == ["part", "model", "bm25"]
    assert "(semantic)" in done.out and "linear 1.0000" in done.out
    parts = json.loads(citadel("explain", str(index), "thin wing", "delta", "--mode", "hybrid", "--json").out)
    assert [part["name"] for part in parts["parts"]] == ["model", "bm25"]
    done = citadel("explain", str(index), "thin wing", "wing", "--mode", "bm25", "--html", "-")
    assert done.code == 0 and "<html" in done.out


def test_eval_measures_a_mode(index: Path, tmp_path: Path, citadel: Citadel) -> None:
    pytest.importorskip("ir_measures")
    (tmp_path / "queries.jsonl").write_text('{"id": "q", "text": "heat"}\n')
    (tmp_path / "qrels.tsv").write_text("query-id\tcorpus-id\tscore\nq\tplate\t1\n")
    files = ["--queries", str(tmp_path / "queries.jsonl"), "--qrels", str(tmp_path / "qrels.tsv")]
    for mode in ("bm25", "hybrid"):
        done = citadel("eval", str(index), *files, "--mode", mode, "--json")
        assert done.code == 0 and json.loads(done.out)["measures"]["nDCG@10"] == 1.0, done.out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--mode", "both"], "--mode both: choose one of model, bm25, hybrid"),
        (["--fusion", "rrf"], "--fusion and --weights are for --mode hybrid"),
        (["--mode", "hybrid", "--fusion", "max"], "unknown fusion method 'max'"),
        (["--mode", "hybrid", "--weights", "0,0"], "the weights sum to 0"),
        (["--mode", "hybrid", "--weights", "1"], "1 weights for 2 rankings"),
        (["--mode", "hybrid", "--weights", "a,b"], "--weights a,b: write two numbers, such as 0.7,0.3"),
    ],
)
def test_bad_options(index: Path, options: list[str], message: str, citadel: Citadel) -> None:
    done = citadel("search", str(index), "wing", *options, code=2)
    assert message in done.err


def test_hybrid_needs_a_model(corpus: Path, tmp_path: Path, citadel: Citadel) -> None:
    done = citadel("index", str(corpus), str(tmp_path / "idx"), "--model", "bm25", "--hybrid", code=2)
    assert "--hybrid is for a model: bm25 has these lists already" in done.err
    assert citadel("index", str(corpus), str(tmp_path / "words"), "--model", "bm25").code == 0
    done = citadel("search", str(tmp_path / "words"), "wing", "--mode", "hybrid", code=2)
    assert "no BM25 lists beside its model's" in done.err
