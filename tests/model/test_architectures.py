"""Every backbone gives the hidden states of transformers, in torch, numpy and ONNX."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import (
    AutoModel,
    BertConfig,
    DistilBertConfig,
    ElectraConfig,
    ModernBertConfig,
    MPNetConfig,
    PretrainedConfig,
    RobertaConfig,
)
from transformers.models.mpnet.modeling_mpnet import MPNetEncoder

from citadel.encode.config import BackboneConfig, ModelConfig, load_config
from citadel.encode.encoder import Encoder
from citadel.errors import InputError
from citadel.model.backbone import Backbone
from citadel.model.checkpoint import load_model, new_model, save_model
from citadel.model.export import export
from citadel.model.load import load_pretrained
from citadel.model.positions import distance_classes

SIZES: dict[str, Any] = {
    "vocab_size": 60,
    "hidden_size": 32,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 48,
    "initializer_range": 0.3,
}
MODERN: dict[str, Any] = {**SIZES, "local_attention": 8, "pad_token_id": 0, "norm_eps": 1e-5}
BACKBONES: dict[str, PretrainedConfig] = {
    "bert": BertConfig(**SIZES),
    "roberta": RobertaConfig(**SIZES, pad_token_id=1),
    "electra": ElectraConfig(**SIZES, embedding_size=32),
    "distilbert": DistilBertConfig(
        vocab_size=60, dim=32, n_layers=4, n_heads=4, hidden_dim=48, max_position_embeddings=48,
        initializer_range=0.3,
    ),
    "mpnet": MPNetConfig(**SIZES),
    "modernbert": ModernBertConfig(**MODERN),
    "modernbert, all biases": ModernBertConfig(**MODERN, norm_bias=True, attention_bias=True, mlp_bias=True),
    "modernbert, only full attention": ModernBertConfig(**MODERN, layer_types=["full_attention"] * 4),
    "modernbert, other bases": ModernBertConfig(
        **MODERN,
        rope_parameters={
            "full_attention": {"rope_type": "default", "rope_theta": 500.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 50.0},
        },
    ),
}  # fmt: skip


def byte_level_tokenizer() -> Tokenizer:
    """Byte-level BPE as in RoBERTa and ModernBERT, with letters only."""
    letters = [*"abcdefghijklmnopqrstuvwxyz", "Ġ", "E", "=", "Â", "²", ".", "W", "h", ",", "?", "ĠW", "th"]
    tokens = ["<pad>", "<s>", "</s>", "<mask>", "<unk>", *dict.fromkeys(letters)]
    vocabulary = {token: number for number, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocabulary, [("t", "h")], unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.add_special_tokens(["<pad>", "<s>", "</s>", "<mask>"])
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 1))
    return tokenizer


def written(folder: Path, config: PretrainedConfig) -> Any:
    torch.manual_seed(3)
    model = AutoModel.from_config(config).eval()
    model.save_pretrained(folder)
    byte_level_tokenizer().save(str(folder / "tokenizer.json"))
    return model


def ours(folder: Path, **how: Any) -> ModelConfig:
    shape = load_pretrained(str(folder)).config
    given = {"token_dimension": 8, "semantic_dimension": 16, "query_length": 16, "document_length": 44} | how
    lengths = {name: min(given.pop(name), shape.longest) for name in ("query_length", "document_length")}
    return ModelConfig("dynamic", shape, cls_id=1, sep_id=2, pad_id=0, mask_id=3, **lengths, **given)


@pytest.mark.parametrize("name", BACKBONES)
def test_hidden_states_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    theirs = written(tmp_path, BACKBONES[name])
    pretrained = load_pretrained(str(tmp_path))
    backbone = Backbone(pretrained.config).eval()
    backbone.load_state_dict(
        {part: values for part, values in pretrained.tensors.items() if "router" not in part}
    )
    for length in (1, 2, 7, 44):
        ids = torch.randint(5, 36, (2, length))
        mask = torch.ones_like(ids)
        mask[1, length // 2 + 1 :] = 0
        ids = torch.where(mask > 0, ids, int(BACKBONES[name].pad_token_id or 0))
        with torch.no_grad():
            expected = theirs(input_ids=ids, attention_mask=mask).last_hidden_state
            actual = backbone(ids, mask)
        valid = mask[..., None]
        torch.testing.assert_close(actual * valid, expected * valid, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("name", BACKBONES)
def test_exports_agree_with_torch_and_numpy(name: str, tmp_path: Path) -> None:
    """`export` itself compares the three; here the vectors of a long text are compared as well."""
    written(tmp_path / "backbone", BACKBONES[name])
    model, folder = new_model(ours(tmp_path / "backbone"), str(tmp_path / "backbone"))
    save_model(model, tmp_path / "checkpoint", folder / "tokenizer.json")
    exact, _ = export(tmp_path / "checkpoint", tmp_path / "out", "both")
    encoder = Encoder(exact, threads=1)
    [text] = encoder.tokenizer.documents(["the quick brown fox jumps over the lazy dog and runs away " * 3])
    assert len(text) == encoder.config.document_length
    ids = torch.from_numpy(text.ids)[None]
    with torch.no_grad():
        expected = model.eval().encode(ids, torch.ones_like(ids), torch.ones_like(ids).bool(), learning=False)
    outputs = encoder.outputs(text)
    assert expected.vectors is not None and expected.semantic is not None
    np.testing.assert_allclose(outputs["vectors"], expected.vectors[0].numpy(), atol=1e-4)
    np.testing.assert_allclose(outputs["semantic"], expected.semantic[0].numpy(), atol=1e-4)
    assert load_config(exact).backbone == model.config.backbone
    reloaded = load_model(exact).state_dict()
    assert all(torch.equal(values, reloaded[part]) for part, values in model.state_dict().items())


def test_distance_classes_are_those_of_transformers() -> None:
    distances = torch.arange(-511, 512)
    expected = MPNetEncoder.relative_position_bucket(distances)
    assert distance_classes(512, 32).tolist() == expected.tolist()


def test_long_rotary_positions_are_cut(tmp_path: Path) -> None:
    written(tmp_path, ModernBertConfig(**{**MODERN, "max_position_embeddings": 8192}))
    assert load_pretrained(str(tmp_path)).config.positions == 4096


@pytest.mark.parametrize(
    "change",
    [
        {"architecture": "other"},
        {"architecture": "modernbert"},
        {"rotary_base": 10_000.0},
        {"local_window": 3},
        {"architecture": "mpnet"},
        {"relative_buckets": 32},
        {"architecture": "modernbert", "rotary_base": 1e4, "full_every": 3},
        {"architecture": "modernbert", "rotary_base": 0.5, "full_every": 1},
        {"architecture": "modernbert", "rotary_base": float("nan"), "full_every": 1},
    ],
)
def test_contradictory_shape_is_refused(change: dict[str, Any]) -> None:
    shape = BackboneConfig(60, 32, 2, 4, 48, 48)
    with pytest.raises(InputError, match="invalid model config"):
        ModelConfig("none", replace(shape, **change), token_dimension=0, query_length=9, document_length=9)


def test_scaled_rotary_positions_are_refused(tmp_path: Path) -> None:
    written(tmp_path, BACKBONES["modernbert"])
    path = tmp_path / "config.json"
    path.write_text(path.read_text().replace('"rope_type": "default"', '"rope_type": "yarn"'))
    with pytest.raises(InputError, match="scaled rotary positions are not supported"):
        load_pretrained(str(tmp_path))


def test_narrow_embeddings_are_refused(tmp_path: Path) -> None:
    written(tmp_path, ElectraConfig(**{**SIZES, "embedding_size": 16}))
    with pytest.raises(InputError, match="another width than the layers"):
        load_pretrained(str(tmp_path))


def test_modernbert_in_bf16_is_close(tmp_path: Path) -> None:
    written(tmp_path, BACKBONES["modernbert"])
    pretrained = load_pretrained(str(tmp_path))
    backbone = Backbone(pretrained.config).eval()
    backbone.load_state_dict(pretrained.tensors)
    ids = torch.randint(5, 36, (2, 40))
    with torch.no_grad():
        exact, rounded = (
            backbone(ids, torch.ones_like(ids), dtype) for dtype in (torch.float32, torch.bfloat16)
        )
    assert rounded.dtype == torch.bfloat16
    assert torch.cosine_similarity(exact, rounded.float(), dim=-1).min() > 0.99


def test_irregular_layers_are_refused(tmp_path: Path) -> None:
    written(tmp_path, BACKBONES["modernbert"])
    path = tmp_path / "config.json"
    path.write_text(path.read_text().replace('"sliding_attention",', '"full_attention",', 1))
    with pytest.raises(InputError, match="equal steps"):
        load_pretrained(str(tmp_path))
