"""Eq. 14: the loss terms of a config, their weights and their scores."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from citadel.model.citadel import Citadel, EncodedTexts
from citadel.train import losses
from citadel.train.config_tables import PRESETS, LossPart
from citadel.train.objective import Labels, objective
from tests.support.models import ROUTERS
from tests.support.tiny import tiny_citadel, tiny_texts

GROUP = 2
PLAIN = {
    "dynamic": {"contrastive", "router", "balance", "l1"},
    "sparse": {"contrastive"},
    "static": {"contrastive"},
    "all_to_all": {"contrastive"},
    "none": {"contrastive"},
}
TEACHER = torch.tensor([[3.0, 1.0], [2.0, 0.0], [1.0, float("nan")]], dtype=torch.float64)


def batch(router: str) -> tuple[Citadel, EncodedTexts, EncodedTexts]:
    model = tiny_citadel(router)
    queries = model.encode(*tiny_texts(model, 3, 0, query=True), query=True, dtype=torch.float64)
    return model, queries, model.encode(*tiny_texts(model, 6, 1), dtype=torch.float64)


def part(preset: str = "paper", **changes: Any) -> LossPart:
    return LossPart(**{**PRESETS[preset], **changes})


def terms(
    router: str, loss: LossPart, progress: float = 1.0, teacher: Tensor | None = None
) -> dict[str, Tensor]:
    return objective(*batch(router), Labels(GROUP, teacher=teacher), loss, progress)


@pytest.mark.parametrize("router", ROUTERS)
def test_only_the_dynamic_router_has_router_losses(router: str) -> None:
    result = terms(router, part())
    assert set(result) == PLAIN[router]
    assert all(torch.isfinite(term) for term in result.values())


def test_preset_paper() -> None:
    model, queries, passages = batch("dynamic")
    assert queries.pooled is not None and passages.pooled is not None
    result = objective(model, queries, passages, Labels(GROUP), part("paper"), 1.0)
    positives = torch.tensor([0, 2, 4])
    expected = {
        "contrastive": losses.contrastive_loss(model.score(queries, passages), positives),
        "router": losses.router_contrastive_loss(queries.pooled, passages.pooled, positives),
        "balance": 1e-2 * (losses.load_balancing_loss(queries) + losses.load_balancing_loss(passages)),
        "l1": 1e-5 * (losses.l1_loss(queries) + losses.l1_loss(passages)),
    }
    assert set(result) == set(expected)
    for name, term in expected.items():
        torch.testing.assert_close(result[name], term, msg=name)


def test_preset_released() -> None:
    model, queries, passages = batch("dynamic")
    assert queries.pooled is not None and passages.pooled is not None
    loss = part("released", distillation="kl")
    result = objective(model, queries, passages, Labels(GROUP, teacher=TEACHER), loss, 1.0)
    lexical = model.lexical_score(queries, passages)
    assert lexical is not None
    own = losses.own_group
    routed = own(queries.pooled @ passages.pooled.T, GROUP)
    expected = {
        "distillation": losses.kl_distillation_loss(own(lexical, GROUP), TEACHER),  # no semantic score
        "router_distillation": losses.kl_distillation_loss(routed, TEACHER),
        "balance": 1e-2 * sum(losses.load_balancing_loss(side, "top-k") for side in (queries, passages)),
        "l1": 1e-4 * losses.l1_loss(passages, "top-k"),
    }
    for name, term in expected.items():
        torch.testing.assert_close(result[name], term, msg=name)


def test_distillation_includes_the_semantic_score() -> None:
    model, queries, passages = batch("dynamic")
    loss = part("paper", distillation="margin-mse", teacher_temperature=2.0, temperature=4.0, soft_label=0.5)
    result = objective(model, queries, passages, Labels(GROUP, teacher=TEACHER), loss, 1.0)
    own = losses.own_group(model.score(queries, passages) / 4, GROUP)
    torch.testing.assert_close(result["distillation"], 0.5 * losses.margin_mse_loss(own, TEACHER / 2))
    assert "router_distillation" not in result


def test_no_distillation_without_a_teacher() -> None:
    assert "distillation" not in terms("dynamic", part(distillation="kl"))
    assert "distillation" not in terms("dynamic", part(distillation="none"), teacher=TEACHER)


def test_weights_of_the_terms() -> None:
    result = terms("dynamic", part(hard_label=0.25, router_contrastive=2.0))
    plain = terms("dynamic", part())
    torch.testing.assert_close(result["contrastive"], plain["contrastive"] * 0.25)
    torch.testing.assert_close(result["router"], plain["router"] * 2)


def test_regularisers_are_off_at_zero() -> None:
    assert set(terms("dynamic", part(alpha=0.0, beta=0.0))) == {"contrastive", "router"}


def test_flops_has_a_weight_per_side() -> None:
    model, queries, passages = batch("sparse")
    assert queries.pooled is not None and passages.pooled is not None
    result = objective(model, queries, passages, Labels(GROUP), part(flops_query=3.0, flops_passage=0.5), 1.0)
    expected = 3 * losses.flops_loss(queries.pooled) + 0.5 * losses.flops_loss(passages.pooled)
    torch.testing.assert_close(result["flops"], expected)


@pytest.mark.parametrize(
    ("progress", "power", "share"), [(0.0, 2, 0), (0.1, 2, 0.25), (0.1, 1, 0.5), (0.9, 2, 1)]
)
def test_ramp_of_the_regularisers(progress: float, power: int, share: float) -> None:
    rising, whole = terms("dynamic", part(ramp=0.2, ramp_power=power), progress), terms("dynamic", part())
    for name in ("balance", "l1"):
        torch.testing.assert_close(rising[name], whole[name] * share)
    torch.testing.assert_close(rising["contrastive"], whole["contrastive"])


def test_masked_passages_are_left_out_of_both_losses() -> None:
    model, queries, passages = batch("dynamic")
    assert queries.pooled is not None and passages.pooled is not None
    allowed = torch.ones(3, 6, dtype=torch.bool)
    allowed[0, 3] = False
    result = objective(model, queries, passages, Labels(GROUP, allowed), part(), 1.0)
    positives = torch.tensor([0, 2, 4])
    expected = losses.contrastive_loss(model.score(queries, passages), positives, allowed)
    torch.testing.assert_close(result["contrastive"], expected)
    routed = losses.router_contrastive_loss(queries.pooled, passages.pooled, positives, allowed)
    torch.testing.assert_close(result["router"], routed)


def test_pruning_ramps_up_to_tau() -> None:
    model, queries, passages = batch("dynamic")
    assert passages.weights is not None
    tau = float(passages.weights[passages.weights > 0].detach().median())
    model.config = replace(model.config, tau=tau)
    loss, positives = part(prune=0.5), torch.tensor([0, 2, 4])
    bare = passages.with_tensors({"weights": passages.weights * (passages.weights > tau)})
    whole, cut = (losses.contrastive_loss(model.score(queries, p), positives) for p in (passages, bare))
    assert not torch.equal(whole, cut)
    for progress, expected in ((0.0, whole), (0.5, cut), (1.0, cut)):
        result = objective(model, queries, passages, Labels(GROUP), loss, progress)
        torch.testing.assert_close(result["contrastive"], expected)
        torch.testing.assert_close(result["l1"], 1e-5 * (losses.l1_loss(queries) + losses.l1_loss(passages)))
