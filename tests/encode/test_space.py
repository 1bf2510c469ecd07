"""Several encoders of one space: an index takes any of them and refuses others."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from multiprocessing.reduction import ForkingPickler  # used by worker pools
from pathlib import Path
from typing import Any

import pytest

import citadel
from citadel.cli.main import run
from citadel.cli.serve import _open
from citadel.encode.config import ModelConfig, load_config, parse_config
from citadel.encode.encoder import Encoder
from citadel.encode.locate import fingerprint, space_of
from citadel.errors import FingerprintError, InputError, UsageError
from tests.support.models import tiny_config, write_checkpoint

DOCUMENTS = [
    {"id": "d1", "text": "einstein proposed relativity"},
    {"id": "d2", "text": "darwin proposed evolution"},
    {"id": "d3", "text": "the history of rome"},
]


def made(folder: Path, config: ModelConfig, seed: int = 0) -> Path:
    pytest.importorskip("onnx", reason="models are exported with the extra [train]")
    from citadel.model.export import export

    return export(write_checkpoint(folder / "checkpoint", config, seed), folder / config.name, "fp32")[0]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A model without a space, and two of the space `tiny`: a large and a small one."""
    shape = tiny_config().backbone
    small = replace(shape, layers=1)
    configs = {
        "alone": tiny_config(),
        "large": tiny_config(space="tiny"),
        "small": tiny_config(space="tiny", backbone=small),
        "wide": tiny_config(space="tiny", semantic_dimension=8),
        "of-alone": tiny_config(),
    }
    folder = tmp_path_factory.mktemp("models")
    made_models = {name: made(folder / name, replace(config, name=name)) for name, config in configs.items()}
    student = replace(configs["small"], name="of-alone", space=fingerprint(made_models["alone"]))
    made_models["of-alone"] = made(folder / "student", student)
    return made_models


def copied(value: Any) -> Any:
    return ForkingPickler.loads(ForkingPickler.dumps(value))


def build(folder: Path, model: Path) -> citadel.Index:
    index = citadel.Index.create(folder, model=model, threads=1)
    index.add(DOCUMENTS)
    return index.commit()


def test_the_space_of_a_model(models: dict[str, Path]) -> None:
    assert space_of(models["alone"]) == fingerprint(models["alone"]) == Encoder(models["alone"]).space
    assert space_of(models["large"]) == space_of(models["small"]) == Encoder(models["small"]).space == "tiny"
    assert "space" not in json.loads((models["alone"] / "config.json").read_text())


def test_index_holds_the_space_and_the_name_of_its_model(models: dict[str, Path], tmp_path: Path) -> None:
    index = build(tmp_path / "idx", models["large"])
    assert (index.settings.fingerprint, index.settings.model) == ("tiny", "large")
    alone = build(tmp_path / "alone", models["alone"])
    assert alone.settings.fingerprint == fingerprint(models["alone"])


@pytest.mark.parametrize(("own", "other"), [("large", "small"), ("small", "large"), ("alone", "of-alone")])
def test_queries_and_documents_of_another_encoder(
    own: str, other: str, models: dict[str, Path], tmp_path: Path
) -> None:
    build(tmp_path / "idx", models[own])
    opened = citadel.Index.open(tmp_path / "idx", model=models[own], query_model=models[other], threads=1)
    query = Encoder(models[other], threads=1).encode_query("who proposed evolution")
    expected = opened.searcher().search_vectors(
        query.keys, query.weights, query.vectors, semantic=query.semantic
    )
    hits = opened.search("who proposed evolution")
    assert (hits.ids, [hit.score for hit in hits]) == (expected.ids, [hit.score for hit in expected])
    assert copied(opened).search("who proposed evolution").ids == hits.ids
    searcher = copied(opened.searcher())
    assert searcher.search("who proposed evolution").ids == hits.ids
    assert searcher.explain("who proposed evolution", "d2").score == pytest.approx(
        next(hit.score for hit in hits if hit.id == "d2"), abs=1e-4
    )
    added = citadel.Index.open(tmp_path / "idx", model=models[other], threads=1)
    added.add([{"id": "d4", "text": "newton gravity"}])
    assert len(added.commit()) == 4


