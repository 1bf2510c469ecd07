"""The losses, one function per equation of the paper; n is the number of queries or passages."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from citadel.model.citadel import EncodedTexts


def contrastive_loss(scores: Tensor, positives: Tensor, allowed: Tensor | None = None) -> Tensor:
    """Eq. 6: cross-entropy of each query's positive among all in-batch passages.

    Passages that are not allowed are left out of the softmax.

    >>> contrastive_loss(torch.tensor([[0.0, 0.0]]), torch.tensor([0])).item()
    0.6931...
    """
    return F.cross_entropy(_masked(scores, allowed), positives)


def router_contrastive_loss(
    queries: Tensor, passages: Tensor, positives: Tensor, allowed: Tensor | None = None
) -> Tensor:
    """Eq. 8: Eq. 6 on Φ_q · Φ_d, in fp32 because the product can overflow fp16.

    >>> phi = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    >>> router_contrastive_loss(phi[:1], phi, torch.tensor([0])).item()
    0.3132...
    """
    wide = torch.promote_types(queries.dtype, torch.float32)
    return contrastive_loss(queries.to(wide) @ passages.to(wide).T, positives, allowed)


def l1_loss(texts: EncodedTexts, over: str = "vocabulary") -> Tensor:
    """Eq. 10: mean over texts of the sum of φ over tokens and keys, or over the chosen keys (`top-k`).

    >>> ones = torch.ones(2, 1, 1)
    >>> l1_loss(EncodedTexts(torch.ones(2, 1), weights=ones, l1=torch.tensor(6.0))).item()
    3.0
    """
    total = texts.l1 if over == "vocabulary" else None if texts.weights is None else texts.weights.sum()
    assert total is not None, "L1 needs a model with a router head"
    return total / len(texts)


def load_balancing_loss(texts: EncodedTexts, over: str = "argmax") -> Tensor:
    """Eq. 11–13: Σ_k f_k · p_k.

    p_k (Eq. 11) is the mean softmax mass of key k, f_k (Eq. 12) the number of tokens whose best key is k,
    or, with `top-k`, that chose k at all. f has no gradient.

    >>> keys, weights = torch.tensor([[[1]], [[1]]]), torch.ones(2, 1, 1)
    >>> mass, routed = torch.tensor([0.5, 1.5]), torch.ones(2, 1, dtype=torch.bool)
    >>> texts = EncodedTexts(routed, keys=keys, weights=weights, mass=mass)
    >>> load_balancing_loss(texts).item()
    0.75
    """
    assert texts.keys is not None and texts.mass is not None and texts.weights is not None
    chosen = texts.keys if over == "top-k" else texts.keys[..., :1]  # [n, T, 1 or L]
    # Count the argmax of a token even if its φ is 0, so that a dead router can recover.
    counted = texts.routed[..., None].expand_as(chosen) if over == "argmax" else texts.weights > 0
    counts = torch.bincount(chosen[counted], minlength=len(texts.mass))[: len(texts.mass)]
    return (counts.to(texts.mass.dtype) / len(texts)) @ (texts.mass / len(texts))


def flops_loss(pooled: Tensor) -> Tensor:
    """SPLADE's FLOPS regulariser: Σ_k (mean over texts of Φ_k)².

    >>> flops_loss(torch.tensor([[2.0, 0.0], [0.0, 0.0]])).item()
    1.0
    """
    return pooled.mean(0).square().sum()


def kl_distillation_loss(scores: Tensor, teacher: Tensor, temperature: float = 1.0) -> Tensor:
    """KL divergence of the student's softmax over a query's passages from the teacher's.

    Passages that the teacher did not score (NaN) are left out of both.

    >>> group = torch.tensor([[1.0, 2.0, float("nan")]])
    >>> abs(kl_distillation_loss(torch.tensor([[1.0, 2.0, 9.0]]), group).item()) < 1e-6
    True
    """
    valid = ~teacher.isnan()  # [B, G]
    # The softmax of an empty row would be NaN: keep the row, it contributes 0 below.
    kept = valid | ~valid.any(-1, keepdim=True)
    target = F.log_softmax(_masked(teacher.nan_to_num() / temperature, kept), -1)
    student = F.log_softmax(_masked(scores, kept), -1)
    # 0 · (-inf - -inf) is NaN, so unscored passages are cleared before the product.
    difference = torch.where(valid, target - student, 0)
    rows = (target.exp() * difference).sum(-1)
    return rows.sum() / valid.any(-1).sum().clamp(min=1)


def margin_mse_loss(scores: Tensor, teacher: Tensor) -> Tensor:
    """Margin-MSE: squared difference of the student's and the teacher's margins positive − negative.

    >>> margin_mse_loss(torch.tensor([[3.0, 1.0]]), torch.tensor([[5.0, 4.0]])).item()
    1.0
    """
    margin, target = scores[:, :1] - scores[:, 1:], teacher[:, :1] - teacher[:, 1:]
    valid = ~target.isnan()
    difference = torch.where(valid, margin - target.nan_to_num(), 0)
    return difference.square().sum() / valid.sum().clamp(min=1)


def own_group(scores: Tensor, group: int) -> Tensor:
    """Select each query's scores with its own passages: [B, B·G] → [B, G].

    >>> own_group(torch.tensor([[1.0, 2.0, 3.0, 4.0], [5.0, 6.0, 7.0, 8.0]]), 2).tolist()
    [[1.0, 2.0], [7.0, 8.0]]
    """
    first = torch.arange(len(scores), device=scores.device)[:, None] * group
    return scores.gather(1, first + torch.arange(group, device=scores.device))


def _masked(scores: Tensor, allowed: Tensor | None) -> Tensor:
    return scores if allowed is None else scores.masked_fill(~allowed, float("-inf"))
