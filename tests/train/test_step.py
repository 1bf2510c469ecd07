"""Gradient caching gives the gradients of the whole batch for every router."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from citadel.model.citadel import Citadel, EncodedTexts
from citadel.train.config_tables import LossPart
from citadel.train.inputs import Inputs
from citadel.train.objective import Labels, objective
from citadel.train.step import Outcome, forward_backward
from tests.support.models import ROUTERS
from tests.support.tiny import tiny_citadel, tiny_texts

LOSS = LossPart(alpha=0.3, beta=0.1, flops_query=0.2, flops_passage=0.1, distillation="kl")
TEACHER = torch.tensor([[3.0, 1.0], [2.0, 0.0], [1.0, float("nan")]], dtype=torch.float64)


def cost_of(model: Citadel) -> Callable[[EncodedTexts, EncodedTexts], dict[str, Tensor]]:
    return lambda q, p: objective(model, q, p, Labels(2, teacher=TEACHER), LOSS, 1.0)


def gradients(
    model: Citadel, queries: Inputs, passages: Inputs, cache: int
) -> tuple[Outcome, dict[str, Tensor]]:
    model.zero_grad(set_to_none=True)
    outcome = forward_backward(model, queries, passages, cost_of(model), torch.float64, cache)
    return outcome, {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("router", ROUTERS)
@pytest.mark.parametrize("cache", [1, 2, 4, 5])
def test_gradient_caching_gives_the_same_gradients(router: str, cache: int) -> None:
    model = tiny_citadel(router, quiet=0.5)
    queries, passages = tiny_texts(model, 3, 0, query=True), tiny_texts(model, 6, 1)
    whole, expected = gradients(model, queries, passages, 0)
    cached, result = gradients(model, queries, passages, cache)
    torch.testing.assert_close(cached.loss, whole.loss)
    assert set(cached.terms) == set(whole.terms) and set(result) == set(expected)
    assert any(gradient.abs().max() > 0 for gradient in expected.values())
    for name, gradient in expected.items():
        torch.testing.assert_close(result[name], gradient, msg=name)


def test_gradient_caching_with_micro_batches_of_different_width() -> None:
    """Micro-batches are padded to their own width."""
    model = tiny_citadel("dynamic")
    queries, passages = tiny_texts(model, 3, 0, query=True), tiny_texts(model, 6, 1)
    _, expected = gradients(model, queries, passages, 0)
    widths = passages.mask.sum(1)
    rows = Inputs.rows

    class Short(Inputs):
        def rows(self, part: slice) -> Inputs:
            some = rows(self, part)
            width = int(some.mask.sum(1).max())
            return Inputs(*(column[:, :width] for column in some))

    assert widths.min() < widths.max()
    _, result = gradients(model, queries, Short(*passages), 2)
    for name, gradient in expected.items():
        torch.testing.assert_close(result[name], gradient, msg=name)


def test_gradients_accumulate() -> None:
    model = tiny_citadel("dynamic")
    queries, passages = tiny_texts(model, 3, 0, query=True), tiny_texts(model, 6, 1)
    _, once = gradients(model, queries, passages, 2)
    forward_backward(model, queries, passages, cost_of(model), torch.float64, 2)
    for name, parameter in model.named_parameters():
        if name in once:
            torch.testing.assert_close(parameter.grad, 2 * once[name], msg=name)


@pytest.mark.parametrize("cache", [0, 2])
def test_outcome_holds_no_graph(cache: int) -> None:
    model = tiny_citadel("dynamic")
    outcome, _ = gradients(model, tiny_texts(model, 3, 0, query=True), tiny_texts(model, 6, 1), cache)
    kept = [
        *outcome.terms.values(),
        *outcome.queries.tensors().values(),
        *outcome.passages.tensors().values(),
    ]
    assert not any(tensor.requires_grad for tensor in (outcome.loss, *kept))
    assert outcome.loss.item() == pytest.approx(sum(term.item() for term in outcome.terms.values()))


def test_packed_texts_have_the_same_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without padding, as on a GPU."""

    def attend(q: Tensor, k: Tensor, v: Tensor, starts: Tensor, longest: int) -> Tensor:
        cuts = starts.tolist()[1:-1]
        assert longest >= int(starts.diff().max())
        parts = zip(*(whole.transpose(0, 1).tensor_split(cuts, 1) for whole in (q, k, v)), strict=True)
        return torch.cat([F.scaled_dot_product_attention(*part) for part in parts], 1).transpose(0, 1)

    model = tiny_citadel("dynamic")
    queries, passages = tiny_texts(model, 3, 0, query=True), tiny_texts(model, 6, 1)
    assert not passages.mask.all()
    outcome, expected = gradients(model, queries, passages, 0)
    monkeypatch.setattr("citadel.model.packed_attention.can_attend", lambda *_: True)
    monkeypatch.setattr("citadel.model.packed_attention.attend", attend)
    model.packs = True
    packed, result = gradients(model, queries, passages, 0)
    torch.testing.assert_close(packed.loss, outcome.loss)
    for name, gradient in expected.items():
        torch.testing.assert_close(result[name], gradient, msg=name)
