"""Saving and loading checkpoint folders, and errors of damaged ones."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from citadel.encode.config import BackboneConfig, ModelConfig
from citadel.errors import InputError
from citadel.model.checkpoint import load_model, new_model, save_model
from scripts.smoke_data import write_backbone
from tests.support.models import ROUTERS, tiny_tokenizer
from tests.support.tiny import tiny_citadel


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    tiny_tokenizer().save(str(tmp_path / "tokenizer.json"))
    return tmp_path / "tokenizer.json"


@pytest.fixture
def folder(tmp_path: Path, tokenizer: Path) -> Path:
    save_model(tiny_citadel("dynamic").float(), tmp_path / "model", tokenizer)
    return tmp_path / "model"


@pytest.mark.parametrize("router", ROUTERS)
def test_save_and_load(router: str, tmp_path: Path, tokenizer: Path) -> None:
    model = tiny_citadel(router).float()
    save_model(model, tmp_path / "model", tokenizer)
    again = load_model(tmp_path / "model")
    assert again.config == model.config and not again.training
    assert (tmp_path / "model" / "tokenizer.json").read_bytes() == tokenizer.read_bytes()
    for name, tensor in model.state_dict().items():
        assert torch.equal(again.state_dict()[name], tensor), name


def test_exported_model_can_be_loaded(tiny_model) -> None:
    from tests.support.models import tiny_state

    model = load_model(tiny_model("dynamic", "fp32"))
    for name, array in tiny_state(model.config).items():
        torch.testing.assert_close(model.state_dict()[name], torch.from_numpy(array), msg=name)


def test_saving_in_place_keeps_the_tokenizer(folder: Path) -> None:
    before = (folder / "tokenizer.json").read_bytes()
    save_model(load_model(folder), folder, folder / "tokenizer.json")
    assert (folder / "tokenizer.json").read_bytes() == before


def test_missing_unknown_and_misshapen_tensors_are_errors(folder: Path) -> None:
    file = folder / "model.safetensors"
    whole = load_file(file)
    cases = {
        "token.weight is missing": {name: tensor for name, tensor in whole.items() if name != "token.weight"},
        "extra is not part of this model": whole | {"extra": torch.zeros(1)},
        "token.bias has shape (3,), not (8,)": whole | {"token.bias": torch.zeros(3)},
    }
    for words, tensors in cases.items():
        save_file(tensors, file)
        with pytest.raises(InputError) as caught:
            load_model(folder)
        assert words in str(caught.value) and str(file) in str(caught.value)


def test_truncated_weights_are_an_error(folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(InputError, match="cannot be read as safetensors"):
        load_model(folder)


def test_missing_weights_are_an_error(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    with pytest.raises(InputError, match=r"neither model\.safetensors nor model\.onnx"):
        load_model(folder)


def test_pickled_weights_are_rejected(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "model.pt")
    with pytest.raises(InputError, match="pickled"):
        load_model(folder)


def test_lengths_are_limited_by_the_backbone(tmp_path: Path, tokenizer: Path) -> None:
    write_backbone(tmp_path, 30, np.random.default_rng(0))
    config = ModelConfig(
        "dynamic", BackboneConfig(), document_length=512, query_length=32, cls_id=1, sep_id=2
    )
    model, folder = new_model(config, str(tmp_path))
    assert (model.config.document_length, model.config.query_length, folder) == (64, 32, tmp_path)
    assert model.config.backbone.vocabulary == 30
