"""Encoding by length keeps the order of the texts and the gradients of the batch."""

from __future__ import annotations

import pytest
import torch

from citadel.model.citadel import EncodedTexts
from citadel.train import inputs, step
from citadel.train.config_tables import LossPart
from citadel.train.inputs import Inputs, encode_by_length
from citadel.train.objective import Labels, objective
from tests.support.models import ROUTERS
from tests.support.tiny import tiny_citadel, tiny_texts

LOSS = LossPart(alpha=0.3, beta=0.1, flops_query=0.2, flops_passage=0.1)


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do not round widths up, so that parts of a tiny batch differ in width."""
    monkeypatch.setattr(inputs, "PAD_TO", 1)


@pytest.mark.usefixtures("narrow")
@pytest.mark.parametrize("router", ROUTERS)
def test_encoding_by_length_gives_the_same_gradients(router: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_citadel(router, quiet=0.5)
    queries, passages = tiny_texts(model, 4, 0, query=True), tiny_texts(model, 8, 1)
    results = []
    for groups in (1, 3):
        model.zero_grad(set_to_none=True)
        monkeypatch.setattr(inputs.encode_by_length, "__defaults__", (2,))
        outcome = step.forward_backward(
            model,
            queries,
            passages,
            lambda q, p: objective(model, q, p, Labels(2), LOSS, 1.0),
            torch.float64,
            groups=groups,
        )
        results.append(
            (outcome.loss, {name: p.grad for name, p in model.named_parameters() if p.grad is not None})
        )
    (whole, expected), (loss, gradients) = results
    torch.testing.assert_close(loss, whole)
    assert set(gradients) == set(expected) and any(gradient.abs().max() > 0 for gradient in expected.values())
    for name, gradient in expected.items():
        torch.testing.assert_close(gradients[name], gradient, msg=name)


@pytest.mark.usefixtures("narrow")
def test_part_is_as_wide_as_its_longest_text() -> None:
    mask = torch.tensor([[1, 1, 1, 1], [1, 0, 0, 0], [1, 1, 1, 0], [1, 1, 0, 0], [1, 1, 1, 1]])
    ids = mask * torch.arange(1, 6)[:, None]
    shapes = []

    def encode(texts: Inputs) -> EncodedTexts:
        shapes.append(list(texts.ids.shape))
        return EncodedTexts(texts.routed, semantic=texts.ids[:, :1], l1=texts.ids.sum())

    result = encode_by_length(Inputs(ids, mask, mask > 0), encode, groups=2, min_group=2)
    assert shapes == [[3, 3], [2, 4]]
    assert result.semantic is not None and result.semantic.flatten().tolist() == [1, 2, 3, 4, 5]
    assert (
        result.routed.tolist() == (mask > 0).tolist()
        and result.l1 is not None
        and int(result.l1) == int(ids.sum())
    )


def test_small_batch_is_not_split() -> None:
    model = tiny_citadel("dynamic")
    texts, seen = tiny_texts(model, 6, 1), []

    def encode(part: Inputs) -> EncodedTexts:
        seen.append(part)
        return model.encode(*part, dtype=torch.float64)

    encode_by_length(texts, encode, groups=4)
    assert seen == [texts]
