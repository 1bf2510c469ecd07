"""What is wrong with a backbone's folder is said in one sentence, and no file outside it is ever read."""

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


def refused(folder: Path | str, *words: str) -> None:
    """Loading fails with one sentence that holds these words."""
    with pytest.raises(InputError) as caught:
        load_pretrained(str(folder))
    message = str(caught.value)
    assert all(word in message for word in words), message
    assert "\n" not in message and caught.value.exit_code == 4


def test_a_good_one_loads(backbone: Path) -> None:
    found = load_pretrained(str(backbone))
    assert (found.config.vocabulary, found.config.layers) == (30, 2)
    assert "router.dense.weight" not in found.tensors
    assert all(tensor.dtype == torch.float32 for tensor in found.tensors.values())


def test_half_precision_is_widened(backbone: Path) -> None:
    file = backbone / "model.safetensors"
    save_file({name: tensor.half() for name, tensor in load_file(file).items()}, file)
    assert load_pretrained(str(backbone)).tensors["embeddings.word"].dtype == torch.float32


def test_pickled_weights_are_refused_with_the_way_to_convert_them(backbone: Path) -> None:
    (backbone / "model.safetensors").rename(backbone / "pytorch_model.bin")
    refused(backbone, "pytorch_model.bin", "pickled", "save_pretrained", "safe_serialization=True")


def test_pickled_weights_beside_safetensors_are_not_looked_at(backbone: Path) -> None:
    (backbone / "pytorch_model.bin").write_bytes(b"not read")
    assert load_pretrained(str(backbone)).config.hidden == 64


def test_no_tokenizer(backbone: Path) -> None:
    (backbone / "vocab.txt").unlink()
    refused(backbone, "no tokenizer", "tokenizer.json")


def test_a_vocabulary_that_does_not_match(backbone: Path) -> None:
    change(backbone, vocab_size=31)
    refused(backbone, "vocabulary does not match", "31", "30")


def test_a_missing_tensor(backbone: Path) -> None:
    file = backbone / "model.safetensors"
    tensors = load_file(file)
    del tensors["encoder.layer.1.attention.self.key.weight"]
    save_file(tensors, file)
    refused(backbone, "encoder.layer.1.attention.self.key.weight", "fetch the whole backbone")


def test_a_missing_layer(backbone: Path) -> None:
    change(backbone, num_hidden_layers=3)
    refused(backbone, "3 layers", "2")


def test_a_missing_shard(backbone: Path) -> None:
    index = {"weight_map": {"embeddings.word_embeddings.weight": "model-00001-of-00002.safetensors"}}
    (backbone / "model.safetensors.index.json").write_text(json.dumps(index))
    refused(backbone, "model-00001-of-00002.safetensors", "missing")


@pytest.mark.parametrize("name", ["../outside.safetensors", "/{}/outside.safetensors", "a/../../outside.safetensors"])
def test_a_shard_is_never_sought_outside_the_folder(backbone: Path, name: str) -> None:
    outside = backbone.parent / "outside.safetensors"
    (backbone / "model.safetensors").rename(outside)
    (backbone / "a").mkdir()
    (backbone / "a" / "b.safetensors").touch()
    index = {"weight_map": {"x": name.format(str(backbone.parent))}}
    (backbone / "model.safetensors.index.json").write_text(json.dumps(index))
    refused(backbone, str(backbone / "outside.safetensors"), "missing")


@pytest.mark.parametrize("text", ["[]", '{"weight_map": ["a"]}', '{"weight_map": {"a": ["b"], "c": 1}}', "{", '"a"'])
def test_an_index_of_shards_that_is_none(backbone: Path, text: str) -> None:
    (backbone / "model.safetensors.index.json").write_text(text)
    refused(backbone, str(backbone))


@pytest.mark.parametrize("kind", ["t5", None, 7, ["bert"]])
def test_an_unsupported_type(backbone: Path, kind: object) -> None:
    change(backbone, model_type=kind)
    refused(backbone, "not supported", "distilbert")


def test_relative_positions(backbone: Path) -> None:
    change(backbone, position_embedding_type="relative_key")
    refused(backbone, "relative positions")


@pytest.mark.parametrize(("key", "value"), [("hidden_size", "64"), ("layer_norm_eps", []), ("hidden_act", "gelu_new")])
def test_a_value_that_cannot_be(backbone: Path, key: str, value: object) -> None:
    change(backbone, **{key: value})
    refused(backbone, "config.json")


@pytest.mark.parametrize("text", ["{", "[]", "\xff"])
def test_a_config_that_is_no_table(backbone: Path, text: str) -> None:
    (backbone / "config.json").write_text(text, encoding="latin-1")
    refused(backbone, "config.json", "fetch the backbone again")


def test_no_config(backbone: Path) -> None:
    (backbone / "config.json").unlink()
    refused(backbone, "no config.json")


@pytest.mark.parametrize("length", [0, 7, 500])
def test_cut_weights(backbone: Path, length: int) -> None:
    file = backbone / "model.safetensors"
    file.write_bytes(file.read_bytes()[:length])
    refused(backbone, "model.safetensors", "fetch the backbone again")


def test_no_weights(backbone: Path) -> None:
    (backbone / "model.safetensors").unlink()
    refused(backbone, "no safetensors weights")


@pytest.mark.parametrize("name", ["./absent", "/absent", "~absent", "a/b/c", ""])
def test_no_folder_and_no_name_of_the_hub(name: str) -> None:
    refused(name, "no such folder")


def test_the_hub_is_asked_and_its_refusal_told_in_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    hub = pytest.importorskip("huggingface_hub", reason="huggingface_hub is not installed")

    def fail(name: str, allow_patterns: list[str], revision: str | None) -> str:
        assert not any("bin" in pattern or pattern.endswith(".py") for pattern in allow_patterns)
        raise hub.errors.LocalEntryNotFoundError(f"no way to {name}\nand a second line")

    monkeypatch.setattr(hub, "snapshot_download", fail)
    refused("someone/something", "someone/something", "no way to someone/something", "local folder")


def test_a_folder_wins_over_the_hub(backbone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(backbone.parent)
    assert find_folder("backbone") == Path("backbone")
