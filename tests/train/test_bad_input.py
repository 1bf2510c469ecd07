"""User errors in a training run: one sentence, exit code 4, nothing written."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from citadel.cli.main import run
from citadel.train.config import TrainConfig

pytest.importorskip("torch", reason="torch is not installed: `pip install citadel-ir[train]`")

Make = Callable[..., TrainConfig]
Write = Callable[[str, Any], str]


def rejected(config: TrainConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """Run training, check that it fails without writing, and return its message."""
    file, out = tmp_path / "run.toml", tmp_path / "out"
    file.write_text(config.to_toml(), encoding="utf-8")
    assert run(["train", str(file), "--out", str(out), "--device", "cpu"]) == 4
    message = capsys.readouterr().err
    assert message.count("\n") == 1
    assert not out.exists()
    return message


@pytest.fixture
def broken(backbone: Path, tmp_path: Path) -> Path:
    """Copy of the backbone to damage."""
    return Path(shutil.copytree(backbone, tmp_path / "broken"))


def test_missing_file(config: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    message = rejected(config(data={"pairs": "none.jsonl"}), tmp_path, capsys)
    assert "none.jsonl: data.pairs: no such file" in message


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ({"query": "lens", "positive": "d9"}, "bad.jsonl:1: the passage id 'd9' is not in the collection"),
        ({"query": "", "positive": "d1"}, "bad.jsonl:1: the query is empty"),
    ],
)
def test_bad_pair(
    config: Make, write: Write, line: Any, reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert reason in rejected(config(data={"pairs": write("bad.jsonl", [line])}), tmp_path, capsys)


def test_backbone_without_tokenizer(
    config: Make, broken: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (broken / "tokenizer.json").unlink()
    assert "no tokenizer" in rejected(config(model={"backbone": str(broken)}), tmp_path, capsys)


def test_vocabulary_larger_than_the_models(
    config: Make, broken: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tokenizer = json.loads((broken / "tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    vocabulary |= {f"extra{number}": len(vocabulary) + number for number in range(100)}
    (broken / "tokenizer.json").write_text(json.dumps(tokenizer))
    assert "the vocabulary does not match" in rejected(
        config(model={"backbone": str(broken)}), tmp_path, capsys
    )


def test_vocabulary_smaller_than_the_models(
    config: Make, broken: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rejected before training, because the export would reject it afterwards."""
    tokenizer = json.loads((broken / "tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    tokenizer["model"]["vocab"] = {token: id for token, id in vocabulary.items() if id < len(vocabulary) - 64}
    (broken / "tokenizer.json").write_text(json.dumps(tokenizer))
    assert "the vocabulary does not match" in rejected(
        config(model={"backbone": str(broken)}), tmp_path, capsys
    )


@pytest.mark.parametrize("dropped", [5, "d2", [None]])
def test_dropped_is_not_a_list_of_ids(
    config: Make, write: Write, dropped: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = {"query": "lens", "positive": "d3", "negatives": ["d1"], "scores": [1.0], "dropped": dropped}
    message = rejected(config(data={"negatives": write("mined.jsonl", [line])}), tmp_path, capsys)
    assert "mined.jsonl:1: " in message


def test_pickled_backbone(
    config: Make, broken: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (broken / "model.safetensors").rename(broken / "pytorch_model.bin")
    message = rejected(config(model={"backbone": str(broken)}), tmp_path, capsys)
    assert "pickled" in message and "convert it" in message


def test_more_keys_than_the_vocabulary(
    config: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "document_keys" in rejected(config(model={"document_keys": 5000}), tmp_path, capsys)


def test_passages_longer_than_the_backbone_allows(
    config: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    message = rejected(config(data={"passage_length": 65}), tmp_path, capsys)
    assert "data.passage_length is 65" in message and "64" in message


def test_scifact_is_rejected(config: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "scifact"
    folder.mkdir()
    assert "SciFact" in rejected(config(data={"format": "beir", "folder": str(folder)}), tmp_path, capsys)
