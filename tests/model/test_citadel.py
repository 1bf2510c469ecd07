"""The model's heads: which a router has, what they say, and that learning or not gives the same texts."""

from __future__ import annotations

import pytest
import torch

from citadel.model.citadel import Citadel
from tests.support.models import ROUTERS, tiny_config
from tests.support.tiny import tiny_citadel, tiny_texts

PARTS = {
    "dynamic": {"vectors", "keys", "weights", "pooled", "mass", "l1", "active", "semantic"},
    "static": {"vectors", "keys", "weights"},
    "all_to_all": {"vectors"},
    "sparse": {"keys", "weights", "pooled", "mass", "l1", "active"},
    "none": {"semantic"},
}


@pytest.mark.parametrize("router", ROUTERS)
def test_a_router_has_its_parts_and_no_others(router: str) -> None:
    model = tiny_citadel(router)
    found = model.encode(*tiny_texts(model, 3, 0), dtype=torch.float64)
    assert set(found.tensors()) - {"routed"} == PARTS[router]


@pytest.mark.parametrize("router", ROUTERS)
@pytest.mark.parametrize("query", [False, True])
def test_encoding_without_learning_says_the_same(router: str, query: bool) -> None:
    model = tiny_citadel(router)
    inputs = tiny_texts(model, 3, 0, query=query)
    whole = model.encode(*inputs, query=query, dtype=torch.float64).tensors()
    bare = model.encode(*inputs, query=query, learning=False, dtype=torch.float64).tensors()
    assert set(bare) >= set(whole) - {"pooled", "mass", "l1", "active"}
    for name, tensor in bare.items():
        torch.testing.assert_close(tensor, whole[name], msg=name)


def test_queries_have_k_keys_and_documents_l() -> None:
    model = tiny_citadel("dynamic", query_keys=2, document_keys=3)
    inputs = tiny_texts(model, 2, 0)
    for query, keys in ((True, 2), (False, 3)):
        found = model.encode(*inputs, query=query, dtype=torch.float64)
        assert found.keys is not None and found.keys.shape[-1] == keys


def test_what_is_not_routed_has_neither_weight_nor_vector() -> None:
    model = tiny_citadel("dynamic", route_separator=False, route_punctuation=False)
    inputs = tiny_texts(model, 4, 0)
    silent = ~inputs.routed
    assert silent[:, 0].all() and (inputs.ids[inputs.routed] > 8).all()  # neither special tokens nor marks
    found = model.encode(*inputs, dtype=torch.float64)
    assert found.weights is not None and found.vectors is not None
    assert found.weights[silent].eq(0).all() and found.vectors[silent].eq(0).all()
    assert found.weights[inputs.routed].gt(0).any()


def test_all_to_all_has_unit_vectors() -> None:
    model = tiny_citadel("all_to_all")
    inputs = tiny_texts(model, 2, 0)
    found = model.encode(*inputs, dtype=torch.float64)
    assert found.vectors is not None
    torch.testing.assert_close(found.vectors.norm(dim=-1), inputs.routed.double())


def test_colbert_queries_are_padded_with_masks() -> None:
    model = tiny_citadel("all_to_all")
    inputs = tiny_texts(model, 3, 0, longest=3, query=True)
    assert inputs.ids.shape[1] == 8 and inputs.mask.eq(1).all()
    assert inputs.ids[:, -1].eq(model.config.mask_id).all() and inputs.routed[:, 1:].all()


@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_pooling(pooling: str) -> None:
    model = tiny_citadel("none", pooling=pooling)
    hidden = torch.tensor([[[1.0, 3.0], [3.0, 5.0], [100.0, 100.0]]])
    wanted = [[1.0, 3.0]] if pooling == "cls" else [[2.0, 4.0]]
    assert model.pool(hidden, torch.tensor([[1, 1, 0]])).tolist() == wanted


def test_a_text_of_all_widths_is_the_same() -> None:
    """What stands beside a text in its batch does not change it."""
    model = tiny_citadel("dynamic")
    inputs = tiny_texts(model, 4, 3)
    alone = model.encode(*inputs.rows(slice(2, 3)), dtype=torch.float64)
    beside = model.encode(*inputs, dtype=torch.float64)
    assert alone.weights is not None and beside.weights is not None and alone.pooled is not None
    assert beside.pooled is not None
    torch.testing.assert_close(beside.weights[2:3], alone.weights)
    torch.testing.assert_close(beside.pooled[2:3], alone.pooled)


def test_bf16_gives_fp32_encodings() -> None:
    model = tiny_citadel("dynamic").float()
    found = model.encode(*tiny_texts(model, 2, 0), dtype=torch.bfloat16)
    floats = {name: tensor.dtype for name, tensor in found.tensors().items() if tensor.is_floating_point()}
    assert set(floats.values()) == {torch.float32}


def test_a_fresh_router_head_is_the_identity() -> None:
    model = Citadel(tiny_config("dynamic"))
    assert model.router is not None
    assert torch.equal(model.router.dense.weight, torch.eye(32)) and model.router.bias.eq(0).all()


def test_weights_kept_in_the_precision_of_a_forward_change_nothing() -> None:
    model = tiny_citadel("none")
    ids, mask, routed = tiny_texts(model, 3, 0)
    before = model.encode(ids, mask, routed, dtype=torch.bfloat16).semantic
    model.keep_in(torch.bfloat16)
    after = model.encode(ids, mask, routed, dtype=torch.bfloat16).semantic
    assert before is not None and after is not None and torch.equal(before, after)
    kept = {name for name, tensor in model.named_parameters() if tensor.dtype == torch.bfloat16}
    assert {"layers.0.attention.qkv.weight", "embeddings.norm.weight"} <= kept and "embeddings.word" not in kept
