"""Eq. 14: the loss of one batch, composed of the terms of the config."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from citadel.model.citadel import Citadel, EncodedTexts
from citadel.train import losses
from citadel.train.config_tables import LossPart


@dataclass(frozen=True)
class Labels:
    """Labels of a batch; the positive of query b is passage b·G."""

    group: int  # G
    allowed: Tensor | None = None  # [B, D]
    teacher: Tensor | None = None  # [B, G]: scores of a query's own group, or [B, D]: of all passages
    anchor: Tensor | None = None  # [B, D]: target logits of the semantic score


def objective(
    model: Citadel,
    queries: EncodedTexts,
    passages: EncodedTexts,
    labels: Labels,
    loss: LossPart,
    progress: float,
) -> dict[str, Tensor]:
    """Compute the weighted terms of the loss by name; their sum is minimised.

    `progress`, from 0 to 1, drives the ramp of the regularisers and of pruning.
    """
    kept = pruned(passages, model.config.tau * min(1.0, progress / loss.prune)) if loss.prune else passages
    lexical, semantic = model.lexical_score(queries, kept), model.semantic_score(queries, kept)
    scores = _total(lexical, semantic) / loss.temperature  # [B, D]
    positives = torch.arange(len(queries), device=scores.device) * labels.group
    terms = {"contrastive": loss.hard_label * losses.contrastive_loss(scores, positives, labels.allowed)}
    if queries.pooled is not None and passages.pooled is not None and model.config.router == "dynamic":
        term = losses.router_contrastive_loss(queries.pooled, passages.pooled, positives, labels.allowed)
        terms["router"] = loss.router_contrastive * term
    if labels.teacher is not None and loss.distillation != "none":
        student = scores if loss.distill_semantic or lexical is None else lexical / loss.temperature
        terms["distillation"] = loss.soft_label * _distill(student, labels, loss)
        if loss.distill_router and queries.pooled is not None and passages.pooled is not None:
            routed = queries.pooled @ passages.pooled.T / loss.temperature
            terms["router_distillation"] = loss.soft_label * _distill(routed, labels, loss)
    if labels.anchor is not None and semantic is not None:
        terms["anchor"] = loss.anchor * losses.kl_distillation_loss(
            semantic / loss.temperature, labels.anchor
        )
    ramp = min(1.0, progress / loss.ramp) ** loss.ramp_power if loss.ramp else 1.0
    return terms | {name: ramp * term for name, term in regularisers(model, queries, passages, loss).items()}


def pruned(texts: EncodedTexts, tau: float) -> EncodedTexts:
    """Set the weights that an index would drop to 0.

    >>> pruned(EncodedTexts(torch.ones(1, 1), weights=torch.tensor([[[0.5, 2.0]]])), tau=0.5).weights.tolist()
    [[[0.0, 2.0]]]
    """
    if texts.weights is None:
        return texts
    return texts.with_tensors({"weights": torch.where(texts.weights > tau, texts.weights, 0)})


def _total(lexical: Tensor | None, semantic: Tensor | None) -> Tensor:
    if lexical is None or semantic is None:
        score = lexical if semantic is None else semantic
        assert score is not None
        return score
    return lexical + semantic


def _distill(scores: Tensor, labels: Labels, loss: LossPart) -> Tensor:
    assert labels.teacher is not None
    teacher, scores_all = labels.teacher, labels.teacher.shape[1] > labels.group
    temperature = 1.0 if scores_all else loss.teacher_temperature
    if loss.distillation == "margin-mse" or not scores_all:
        scores = losses.own_group(scores, labels.group)  # [B, G]
    if loss.distillation == "margin-mse":
        own = losses.own_group(teacher, labels.group) if scores_all else teacher
        return losses.margin_mse_loss(scores, own / temperature)
    return losses.kl_distillation_loss(scores, teacher, temperature)


def regularisers(
    model: Citadel, queries: EncodedTexts, passages: EncodedTexts, loss: LossPart
) -> dict[str, Tensor]:
    """FLOPS, load balancing and L1, as far as the config has them."""
    terms: dict[str, Tensor] = {}
    if queries.pooled is None or passages.pooled is None:
        return terms
    if loss.flops_query or loss.flops_passage:
        terms["flops"] = loss.flops_query * losses.flops_loss(queries.pooled)
        terms["flops"] = terms["flops"] + loss.flops_passage * losses.flops_loss(passages.pooled)
    sides = (queries, passages) if model.config.router == "dynamic" else ()
    if loss.alpha and sides:
        balance = (losses.load_balancing_loss(side, loss.balance) for side in sides)
        terms["balance"] = loss.alpha * sum(balance, _zero(queries))
    if loss.beta and sides:
        l1 = (losses.l1_loss(side, loss.l1) for side in (sides if loss.l1_sides == "both" else (passages,)))
        terms["l1"] = loss.beta * sum(l1, _zero(queries))
    return terms


def _zero(texts: EncodedTexts) -> Tensor:
    assert texts.pooled is not None
    return texts.pooled.new_zeros(())
