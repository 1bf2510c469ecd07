"""Commands with a model: `export`, `index`, `add`, `search`, `eval` and `explain`."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Citadel, in_process, write_jsonl
from tests.support.models import ROUTERS, ModelFolder, tiny_config, tiny_tokenizer, write_checkpoint


@pytest.mark.parametrize("router", ROUTERS)
def test_from_a_checkpoint_to_a_hit(router: str, corpus: Path, tmp_path: Path, citadel: Citadel) -> None:
    checkpoint = write_checkpoint(tmp_path / "checkpoint", tiny_config(router))
    done = citadel("export", checkpoint, "--out", tmp_path / "model", "--precision", "int8")
    assert done.out.endswith("MB\n")
    built = citadel("index", corpus, tmp_path / "idx", "--model", tmp_path / "model")
    assert "3 documents" in built.out
    question = ["darwin proposed evolution.", "--json", "-k", "1", "--model", tmp_path / "model"]
    done = citadel("search", tmp_path / "idx", *question)
    [hit] = json.loads(done.out)["hits"]
    assert (
        hit["id"] == "d2" or router != "all_to_all"
    )  # random weights: only there is a text nearest to itself


@pytest.fixture
def index(corpus: Path, tmp_path: Path, citadel: Citadel, tiny_model: ModelFolder) -> Path:
    citadel("index", corpus, tmp_path / "idx", "--model", tiny_model())
    return tmp_path / "idx"


def test_finished_build_is_reported(
    index: Path, corpus: Path, tiny_model: ModelFolder, citadel: Citadel
) -> None:
    again = citadel("index", corpus, index, "--model", tiny_model(), "--codec", "int8", "--threads", "1")
    assert "already finished" in again.out


def test_model_may_move_but_not_change(
    index: Path, corpus: Path, tmp_path: Path, tiny_model: ModelFolder, citadel: Citadel
) -> None:
    shutil.copytree(tiny_model(), tmp_path / "moved")
    assert "already finished" in citadel("index", corpus, index, "--model", tmp_path / "moved").out
    done = citadel("index", corpus, index, "--model", tiny_model(precision="int8"), code=4)
    assert "built with model" in done.err
    assert "its default" in citadel("index", corpus, index, code=4).err
    assert "tau" in citadel("index", corpus, index, "--model", tiny_model(), "--tau", "0.5", code=4).err


def test_resumed_build_has_equal_rankings(
    corpus: Path, index: Path, tmp_path: Path, tiny_model: ModelFolder, citadel: Citadel
) -> None:
    whole = corpus.read_text()
    corpus.write_text(whole[:-1] + "\nnot json\n")
    options = ["--model", tiny_model(), "--commit-bytes", "1"]
    citadel("index", corpus, tmp_path / "stopped", *options, code=4)
    corpus.write_text(whole)
    assert "resuming after line 3" in citadel("index", corpus, tmp_path / "stopped", *options).err
    query = ["who proposed", "--json", "--model", tiny_model()]
    answers = [citadel("search", path, *query).out for path in (index, tmp_path / "stopped")]
    assert answers[0] == answers[1]


def test_add_counts_split_documents(
    index: Path, tmp_path: Path, citadel: Citadel, tiny_model: ModelFolder
) -> None:
    more = write_jsonl(
        tmp_path / "more.jsonl", [{"id": "d4", "text": "rome " * 40}, {"id": "d5", "text": "rome"}]
    )
    done = citadel("add", index, more, "--model", tiny_model())
    assert "2 documents added, 1 split; 5 in total" in done.out
    assert not done.err
    done = citadel("search", index, "who " * 99, "--json", "--model", tiny_model())
    assert json.loads(done.out)["query_cut"]
    assert "query 1: cut at the" in done.err
    assert json.loads(citadel("stats", index, "--json").out)["counts"] == {"split": 1}


def test_eval(index: Path, tmp_path: Path, citadel: Citadel, tiny_model: ModelFolder) -> None:
    pytest.importorskip("ir_measures", reason="ir-measures is not installed: `make setup`")
    queries = write_jsonl(
        tmp_path / "queries.jsonl", [{"_id": "q1", "text": "newton proposed gravity in physics."}]
    )
    qrels = tmp_path / "qrels.txt"
    qrels.write_text("q1 0 d3 1\n")
    options = ["--queries", queries, "--qrels", qrels, "--measures", "R@3", "--model", tiny_model()]
    assert citadel("eval", index, *options).out == "R@3 1.0000\n"


def test_wrong_fingerprint(index: Path, tiny_model: ModelFolder, citadel: Citadel) -> None:
    done = citadel("search", index, "rome", "--model", tiny_model(precision="int8"), code=4)
    assert "this model's fingerprint is" in done.err and "the index was built with" in done.err


def test_missing_model_folder(corpus: Path, tmp_path: Path, citadel: Citadel) -> None:
    done = citadel("index", corpus, tmp_path / "idx", "--model", tmp_path / "gone", code=4)
    assert "there is no such model" in done.err and not (tmp_path / "idx").exists()


def test_foreign_config_is_refused(
    corpus: Path, tmp_path: Path, citadel: Citadel, tiny_model: ModelFolder
) -> None:
    shutil.copytree(tiny_model(), tmp_path / "foreign")
    (tmp_path / "foreign" / "config.json").write_text('{"model_type": "bert"}')
    done = citadel("index", corpus, tmp_path / "idx", "--model", tmp_path / "foreign", code=4)
    assert "not a citadel model's config" in done.err and not (tmp_path / "idx").exists()


def test_damaged_onnx_file_is_refused(
    corpus: Path, tmp_path: Path, citadel: Citadel, tiny_model: ModelFolder
) -> None:
    shutil.copytree(tiny_model(), tmp_path / "damaged")
    (tmp_path / "damaged" / "model.onnx").write_bytes(b"\x08\x09")
    done = citadel("index", corpus, tmp_path / "idx", "--model", tmp_path / "damaged", code=4)
    assert "model.onnx" in done.err and not (tmp_path / "idx").exists()


def test_tokenizer_of_another_vocabulary_is_refused(tmp_path: Path, citadel: Citadel) -> None:
    checkpoint = write_checkpoint(tmp_path / "checkpoint", tiny_config())
    other = tiny_tokenizer()
    other.add_tokens(["more"])
    other.save(str(checkpoint / "tokenizer.json"))
    done = citadel("export", checkpoint, "--out", tmp_path / "model", code=4)
    assert "the vocabulary does not match" in done.err and not (tmp_path / "model").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--analyser", "plain"], "--analyser is for bm25"),
        (["--fingerprint", "x"], "--fingerprint is for a corpus of vectors"),
        (["--router", "static"], "--router and --model exclude each other"),
        (["--tau", "7"], "τ = 7"),
    ],
)
def test_incompatible_options(
    options: list[str], message: str, corpus: Path, tmp_path: Path, citadel: Citadel, tiny_model: ModelFolder
) -> None:
    assert (
        message in citadel("index", corpus, tmp_path / "idx", "--model", tiny_model(), *options, code=2).err
    )


def test_model_for_a_bm25_index_is_refused(
    corpus: Path, tmp_path: Path, citadel: Citadel, tiny_model: ModelFolder
) -> None:
    citadel("index", corpus, tmp_path / "terms")
    assert (
        "not built with a model"
        in citadel("search", tmp_path / "terms", "x", "--model", tiny_model(), code=2).err
    )


def test_search_prints_no_warnings(index: Path, tiny_model: ModelFolder) -> None:
    done = in_process("search", index, "who proposed relativity", "--model", tiny_model())
    assert (done.code, done.err) == (0, "") and "d1" in done.out


@pytest.mark.parametrize("command", ["search", "add", "eval", "explain"])
def test_every_command_names_the_missing_model(
    command: str, index: Path, corpus: Path, tmp_path: Path, citadel: Citadel
) -> None:
    queries = write_jsonl(tmp_path / "queries.jsonl", [{"_id": "q1", "text": "newton"}])
    (tmp_path / "qrels.txt").write_text("q1 0 d3 1\n")
    options: dict[str, list[object]] = {
        "search": ["newton"],
        "add": [corpus],
        "eval": ["--queries", queries, "--qrels", tmp_path / "qrels.txt"],
        "explain": ["newton", "d3"],
    }
    done = citadel(command, index, *options[command], code=4)
    assert "built with the model 'model' (fingerprint" in done.err and "--model DIR" in done.err


def test_server_does_not_start_without_its_model(index: Path) -> None:
    command = [sys.executable, "-m", "citadel.cli", "serve", str(index), "--port", "0"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 4 and "built with the model 'model'" in done.stderr


def test_hub_model_must_be_exported(corpus: Path, tmp_path: Path, citadel: Citadel) -> None:
    done = citadel("index", corpus, tmp_path / "idx", "--model", "org/name", code=4)
    assert "org/name: there is no such model folder: name a folder made by `citadel export`" in done.err
    assert "a model of the Hugging Face hub must be exported first" in done.err


def test_long_documents_on_the_command_line(
    tmp_path: Path, citadel: Citadel, tiny_model: ModelFolder
) -> None:
    text = "a history of rome. " * 20 + "darwin proposed evolution. " + "a history of rome. " * 20
    rows = [{"id": "d1", "text": text, "book": "b"}, {"id": "d2", "text": "darwin", "book": "b"}]
    corpus, idx = write_jsonl(tmp_path / "long.jsonl", rows), tmp_path / "long"
    done = citadel("index", corpus, idx, "--model", tiny_model(), "--chunk-tokens", "16")
    assert "2 documents, 1 split" in done.out
    done = citadel("search", idx, "evolution", "--json", "--model", tiny_model())
    hits = json.loads(done.out)["hits"]
    [passage] = [hit["passage"] for hit in hits if hit["id"] == "d1"]
    assert text[passage["start"] : passage["end"]] == passage["text"]
    assert sum("passage" in hit for hit in hits) == 1
    shown = citadel("search", idx, "evolution", "--model", tiny_model()).out
    assert passage["text"][:40] in shown
    done = citadel("search", idx, "darwin", "--group-by", "book", "--json", "--model", tiny_model())
    assert len(json.loads(done.out)["hits"]) == 1
    assert citadel("search", idx, "x", "--group-by", "", "--model", tiny_model()).code == 0
    for option in (("--long", "split"), ("--chunk-tokens", "0"), ("--chunk-tokens", "99")):
        done = citadel("index", corpus, tmp_path / "x", "--model", tiny_model(), *option, code=2)
        assert len(done.err.splitlines()) == 1
    done = citadel("index", corpus, tmp_path / "x", "--model", tiny_model(), "--long", "fail", code=4)
    assert "document 'd1' is longer than the 22 tokens" in done.err
    assert "leave it out" in citadel("index", corpus, tmp_path / "y", "--long", "cut", code=2).err
