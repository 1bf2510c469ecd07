"""The model's heads and their outputs for each router."""

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
def test_outputs_per_router(router: str) -> None:
    model = tiny_citadel(router)
    encoded = model.encode(*tiny_texts(model, 3, 0), dtype=torch.float64)
    assert set(encoded.tensors()) - {"routed"} == PARTS[router]


@pytest.mark.parametrize("router", ROUTERS)
@pytest.mark.parametrize("query", [False, True])
def test_encoding_without_learning_gives_the_same_outputs(router: str, query: bool) -> None:
    model = tiny_citadel(router)
    inputs = tiny_texts(model, 3, 0, query=query)
    whole = model.encode(*inputs, query=query, dtype=torch.float64).tensors()
    bare = model.encode(*inputs, query=query, learning=False, dtype=torch.float64).tensors()
    assert set(bare) >= set(whole) - {"pooled", "mass", "l1", "active"}
    for name, tensor in bare.items():
        torch.testing.assert_close(tensor, whole[name], msg=name)


def test_number_of_keys() -> None:
    model = tiny_citadel("dynamic", query_keys=2, document_keys=3)
    inputs = tiny_texts(model, 2, 0)
    for query, keys in ((True, 2), (False, 3)):
        encoded = model.encode(*inputs, query=query, dtype=torch.float64)
        assert encoded.keys is not None and encoded.keys.shape[-1] == keys


def test_unrouted_tokens_have_zero_weights_and_vectors() -> None:
    model = tiny_citadel("dynamic", route_separator=False, route_punctuation=False)
    inputs = tiny_texts(model, 4, 0)
    unrouted = ~inputs.routed
    assert (
        unrouted[:, 0].all() and (inputs.ids[inputs.routed] > 8).all()
    )  # neither special tokens nor punctuation
    encoded = model.encode(*inputs, dtype=torch.float64)
    assert encoded.weights is not None and encoded.vectors is not None
    assert encoded.weights[unrouted].eq(0).all() and encoded.vectors[unrouted].eq(0).all()
    assert encoded.weights[inputs.routed].gt(0).any()


def test_all_to_all_has_unit_vectors() -> None:
    model = tiny_citadel("all_to_all")
    inputs = tiny_texts(model, 2, 0)
    encoded = model.encode(*inputs, dtype=torch.float64)
    assert encoded.vectors is not None
    torch.testing.assert_close(encoded.vectors.norm(dim=-1), inputs.routed.double())


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


def test_encoding_does_not_depend_on_the_batch() -> None:
    model = tiny_citadel("dynamic")
    inputs = tiny_texts(model, 4, 3)
    alone = model.encode(*inputs.rows(slice(2, 3)), dtype=torch.float64)
    beside = model.encode(*inputs, dtype=torch.float64)
    assert alone.weights is not None and beside.weights is not None and alone.pooled is not None
    assert beside.pooled is not None
    torch.testing.assert_close(beside.weights[2:3], alone.weights)
    torch.testing.assert_close(beside.pooled[2:3], alone.pooled)


def test_bf16_outputs_are_fp32() -> None:
    model = tiny_citadel("dynamic").float()
    encoded = model.encode(*tiny_texts(model, 2, 0), dtype=torch.bfloat16)
    floats = {name: tensor.dtype for name, tensor in encoded.tensors().items() if tensor.is_floating_point()}
    assert set(floats.values()) == {torch.float32}


def test_new_router_head_is_the_identity() -> None:
    model = Citadel(tiny_config("dynamic"))
    assert model.router is not None
    assert torch.equal(model.router.dense.weight, torch.eye(32)) and model.router.bias.eq(0).all()


def test_keep_in_does_not_change_outputs() -> None:
    model = tiny_citadel("none")
    ids, mask, routed = tiny_texts(model, 3, 0)
    before = model.encode(ids, mask, routed, dtype=torch.bfloat16).semantic
    model.keep_in(torch.bfloat16)
    after = model.encode(ids, mask, routed, dtype=torch.bfloat16).semantic
    assert before is not None and after is not None and torch.equal(before, after)
    kept = {name for name, tensor in model.named_parameters() if tensor.dtype == torch.bfloat16}
    assert {
        "layers.0.attention.qkv.weight",
        "embeddings.norm.weight",
    } <= kept and "embeddings.word" not in kept
