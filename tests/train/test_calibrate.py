"""Initialisation of the heads: the router is active and the backbone unchanged."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from citadel.errors import InputError
from citadel.model.citadel import Citadel
from citadel.train.calibrate import (
    masked_token_loss,
    shift_logits,
    start_heads,
    start_semantic,
    start_token,
    warm_up,
)
from citadel.train.config_tables import RouterPart
from citadel.train.data import Data, Examples
from citadel.train.inputs import Inputs, Marker
from citadel.train.ragged import Ragged
from citadel.train.tokens import Special
from tests.support.tiny import PUNCTUATION, tiny_citadel, tiny_texts

FP32 = torch.float32


@pytest.fixture
def model() -> Citadel:
    return tiny_citadel("dynamic").float()


@pytest.fixture
def marker(model: Citadel) -> Marker:
    return Marker(model.config, PUNCTUATION)


def data_of(model: Citadel, count: int = 64) -> Data:
    """Passages of consecutive token ids, so that a masked one can be predicted from its neighbours."""
    rng, config = np.random.default_rng(0), model.config
    rows = [[config.cls_id, *range(w, w + 8), config.sep_id] for w in rng.integers(10, 60, count).tolist()]
    none = np.empty(0, np.int64)
    examples = Examples(none, none, none, none.astype(np.float64))
    ragged = Ragged.of(rows)
    special = Special(config.cls_id, config.sep_id, config.pad_id, config.mask_id)
    return Data(ragged, ragged, None, examples, examples, examples, ragged, none, special, none)  # type: ignore[arg-type]


def active(model: Citadel, inputs: Inputs) -> float:
    result = model.encode(*inputs)
    assert result.active is not None
    return float(result.active) / float(inputs.routed.sum())


@pytest.mark.parametrize("expected", [4, 8, 20])
def test_shift_sets_the_number_of_active_keys(model: Citadel, expected: int) -> None:
    inputs = tiny_texts(model, 40, 0)
    assert active(model, inputs) > 60
    assert model.router is not None
    before = model.router.bias.clone()
    shift = shift_logits(model, inputs, expected, FP32)
    torch.testing.assert_close(before - model.router.bias, torch.full_like(before, shift))
    assert expected * 0.6 <= active(model, inputs) <= expected * 1.6


def test_warm_up_trains_only_the_router(model: Citadel, marker: Marker) -> None:
    data = data_of(model)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    part = RouterPart(warm_up_batch=32, warm_up_lr=3e-3)
    first = warm_up(model, data, marker, replace(part, warm_up_steps=1), 0, FP32)
    last = warm_up(model, data, marker, replace(part, warm_up_steps=40), 0, FP32)
    assert last < first - 0.5
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name]) != name.startswith("router."), name
    assert all(
        parameter.grad is None
        for name, parameter in model.named_parameters()
        if not name.startswith("router.")
    )


def test_warm_up_is_deterministic(marker: Marker) -> None:
    part = RouterPart(warm_up_batch=8, warm_up_steps=3)
    losses = []
    for seed in (0, 0, 1):
        model = tiny_citadel("dynamic").float()
        losses.append(warm_up(model, data_of(model), marker, part, seed, FP32))
    assert losses[0] == losses[1] != losses[2]


def start(model: Citadel, **changes: Any) -> Inputs:
    inputs = tiny_texts(model, 60, 0)
    start_semantic(model, lambda: inputs, RouterPart(**changes), FP32)
    return inputs


def test_semantic_identity() -> None:
    model = tiny_citadel("none").float()
    start(model, semantic_start="identity", semantic_scale=3.0)
    assert model.semantic is not None
    assert torch.equal(model.semantic.weight, 3 * torch.eye(32)) and model.semantic.bias.eq(0).all()


def test_identity_needs_a_narrower_vector() -> None:
    with pytest.raises(InputError, match="semantic_dimension 33 is above 32"):
        start(tiny_citadel("none", semantic_dimension=33).float(), semantic_start="identity")


def test_semantic_pca() -> None:
    """The components are centred, uncorrelated and sorted by variance."""
    model = tiny_citadel("dynamic").float()
    inputs = start(model, semantic_start="pca")
    assert model.semantic is not None
    result = model.encode(*inputs).semantic
    assert result is not None
    result = result.detach().double()
    torch.testing.assert_close(result.mean(0), torch.zeros(16, dtype=torch.float64), atol=1e-4, rtol=0)
    spread = result.T @ result / len(result)
    off = spread - torch.diag(spread.diag())
    assert off.abs().max() < 1e-4 * spread.diag().max()
    assert (spread.diag().diff() <= 1e-6).all() and spread.diag()[0] > 0
    torch.testing.assert_close(
        model.semantic.weight @ model.semantic.weight.T, torch.eye(16), atol=1e-5, rtol=0
    )


def test_random_start_is_only_scaled() -> None:
    model = tiny_citadel("none").float()
    assert model.semantic is not None
    before = model.semantic.weight.clone()
    start(model, semantic_scale=0.5)
    torch.testing.assert_close(model.semantic.weight, before * 0.5)


def test_token_pca_gives_unit_vectors() -> None:
    model = tiny_citadel("dynamic").float()
    inputs = tiny_texts(model, 30, 0)
    start_token(model, lambda: inputs, RouterPart(token_start="pca", token_scale=2.0), FP32)
    result = model.encode(*inputs).vectors
    assert result is not None
    assert result[inputs.routed].norm(dim=-1).mean().item() == pytest.approx(2.0, rel=1e-4)


def test_start_heads(model: Citadel, marker: Marker) -> None:
    part = RouterPart(
        warm_up_steps=2, warm_up_batch=8, active_keys=6, semantic_start="pca", token_start="pca"
    )
    figures = start_heads(model, data_of(model), marker, part, 0, FP32)
    assert set(figures) == {"warm_up_loss", "shift"} and figures["shift"] != 0
    unrouted = tiny_citadel("none").float()
    assert start_heads(unrouted, data_of(unrouted), marker, part, 0, FP32) == {}


def test_masked_tokens_are_hidden_from_the_backbone(model: Citadel, monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = tiny_texts(model, 40, 0)
    seen: list[torch.Tensor] = []
    forward = model.forward

    def noted(ids: torch.Tensor, *rest: Any) -> torch.Tensor:
        seen.append(ids)
        return forward(ids, *rest)

    monkeypatch.setattr(model, "forward", noted)
    monkeypatch.setattr(F, "cross_entropy", lambda z, ids: torch.tensor(float(len(ids))))
    predicted = masked_token_loss(model, inputs, 0, FP32, RouterPart())  # number of predicted tokens
    hidden = seen[0] != inputs.ids
    assert seen[0][hidden].eq(model.config.mask_id).all() and not (hidden & ~inputs.routed).any()
    assert 0 < int(hidden.sum()) < predicted < int(inputs.routed.sum())
    shown = RouterPart(warm_up_masked=0.0, warm_up_shown=1.0)
    assert masked_token_loss(model, inputs, 0, FP32, shown) == int(inputs.routed.sum())
    assert seen[1].equal(inputs.ids)


@pytest.mark.parametrize("shares", [(0.0, 0.0), (0.6, 0.5), (-0.1, 0.5)])
def test_warm_up_shares_are_checked(shares: tuple[float, float]) -> None:
    with pytest.raises(InputError, match="warm_up_masked"):
        RouterPart(warm_up_masked=shares[0], warm_up_shown=shares[1])
