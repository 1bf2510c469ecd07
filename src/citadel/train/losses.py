"""The losses, one function per equation of the paper; n is the number of texts on a side."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from citadel.model.citadel import EncodedTexts


def contrastive_loss(scores: Tensor, positives: Tensor, allowed: Tensor | None = None) -> Tensor:
    """Eq. 6: cross-entropy of each query's positive among all in-batch passages; those not allowed leave the softmax.

    >>> contrastive_loss(torch.tensor([[0.0, 0.0]]), torch.tensor([0])).item()
    0.6931...
    """
    return F.cross_entropy(_masked(scores, allowed), positives)


def router_contrastive_loss(
    queries: Tensor, passages: Tensor, positives: Tensor, allowed: Tensor | None = None
) -> Tensor:
    """Eq. 8: Eq. 6 on Φ_q · Φ_d, in fp32, because the product passes the largest fp16 number.

    >>> phi = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    >>> router_contrastive_loss(phi[:1], phi, torch.tensor([0])).item()
    0.3132...
    """
    wide = torch.promote_types(queries.dtype, torch.float32)
    return contrastive_loss(queries.to(wide) @ passages.to(wide).T, positives, allowed)


def l1_loss(texts: EncodedTexts, over: str = "vocabulary") -> Tensor:
    """Eq. 10: the mean over texts of the sum of φ over tokens and keys; `top-k` sums the chosen keys alone.

    >>> ones = torch.ones(2, 1, 1)
    >>> l1_loss(EncodedTexts(torch.ones(2, 1), weights=ones, l1=torch.tensor(6.0))).item()
    3.0
    """
    total = texts.l1 if over == "vocabulary" else None if texts.weights is None else texts.weights.sum()
    assert total is not None, "only a model with a router head has φ"
    return total / len(texts)


def load_balancing_loss(texts: EncodedTexts, over: str = "argmax") -> Tensor:
    """Eq. 11–13: Σ_k f_k · p_k. Eq. 11, p_k: the mean softmax mass of key k; Eq. 12, f_k: tokens whose best key is k.

    `top-k` counts every chosen key instead of the best one. f has no gradient.

    >>> keys, weights = torch.tensor([[[1]], [[1]]]), torch.ones(2, 1, 1)
    >>> mass, routed = torch.tensor([0.5, 1.5]), torch.ones(2, 1, dtype=torch.bool)
    >>> texts = EncodedTexts(routed, keys=keys, weights=weights, mass=mass)
    >>> load_balancing_loss(texts).item()
    0.75
    """
    assert texts.keys is not None and texts.mass is not None and texts.weights is not None
    chosen = texts.keys if over == "top-k" else texts.keys[..., :1]  # [n, T, 1 or L]
    # The argmax of a token is counted even where its φ is 0: that is how a router comes back to life.
    lives = texts.routed[..., None].expand_as(chosen) if over == "argmax" else texts.weights > 0
    counts = torch.bincount(chosen[lives], minlength=len(texts.mass))[: len(texts.mass)]
    return (counts.to(texts.mass.dtype) / len(texts)) @ (texts.mass / len(texts))


def flops_loss(pooled: Tensor) -> Tensor:
    """SPLADE's regulariser: Σ_k (mean over texts of Φ_k)², the expected number of products a pair costs.

    >>> flops_loss(torch.tensor([[2.0, 0.0], [0.0, 0.0]])).item()
    1.0
    """
    return pooled.mean(0).square().sum()


def kl_distillation_loss(scores: Tensor, teacher: Tensor, temperature: float = 1.0) -> Tensor:
    """KL of the student's softmax over a query's own group to the teacher's; NaN marks a dummy, which leaves both.

    >>> group = torch.tensor([[1.0, 2.0, float("nan")]])
    >>> abs(kl_distillation_loss(torch.tensor([[1.0, 2.0, 9.0]]), group).item()) < 1e-6
    True
    """
    valid = ~teacher.isnan()  # [B, G]
    lives = valid | ~valid.any(-1, keepdim=True)  # the softmax of nothing would be NaN; such a row counts 0 below
    wanted = F.log_softmax(_masked(teacher.nan_to_num() / temperature, lives), -1)
    found = F.log_softmax(_masked(scores, lives), -1)
    # 0 · (-inf - -inf) is NaN, so dummies are cleared before the product.
    difference = torch.where(valid, wanted - found, 0)
    rows = (wanted.exp() * difference).sum(-1)
    return rows.sum() / valid.any(-1).sum().clamp(min=1)


def margin_mse_loss(scores: Tensor, teacher: Tensor) -> Tensor:
    """Margin-MSE: the student's lead of the positive over each negative is to be the teacher's.

    >>> margin_mse_loss(torch.tensor([[3.0, 1.0]]), torch.tensor([[5.0, 4.0]])).item()
    1.0
    """
    lead, wanted = scores[:, :1] - scores[:, 1:], teacher[:, :1] - teacher[:, 1:]
    valid = ~wanted.isnan()
    difference = torch.where(valid, lead - wanted.nan_to_num(), 0)
    return difference.square().sum() / valid.sum().clamp(min=1)


def own_group(scores: Tensor, group: int) -> Tensor:
    """Each query's scores with its own passages: [B, B·G] → [B, G].

    >>> own_group(torch.tensor([[1.0, 2.0, 3.0, 4.0], [5.0, 6.0, 7.0, 8.0]]), 2).tolist()
    [[1.0, 2.0], [7.0, 8.0]]
    """
    first = torch.arange(len(scores), device=scores.device)[:, None] * group
    return scores.gather(1, first + torch.arange(group, device=scores.device))


def _masked(scores: Tensor, allowed: Tensor | None) -> Tensor:
    return scores if allowed is None else scores.masked_fill(~allowed, float("-inf"))