def test_encoders_of_other_spaces_are_refused(models: dict[str, Path], tmp_path: Path) -> None:
    build(tmp_path / "idx", models["large"])
    index = citadel.Index.open(tmp_path / "idx", model=models["large"], query_model=models["alone"])
    with pytest.raises(
        FingerprintError, match=r"this model's fingerprint is \w{12}…, the index was built with space tiny"
    ):
        index.search("rome")
    index = citadel.Index.open(tmp_path / "idx", model=models["alone"])
    with pytest.raises(FingerprintError, match="the index was built with space tiny"):
        index.add(DOCUMENTS)
    assert not index.has_changes
    with pytest.raises(FingerprintError, match="names a space that it does not belong to"):
        citadel.Index.open(tmp_path / "idx", model=models["wide"]).search("rome")
    with pytest.raises(InputError, match=r"there is no such model: installed are .*small-en"):
        citadel.Index.open(tmp_path / "idx", model=models["large"], query_model="huge-en").search("rome")
    words = citadel.Index.create(tmp_path / "words", model="bm25")
    with pytest.raises(UsageError, match="was not built with a model"):
        citadel.Index.open(tmp_path / "words", query_model=models["small"])
    assert len(words) == 0


def test_another_vocabulary_is_refused(models: dict[str, Path], tmp_path: Path) -> None:
    build(tmp_path / "idx", models["large"])
    other = tmp_path / "other"
    shutil.copytree(models["small"], other)
    tokenizer = json.loads((other / "tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    vocabulary["rome"], vocabulary["darwin"] = vocabulary["darwin"], vocabulary["rome"]
    (other / "tokenizer.json").write_text(json.dumps(tokenizer))
    index = citadel.Index.open(tmp_path / "idx", model=models["large"], query_model=other)
    with pytest.raises(FingerprintError, match="the vocabulary differs"):
        index.search("rome")


@pytest.mark.parametrize("space", ["no name", "-x", "ü", "a" * 65])
def test_an_unknown_space_is_an_error(space: str, models: dict[str, Path], tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(models["small"], folder)
    config = json.loads((folder / "config.json").read_text())
    with pytest.raises(InputError, match=r"the space .* is no name"):
        parse_config(config | {"space": space})
    (folder / "config.json").write_text(json.dumps(config | {"space": space}))
    with pytest.raises(InputError, match=r"config.json: .*is no name"):
        load_config(folder)
    with pytest.raises(InputError, match="is no name"):
        citadel.Index.create(tmp_path / "idx", model=folder)


def test_query_model_on_the_command_line(
    models: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    build(tmp_path / "idx", models["large"])
    own = ["--model", str(models["large"])]
    given = [*own, "--query-model", str(models["small"])]
    assert run(["search", str(tmp_path / "idx"), "rome", "--json", *given]) == 0
    score = json.loads(capsys.readouterr().out)["hits"][0]["score"]
    opened = citadel.Index.open(tmp_path / "idx", model=models["large"], query_model=models["small"])
    assert score == pytest.approx(opened.search("rome")[0].score)
    assert run(["explain", str(tmp_path / "idx"), "rome", "d3", *given]) == 0
    wrong = [*own, "--query-model", str(models["alone"])]
    assert run(["search", str(tmp_path / "idx"), "rome", *wrong]) == FingerprintError.exit_code
    assert "the index was built with space tiny" in capsys.readouterr().err


def test_server_checks_the_query_model_at_start(models: dict[str, Path], tmp_path: Path) -> None:
    build(tmp_path / "idx", models["large"])
    folder, memory = str(tmp_path / "idx"), 1 << 30
    opened = _open(folder, (str(models["large"]), str(models["small"])), memory, is_only=True)
    assert opened.searcher().text_encoder.encode_queries(["rome"])[0].keys.tolist() == (
        Encoder(models["small"], threads=1).encode_query("rome").keys.tolist()
    )
    with pytest.raises(FingerprintError, match="the index was built with space tiny"):
        _open(folder, (str(models["large"]), str(models["alone"])), memory, is_only=True)
    with pytest.raises(InputError, match="there is no such model"):
        _open(folder, (str(models["large"]), "huge-en"), memory, is_only=True)


def test_queries_do_not_need_the_model_of_the_index(models: dict[str, Path], tmp_path: Path) -> None:
    build(tmp_path / "idx", models["large"])
    opened = citadel.Index.open(tmp_path / "idx", query_model=models["small"], threads=1)
    assert opened.search("rome").ids
    with pytest.raises(InputError, match=r"the model 'large' \(space tiny\), which is not installed"):
        opened.add(DOCUMENTS)
