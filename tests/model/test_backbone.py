"""Our backbone agrees with transformers for every model family and kind of checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

transformers = pytest.importorskip(
    "transformers", reason="transformers is not installed: the extra [train] brings it"
)

from citadel.encode.config import BackboneConfig, ModelConfig  # noqa: E402
from citadel.model.backbone import Backbone, attention_bias  # noqa: E402
from citadel.model.checkpoint import new_model  # noqa: E402
from citadel.model.citadel import Citadel  # noqa: E402

VOCABULARY = 50
SHAPE = {
    "vocab_size": VOCABULARY,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 24,
    "max_position_embeddings": 20,
    "initializer_range": 0.3,
}
DISTIL = {
    "vocab_size": VOCABULARY,
    "dim": 16,
    "n_layers": 2,
    "n_heads": 4,
    "hidden_dim": 24,
    "initializer_range": 0.3,
}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "bert": ("Bert", SHAPE),
    "roberta": ("Roberta", SHAPE | {"pad_token_id": 1, "type_vocab_size": 1, "layer_norm_eps": 1e-5}),
    "xlm-roberta": ("XLMRoberta", SHAPE | {"pad_token_id": 1, "type_vocab_size": 1}),
    "electra": ("Electra", SHAPE | {"embedding_size": 16}),
    "distilbert": ("DistilBert", DISTIL | {"max_position_embeddings": 20}),
}


def theirs(family: str, head: str = "Model", **changes: Any) -> Any:
    """A random model of a family; norms and biases are random too, so that swapping them is noticed."""
    prefix, shape = FAMILIES[family]
    torch.manual_seed(0)
    model = getattr(transformers, prefix + head)(
        getattr(transformers, f"{prefix}Config")(**shape | changes)
    ).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter) * 0.2)
    return model


def saved(model: Any, folder: Path, **options: Any) -> Path:
    model.save_pretrained(folder, **options)
    (folder / "tokenizer.json").write_text("{}")
    return folder


def ours(folder: Path, router: str = "none") -> Citadel:
    """Our model with the same weights."""
    dimension = 4 if router == "dynamic" else 0
    config = ModelConfig(
        router, BackboneConfig(), token_dimension=dimension, semantic_dimension=4, cls_id=1, sep_id=2
    )
    return new_model(config, str(folder))[0].eval()


def texts(family: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Three texts of 6, 4 and 1 tokens."""
    pad = 1 if "roberta" in family else 0
    ids = torch.randint(5, VOCABULARY, (3, 6), generator=torch.Generator().manual_seed(1))
    mask = (torch.arange(6) < torch.tensor([[6], [4], [1]])).long()
    return ids.masked_fill(mask == 0, pad), mask


@pytest.mark.parametrize("family", FAMILIES)
def test_hidden_states_equal_transformers(family: str, tmp_path: Path) -> None:
    model = theirs(family)
    ids, mask = texts(family)
    with torch.no_grad():
        wanted = model(input_ids=ids, attention_mask=mask).last_hidden_state
        actual = ours(saved(model, tmp_path))(ids, mask)
    valid = mask.bool()
    torch.testing.assert_close(actual[valid], wanted[valid], atol=2e-5, rtol=1e-4)
    assert wanted[valid].std() > 0.5


def test_relu_activation(tmp_path: Path) -> None:
    model = theirs("bert", hidden_act="relu")
    ids, mask = texts("bert")
    with torch.no_grad():
        wanted = model(input_ids=ids, attention_mask=mask).last_hidden_state[mask.bool()]
        actual = ours(saved(model, tmp_path))(ids, mask)[mask.bool()]
    torch.testing.assert_close(actual, wanted, atol=2e-5, rtol=1e-4)


def test_sharded_checkpoint(tmp_path: Path) -> None:
    model = theirs("bert")
    one = ours(saved(model, tmp_path / "one")).state_dict()
    folder = saved(model, tmp_path / "many", max_shard_size="4KB")
    assert len(list(folder.glob("model-*.safetensors"))) > 1 and not (folder / "model.safetensors").exists()
    many = ours(folder).state_dict()
    for name in one:
        if not name.startswith("semantic."):
            assert torch.equal(one[name], many[name]), name


@pytest.mark.parametrize("family", FAMILIES)
def test_mlm_head_becomes_the_router(family: str, tmp_path: Path) -> None:
    model = theirs(family, "ForMaskedLM")
    ids, mask = texts(family)
    mine = ours(saved(model, tmp_path), "dynamic")
    assert mine.router is not None
    with torch.no_grad():
        wanted = model(input_ids=ids, attention_mask=mask).logits
        actual = mine.router(mine(ids, mask)) @ mine.embeddings.word.T + mine.router.bias
    valid = mask.bool()
    torch.testing.assert_close(actual[valid], wanted[valid], atol=5e-5, rtol=1e-4)


def test_padding_does_not_change_hidden_states() -> None:
    torch.manual_seed(0)
    tiny = BackboneConfig(vocabulary=20, hidden=8, layers=2, heads=2, intermediate=16, positions=16)
    model = Backbone(tiny).double()
    ids = torch.tensor([[1, 2, 3]])
    alone = model(ids, torch.ones_like(ids), torch.float64)
    padded = model(torch.tensor([[1, 2, 3, 9, 9]]), torch.tensor([[1, 1, 1, 0, 0]]), torch.float64)
    torch.testing.assert_close(padded[:, :3], alone)


def test_bf16_forward_is_close_to_fp32() -> None:
    torch.manual_seed(0)
    model = Backbone(
        BackboneConfig(vocabulary=20, hidden=8, layers=1, heads=2, intermediate=16, positions=16)
    )
    ids = torch.tensor([[1, 2, 3]])
    half = model(ids, torch.ones_like(ids), torch.bfloat16)
    assert half.dtype == torch.bfloat16 and model.embeddings.word.dtype == torch.float32
    torch.testing.assert_close(half.float(), model(ids, torch.ones_like(ids)), atol=0.05, rtol=0.05)


def test_attention_bias() -> None:
    bias = attention_bias(torch.tensor([[1, 1], [1, 0]]), torch.float32)
    assert bias is not None and bias.shape == (2, 1, 2, 2)
    assert bias[0].eq(0).all() and bias[1, 0, 0].tolist() == [0, torch.finfo(torch.float32).min]
