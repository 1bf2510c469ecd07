"""Each loss against its equation, computed by hand."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from citadel.model.citadel import EncodedTexts
from citadel.train.losses import (
    contrastive_loss,
    flops_loss,
    kl_distillation_loss,
    l1_loss,
    load_balancing_loss,
    margin_mse_loss,
    own_group,
    router_contrastive_loss,
)

NAN = float("nan")


def test_eq_6_contrastive() -> None:
    scores = torch.tensor([[2.0, 1.0, 0.0], [0.0, 3.0, 1.0]])
    first = -math.log(math.exp(2) / (math.exp(2) + math.exp(1) + 1))
    second = -math.log(math.exp(1) / (1 + math.exp(3) + math.exp(1)))
    assert contrastive_loss(scores, torch.tensor([0, 2])).item() == pytest.approx((first + second) / 2)


def test_masked_passage_is_left_out_of_the_softmax() -> None:
    scores = torch.tensor([[2.0, 2.0, 0.0]], requires_grad=True)
    loss = contrastive_loss(scores, torch.tensor([0]), torch.tensor([[True, False, True]]))
    assert loss.item() == pytest.approx(-math.log(math.exp(2) / (math.exp(2) + 1)))
    (gradient,) = torch.autograd.grad(loss, scores)
    assert gradient[0, 1] == 0 and gradient[0, 2] > 0


def test_eq_8_router_contrastive() -> None:
    queries, passages = torch.tensor([[1.0, 2.0]]), torch.tensor([[0.0, 1.0], [1.0, 0.0]])
    loss = router_contrastive_loss(queries, passages, torch.tensor([0]))  # Φ_q · Φ_d: 2 and 1
    assert loss.item() == pytest.approx(-math.log(math.exp(2) / (math.exp(2) + math.exp(1))))


def test_router_contrastive_does_not_overflow_fp16() -> None:
    large = torch.full((2, 4), 200.0, dtype=torch.float16)  # 4 · 200² = 160,000 > 65,504
    assert math.isfinite(router_contrastive_loss(large, large, torch.tensor([0, 1])).item())


def texts(**parts: torch.Tensor) -> EncodedTexts:
    return EncodedTexts(torch.tensor([[True, True], [True, False]]), **parts)


def test_eq_10_l1() -> None:
    weights = torch.tensor([[[1.0, 0.5], [2.0, 0.0]], [[0.5, 0.0], [0.0, 0.0]]])
    encoded = texts(weights=weights, l1=torch.tensor(9.0))
    assert l1_loss(encoded).item() == 4.5  # Σ φ over all tokens and keys, ÷ 2 texts
    assert l1_loss(encoded, "top-k").item() == 2.0  # 1 + 0.5 + 2 + 0.5, ÷ 2


def test_eq_11_to_13_load_balancing() -> None:
    keys = torch.tensor([[[0, 1], [0, 2]], [[1, 0], [2, 1]]])  # the last token is not routed
    weights = torch.tensor([[[1.0, 0.5], [2.0, 0.0]], [[0.0, 0.0], [0.0, 0.0]]])
    mass = torch.tensor([1.5, 1.0, 0.5], requires_grad=True)
    encoded = texts(keys=keys, weights=weights, mass=mass)
    # argmax: two tokens choose 0, one chooses 1, even with weight 0. f = (1, ½, 0), p = (¾, ½, ¼).
    loss = load_balancing_loss(encoded)
    assert loss.item() == 1 * 0.75 + 0.5 * 0.5
    # top-k: the keys with a weight above 0 are 0, 1, 0, which gives the same f.
    assert load_balancing_loss(encoded, "top-k").item() == 1.0
    (gradient,) = torch.autograd.grad(loss, mass)
    assert gradient.tolist() == [0.5, 0.25, 0.0]  # f / n: f itself has no gradient


def test_load_balancing_top_k_counts_every_chosen_key() -> None:
    keys, weights = torch.tensor([[[0, 1]], [[2, 1]]]), torch.tensor([[[1.0, 1.0]], [[1.0, 0.0]]])
    encoded = EncodedTexts(
        torch.ones(2, 1, dtype=torch.bool), keys=keys, weights=weights, mass=torch.tensor([2.0, 4.0, 8.0])
    )
    assert load_balancing_loss(encoded, "top-k").item() == 0.5 * 1 + 0.5 * 2 + 0.5 * 4
    assert load_balancing_loss(encoded, "argmax").item() == 0.5 * 1 + 0.5 * 4


def test_flops() -> None:
    assert flops_loss(torch.tensor([[2.0, 1.0], [4.0, 0.0]])).item() == 3**2 + 0.5**2


def test_kl_distillation() -> None:
    student, teacher = torch.tensor([[1.0, 0.0]]), torch.tensor([[4.0, 0.0]])
    p = [math.exp(2) / (math.exp(2) + 1), 1 / (math.exp(2) + 1)]  # the teacher at temperature 2
    q = [math.e / (math.e + 1), 1 / (math.e + 1)]
    expected = sum(a * math.log(a / b) for a, b in zip(p, q, strict=True))
    assert kl_distillation_loss(student, teacher, 2.0).item() == pytest.approx(expected, rel=1e-5)


def test_kl_ignores_unscored_passages() -> None:
    student = torch.tensor([[1.0, 7.0, 0.0]], requires_grad=True)
    loss = kl_distillation_loss(student, torch.tensor([[4.0, NAN, 0.0]]))
    bare = kl_distillation_loss(torch.tensor([[1.0, 0.0]]), torch.tensor([[4.0, 0.0]]))
    assert loss.item() == pytest.approx(bare.item())
    (gradient,) = torch.autograd.grad(loss, student)
    assert gradient[0, 1] == 0 and gradient[0, 0] != 0


def test_kl_ignores_unscored_queries() -> None:
    """A cropped query has no teacher scores."""
    student = torch.tensor([[1.0, 0.0], [5.0, 2.0]], requires_grad=True)
    loss = kl_distillation_loss(student, torch.tensor([[4.0, 0.0], [NAN, NAN]]))
    assert loss.item() == pytest.approx(kl_distillation_loss(student[:1], torch.tensor([[4.0, 0.0]])).item())
    (gradient,) = torch.autograd.grad(loss, student)
    assert gradient[1].tolist() == [0, 0] and gradient[0, 0] != 0
    assert kl_distillation_loss(student, torch.full((2, 2), NAN)).item() == 0


def test_margin_mse() -> None:
    student = torch.tensor([[3.0, 1.0, 9.0], [2.0, 0.0, 0.0]], requires_grad=True)
    teacher = torch.tensor([[5.0, 4.0, NAN], [NAN, 1.0, 1.0]])
    loss = margin_mse_loss(student, teacher)
    assert loss.item() == 1.0  # one margin is known: 2 against 1
    (gradient,) = torch.autograd.grad(loss, student)
    assert gradient.tolist() == [[2.0, -2.0, 0.0], [0.0, 0.0, 0.0]]


def test_margin_mse_is_the_mean_over_margins() -> None:
    assert (
        margin_mse_loss(torch.tensor([[3.0, 1.0, 0.0]]), torch.tensor([[3.0, 0.0, 1.0]])).item()
        == (1 + 1) / 2
    )


def test_own_group() -> None:
    assert own_group(torch.arange(12.0).view(2, 6), 3).tolist() == [[0, 1, 2], [9, 10, 11]]


@settings(max_examples=20)
@given(seed=st.integers(0, 1 << 20), size=st.integers(2, 6))
def test_kl_is_not_negative_and_zero_for_equal_distributions(seed: int, size: int) -> None:
    torch.manual_seed(seed)
    student, teacher = torch.randn(3, size, dtype=torch.float64), torch.randn(3, size, dtype=torch.float64)
    assert kl_distillation_loss(student, teacher).item() >= -1e-12
    assert abs(kl_distillation_loss(teacher + 3, teacher).item()) < 1e-12
