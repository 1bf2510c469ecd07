"""Loading backbones, and errors of invalid folders; no file outside the folder is read."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from citadel.errors import InputError
from citadel.model.load import find_folder, load_pretrained
from scripts.smoke_data import write_backbone


@pytest.fixture
def backbone(tmp_path: Path) -> Path:
    folder = tmp_path / "backbone"
    folder.mkdir()
    write_backbone(folder, 30, np.random.default_rng(0))
    (folder / "vocab.txt").write_text("[PAD]\n")
    return folder


def change(folder: Path, **values: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def assert_load_fails(folder: Path | str, *words: str) -> None:
    """Check that loading fails with one sentence that contains these words."""
    with pytest.raises(InputError) as caught:
        load_pretrained(str(folder))
    message = str(caught.value)
    assert all(word in message for word in words), message
    assert "\n" not in message and caught.value.exit_code == 4


def test_valid_backbone_loads(backbone: Path) -> None:
    pretrained = load_pretrained(str(backbone))
    assert (pretrained.config.vocabulary, pretrained.config.layers) == (30, 2)
    assert "router.dense.weight" not in pretrained.tensors
    assert all(tensor.dtype == torch.float32 for tensor in pretrained.tensors.values())


def test_half_precision_is_converted_to_fp32(backbone: Path) -> None:
    file = backbone / "model.safetensors"
    save_file({name: tensor.half() for name, tensor in load_file(file).items()}, file)
    assert load_pretrained(str(backbone)).tensors["embeddings.word"].dtype == torch.float32


def test_pickled_weights_error_names_the_conversion(backbone: Path) -> None:
    (backbone / "model.safetensors").rename(backbone / "pytorch_model.bin")
    assert_load_fails(backbone, "pytorch_model.bin", "pickled", "save_pretrained", "safe_serialization=True")


def test_pickled_weights_beside_safetensors_are_ignored(backbone: Path) -> None:
    (backbone / "pytorch_model.bin").write_bytes(b"not read")
    assert load_pretrained(str(backbone)).config.hidden == 64


def test_missing_tokenizer_is_an_error(backbone: Path) -> None:
    (backbone / "vocab.txt").unlink()
    assert_load_fails(backbone, "no tokenizer", "tokenizer.json")


def test_mismatched_vocabulary_is_an_error(backbone: Path) -> None:
    change(backbone, vocab_size=31)
    assert_load_fails(backbone, "vocabulary does not match", "31", "30")


def test_missing_tensor_is_an_error(backbone: Path) -> None:
    file = backbone / "model.safetensors"
    tensors = load_file(file)
    del tensors["encoder.layer.1.attention.self.key.weight"]
    save_file(tensors, file)
    assert_load_fails(backbone, "encoder.layer.1.attention.self.key.weight", "fetch the whole backbone")


def test_missing_layer_is_an_error(backbone: Path) -> None:
    change(backbone, num_hidden_layers=3)
    assert_load_fails(backbone, "3 layers", "2")


def test_missing_shard_is_an_error(backbone: Path) -> None:
    index = {"weight_map": {"embeddings.word_embeddings.weight": "model-00001-of-00002.safetensors"}}
    (backbone / "model.safetensors.index.json").write_text(json.dumps(index))
    assert_load_fails(backbone, "model-00001-of-00002.safetensors", "missing")


@pytest.mark.parametrize(
    "name", ["../outside.safetensors", "/{}/outside.safetensors", "a/../../outside.safetensors"]
)
def test_shards_outside_the_folder_are_not_read(backbone: Path, name: str) -> None:
    outside = backbone.parent / "outside.safetensors"
    (backbone / "model.safetensors").rename(outside)
    (backbone / "a").mkdir()
    (backbone / "a" / "b.safetensors").touch()
    index = {"weight_map": {"x": name.format(str(backbone.parent))}}
    (backbone / "model.safetensors.index.json").write_text(json.dumps(index))
    assert_load_fails(backbone, str(backbone / "outside.safetensors"), "missing")


@pytest.mark.parametrize(
    "text", ["[]", '{"weight_map": ["a"]}', '{"weight_map": {"a": ["b"], "c": 1}}', "{", '"a"']
)
def test_invalid_shard_index_is_an_error(backbone: Path, text: str) -> None:
    (backbone / "model.safetensors.index.json").write_text(text)
    assert_load_fails(backbone, str(backbone))


@pytest.mark.parametrize("kind", ["t5", None, 7, ["bert"]])
def test_unsupported_model_type_is_an_error(backbone: Path, kind: object) -> None:
    change(backbone, model_type=kind)
    assert_load_fails(backbone, "not supported", "distilbert")


def test_relative_positions_are_an_error(backbone: Path) -> None:
    change(backbone, position_embedding_type="relative_key")
    assert_load_fails(backbone, "relative positions")


@pytest.mark.parametrize(
    ("key", "value"), [("hidden_size", "64"), ("layer_norm_eps", []), ("hidden_act", "gelu_new")]
)
def test_invalid_config_value_is_an_error(backbone: Path, key: str, value: object) -> None:
    change(backbone, **{key: value})
    assert_load_fails(backbone, "config.json")


@pytest.mark.parametrize("text", ["{", "[]", "\xff"])
def test_invalid_config_is_an_error(backbone: Path, text: str) -> None:
    (backbone / "config.json").write_text(text, encoding="latin-1")
    assert_load_fails(backbone, "config.json", "fetch the backbone again")


def test_missing_config_is_an_error(backbone: Path) -> None:
    (backbone / "config.json").unlink()
    assert_load_fails(backbone, "no config.json")


@pytest.mark.parametrize("length", [0, 7, 500])
def test_truncated_weights_are_an_error(backbone: Path, length: int) -> None:
    file = backbone / "model.safetensors"
    file.write_bytes(file.read_bytes()[:length])
    assert_load_fails(backbone, "model.safetensors", "fetch the backbone again")


def test_missing_weights_are_an_error(backbone: Path) -> None:
    (backbone / "model.safetensors").unlink()
    assert_load_fails(backbone, "no safetensors weights")


@pytest.mark.parametrize("name", ["./absent", "/absent", "~absent", "a/b/c", ""])
def test_invalid_names_are_not_sent_to_the_hub(name: str) -> None:
    assert_load_fails(name, "no such folder")


def test_hub_error_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    hub = pytest.importorskip("huggingface_hub", reason="huggingface_hub is not installed")

    def fail(name: str, allow_patterns: list[str], revision: str | None) -> str:
        assert not any("bin" in pattern or pattern.endswith(".py") for pattern in allow_patterns)
        raise hub.errors.LocalEntryNotFoundError(f"no way to {name}\nand a second line")

    monkeypatch.setattr(hub, "snapshot_download", fail)
    assert_load_fails("someone/something", "someone/something", "no way to someone/something", "local folder")


def test_folder_wins_over_the_hub(backbone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(backbone.parent)
    assert find_folder("backbone") == Path("backbone")
