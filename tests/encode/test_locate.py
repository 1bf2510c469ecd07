"""Choice of the model that encodes text, and the default model."""

from __future__ import annotations

from pathlib import Path

import pytest

from citadel import Index
from citadel.encode import locate
from citadel.encode.locate import default_model, find_model, text_model
from citadel.errors import InputError, UsageError

needs_default = pytest.mark.skipif(default_model() is None, reason="this copy has no default model")
DOCUMENTS = [
    {"id": "cardiac", "text": "Myocardial infarction is caused by a blocked coronary artery."},
    {"id": "engine", "text": "The engine of the car would not start in the cold."},
    {"id": "bread", "text": "Yeast lets the dough rise before it is baked."},
]


def test_explicit_model_wins_over_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CITADEL_MODEL", str(tmp_path / "other"))
    assert text_model("bm25") is None
    assert text_model("default") == "default"
    assert text_model(tmp_path / "mine") == str(tmp_path / "mine")


def test_environment_variable_is_the_default(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CITADEL_MODEL", "bm25")
    assert text_model(None) is None
    monkeypatch.setenv("CITADEL_MODEL", str(tmp_path))
    assert text_model(None) == str(tmp_path)


def test_without_a_default_model_bm25_is_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(locate, "_DEFAULT_FOLDERS", (tmp_path,))
    monkeypatch.delenv("CITADEL_MODEL")
    assert text_model(None) is None
    with pytest.raises(InputError, match="no default model is installed"):
        find_model("default")


def test_an_installed_model_has_a_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    installed, here = tmp_path / "models" / "tiny-en", tmp_path / "here"
    for folder in (installed, here):
        folder.mkdir(parents=True)
    (installed / "model.onnx").write_bytes(b"")
    monkeypatch.setattr(locate, "_DEFAULT_FOLDERS", (tmp_path / "models" / "small-en",))
    monkeypatch.chdir(here)
    assert text_model("tiny-en") == find_model("tiny-en") == str(installed)
    with pytest.raises(InputError, match="no such model folder"):
        find_model("huge-en")
    (here / "tiny-en").mkdir()  # a folder of this name is what a path means
    assert find_model("tiny-en") == str(here / "tiny-en")


@needs_default
def test_a_small_model_shares_the_default_models_space(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("CITADEL_MODEL")
    with Index.create(tmp_path / "index") as index:
        index.add(DOCUMENTS)
        index.commit()
    question = "what leads to a heart attack"
    with Index.open(tmp_path / "index", query_model="tiny-en") as index:
        assert index.searcher().search(question, k=1)[0].id == "cardiac"
    with Index.create(tmp_path / "small", model="tiny-en") as index:
        index.add(DOCUMENTS)
        index.commit()
    with Index.open(tmp_path / "small") as index:
        assert index.settings.model == "tiny-en"
        assert index.searcher().search(question, k=1)[0].id == "cardiac"


@needs_default
def test_default_model_encodes_text(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("CITADEL_MODEL")
    with Index.create(tmp_path / "index") as index:
        index.add(DOCUMENTS)
        index.commit()
        assert index.settings.model == "default" and index.settings.router == "dynamic"
    with Index.open(tmp_path / "index") as index:  # the stored name finds the installed model
        # The query and the relevant document share no word.
        assert index.searcher().search("what leads to a heart attack", k=1)[0].id == "cardiac"


@needs_default
@pytest.mark.parametrize("terms", [{"analyser": "plain"}, {"k1": 1.2}, {"b": 0.5}, {"router": "bm25"}])
def test_bm25_option_selects_bm25(
    terms: dict[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("CITADEL_MODEL")
    with Index.create(tmp_path / "index", **terms) as index:  # type: ignore[arg-type]
        assert index.settings.router == "bm25"


@needs_default
def test_bm25_option_with_a_model_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="k1 is for bm25"):
        Index.create(tmp_path / "index", model="default", k1=1.2)
    assert not (tmp_path / "index").exists()


@needs_default
def test_default_model_is_small_and_documented() -> None:
    folder = default_model()
    assert folder is not None
    assert sum(file.stat().st_size for file in folder.iterdir()) <= 40e6
    card = (folder / "README.md").read_text(encoding="utf-8")
    for part in (
        "License of the weights",
        "No text licensed for non-commercial use alone",
        "CC BY-SA",
        "GFDL",
        "GPL",
        "gte-small",
        "## Recipe",
        "## Limits",
    ):
        assert part in card
