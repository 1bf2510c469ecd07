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
    """What is right in a batch: query b's positive is passage b·G; `teacher` scores its own group or all passages."""

    group: int  # G
    allowed: Tensor | None = None  # [B, D]
    teacher: Tensor | None = None  # [B, G] or [B, D]
    anchor: Tensor | None = None  # [B, D]: logits the semantic part is to keep


def objective(
    model: Citadel, queries: EncodedTexts, passages: EncodedTexts, labels: Labels, loss: LossPart, progress: float
) -> dict[str, Tensor]:
    """The terms of the loss, weighted, by name; their sum is what is minimised.

    `progress` is the share of the run that is done: regularisers rise with it where the config has a ramp.
    """
    kept = pruned(passages, model.config.tau * min(1.0, progress / loss.prune)) if loss.prune else passages
    lexical, semantic = model.lexical_score(queries, kept), model.semantic_score(queries, kept)
    scores = _total(lexical, semantic) / loss.temperature  # [B, D]
    positives = torch.arange(len(queries), device=scores.device) * labels.group
    terms = {"contrastive": loss.hard_label * losses.contrastive_loss(scores, positives, labels.allowed)}
    if queries.pooled is not None and passages.pooled is not None and model.config.router == "dynamic":
        found = losses.router_contrastive_loss(queries.pooled, passages.pooled, positives, labels.allowed)
        terms["router"] = loss.router_contrastive * found
    if labels.teacher is not None and loss.distillation != "none":
        student = scores if loss.distill_semantic or lexical is None else lexical / loss.temperature
        terms["distillation"] = loss.soft_label * _distill(student, labels, loss)
        if loss.distill_router and queries.pooled is not None and passages.pooled is not None:
            routed = queries.pooled @ passages.pooled.T / loss.temperature
            terms["router_distillation"] = loss.soft_label * _distill(routed, labels, loss)
    if labels.anchor is not None and semantic is not None:
        terms["anchor"] = loss.anchor * losses.kl_distillation_loss(semantic / loss.temperature, labels.anchor)
    ramp = min(1.0, progress / loss.ramp) ** loss.ramp_power if loss.ramp else 1.0
    return terms | {name: ramp * term for name, term in _regularisers(model, queries, passages, loss).items()}


def pruned(texts: EncodedTexts, tau: float) -> EncodedTexts:
    """The texts without the weights an index would drop.

    >>> pruned(EncodedTexts(torch.ones(1, 1), weights=torch.tensor([[[0.5, 2.0]]])), tau=0.5).weights.tolist()
    [[[0.0, 2.0]]]
    """
    if texts.weights is None:
        return texts
    return texts.with_tensors({"weights": torch.where(texts.weights > tau, texts.weights, 0)})


def _total(lexical: Tensor | None, semantic: Tensor | None) -> Tensor:
    if lexical is None or semantic is None:
        found = lexical if semantic is None else semantic
        assert found is not None
        return found
    return lexical + semantic


def _distill(scores: Tensor, labels: Labels, loss: LossPart) -> Tensor:
    assert labels.teacher is not None
    teacher, everywhere = labels.teacher, labels.teacher.shape[1] > labels.group
    temperature = 1.0 if everywhere else loss.teacher_temperature
    if loss.distillation == "margin-mse" or not everywhere:
        scores = losses.own_group(scores, labels.group)  # [B, G]
    if loss.distillation == "margin-mse":
        own = losses.own_group(teacher, labels.group) if everywhere else teacher
        return losses.margin_mse_loss(scores, own / temperature)
    return losses.kl_distillation_loss(scores, teacher, temperature)


def _regularisers(model: Citadel, queries: EncodedTexts, passages: EncodedTexts, loss: LossPart) -> dict[str, Tensor]:
    terms: dict[str, Tensor] = {}
    if queries.pooled is None or passages.pooled is None:
        return terms
    if loss.flops_query or loss.flops_passage:
        terms["flops"] = loss.flops_query * losses.flops_loss(queries.pooled)
        terms["flops"] = terms["flops"] + loss.flops_passage * losses.flops_loss(passages.pooled)
    sides = (queries, passages) if model.config.router == "dynamic" else ()
    if loss.alpha and sides:
        terms["balance"] = loss.alpha * sum(
            (losses.load_balancing_loss(s, loss.balance) for s in sides), _zero(queries)
        )
    if loss.beta and sides:
        shrunk = sides if loss.l1_sides == "both" else (passages,)
        terms["l1"] = loss.beta * sum((losses.l1_loss(side, loss.l1) for side in shrunk), _zero(queries))
    return terms


def _zero(texts: EncodedTexts) -> Tensor:
    assert texts.pooled is not None
    return texts.pooled.new_zeros(())
