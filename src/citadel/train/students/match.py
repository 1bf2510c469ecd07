"""Losses of a student: the distance of its states, vectors and scores from the teacher's."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from citadel.model.citadel import Citadel, EncodedTexts
from citadel.model.router import route_top
from citadel.train.inputs import Inputs
from citadel.train.losses import kl_distillation_loss
from citadel.train.objective import pruned
from citadel.train.students.config import MatchPart


class TextStates(NamedTuple):
    """What student and teacher compute for some texts."""

    hidden: Tensor  # [n, T, h], last states
    router: Tensor  # [n, T, h], inputs of the decoder
    vectors: Tensor  # [n, T, d]
    semantic: Tensor | None  # [n, s]


def text_states(
    model: Citadel, texts: Inputs, dtype: torch.dtype, padded: bool, query: bool = False
) -> TextStates:
    """Run a model up to its heads."""
    assert model.router is not None
    hidden = model(texts.ids, texts.mask, dtype, padded)
    vectors = model.token_vectors(hidden, texts.routed)
    semantic = model.semantic_vector(hidden, texts.mask, query)
    return TextStates(hidden, model.router(hidden), vectors, semantic)


@dataclass
class TextLosses:
    """Sums over the tokens and texts of a batch, gathered group by group."""

    sums: dict[str, Tensor] = field(default_factory=dict)
    counts: dict[str, Tensor] = field(default_factory=lambda: defaultdict(lambda: torch.zeros(())))

    def add(self, name: str, total: Tensor, count: Tensor) -> None:
        """Add a sum over `count` items."""
        known = name in self.sums
        self.sums[name] = self.sums[name] + total if known else total
        self.counts[name] = self.counts[name] + count if known else count

    def means(self) -> dict[str, Tensor]:
        """The mean of each term."""
        return {name: total / self.counts[name].clamp(min=1) for name, total in self.sums.items()}


def match_texts(losses: TextLosses, student: TextStates, teacher: TextStates, texts: Inputs) -> None:
    """Add the distances of states and vectors of one group of texts.

    >>> losses = TextLosses()
    >>> one, ids = torch.ones(1, 1, 2), torch.ones(1, 1, dtype=torch.long)
    >>> states = TextStates(one, one, one, one[0])
    >>> match_texts(losses, states._replace(hidden=3 * one), states, Inputs(ids, ids, ids > 0))
    >>> {name: round(value.item(), 6) for name, value in losses.means().items()}
    {'states': 4.0, 'router': 0.0, 'tokens': 0.0, 'semantic': 0.0}
    """
    attended, routed = texts.mask.float(), texts.routed.float()  # [n, T]
    for name, ours, theirs, mask in (
        ("states", student.hidden, teacher.hidden, attended),
        ("router", student.router, teacher.router, routed),
        ("tokens", student.vectors, teacher.vectors, routed),
    ):
        squares = (ours.float() - theirs.float()).square().mean(-1)  # [n, T]
        losses.add(name, (squares * mask).sum(), mask.sum())
    if student.semantic is not None and teacher.semantic is not None:
        distance = 1 - F.cosine_similarity(student.semantic, teacher.semantic, dim=-1)  # [n]
        losses.add("semantic", distance.sum(), torch.ones_like(distance).sum())


def match_semantic_scores(student: Tensor, teacher: Tensor, bank: Tensor) -> Tensor:
    """KL of the semantic scores of texts [n, s] over the teacher's passages [m, s]."""
    return kl_distillation_loss(student @ bank.T, teacher @ bank.T)


class Keys(NamedTuple):
    """Keys of a group of texts and their weights."""

    keys: Tensor  # [n, T, k]
    weights: Tensor  # [n, T, k]


@torch.no_grad()
def top_keys(model: Citadel, router: Tensor, routed: Tensor, count: int) -> Keys:
    """The keys a model chooses, without gradients."""
    assert model.router is not None
    weights, keys = route_top(router.detach(), model.embeddings.word, model.router.bias, routed, count)
    return Keys(keys, weights)


def weights_at(model: Citadel, router: Tensor, routed: Tensor, keys: Tensor) -> Tensor:
    """φ of given keys, with gradients: [n, T, k]."""
    assert model.router is not None
    rows = model.embeddings.word[keys].to(router.dtype)  # [n, T, k, h]
    logits = torch.einsum("nth,ntkh->ntk", router, rows).float() + model.router.bias[keys]
    return torch.log1p(logits.clamp(min=0)) * routed[..., None]


@dataclass
class ScoredTexts:
    """Student's and teacher's encodings of the groups of one side of a batch."""

    student: list[EncodedTexts] = field(default_factory=list)
    teacher: list[EncodedTexts] = field(default_factory=list)

    def joined(self) -> tuple[EncodedTexts, EncodedTexts]:
        """All groups of the student, and of the teacher."""
        return EncodedTexts.join(self.student), EncodedTexts.join(self.teacher)

    def detached(self) -> ScoredTexts:
        """The same without gradients."""
        sides = ([_detached(texts) for texts in side] for side in (self.student, self.teacher))
        return ScoredTexts(*sides)


def _detached(texts: EncodedTexts) -> EncodedTexts:
    return texts.with_tensors({name: tensor.detach() for name, tensor in texts.tensors().items()})


def add_scored(
    side: ScoredTexts,
    losses: TextLosses,
    models: tuple[Citadel, Citadel],
    states: tuple[TextStates, TextStates],
    routed: Tensor,
    count: int,
) -> None:
    """Route a group with student and teacher; add the distance of φ at the teacher's keys."""
    (student, teacher), (ours, theirs) = models, states
    target = top_keys(teacher, theirs.router, routed, count)
    keys = top_keys(student, ours.router, routed, count).keys
    weights = weights_at(student, ours.router, routed, keys)
    with torch.no_grad():
        wanted = weights_at(teacher, theirs.router, routed, keys)
    mask = routed[..., None].float()
    for given, true in (
        (weights_at(student, ours.router, routed, target.keys), target.weights),
        (weights, wanted),  # keys that the teacher would not choose
    ):
        losses.add("weights", ((given - true).square() * mask).sum(), mask.sum() * count)
    side.student.append(_encoded(ours, routed, keys, weights))
    side.teacher.append(_encoded(theirs, routed, *target))


def _encoded(states: TextStates, routed: Tensor, keys: Tensor, weights: Tensor) -> EncodedTexts:
    active = (weights.detach() > 0).sum()
    return EncodedTexts(routed, states.vectors, keys, weights, active=active, semantic=states.semantic)


def match_scores(model: Citadel, queries: ScoredTexts, passages: ScoredTexts) -> Tensor:
    """KL of the full scores of the student's queries, over the student's and over the teacher's passages."""
    tau = model.config.tau
    student, teacher = queries.joined()
    ours, theirs = (pruned(side, tau) for side in passages.joined())
    with torch.no_grad():
        target = model.score(teacher, theirs)  # [B, D]
    both = (kl_distillation_loss(model.score(student, side), target) for side in (ours, theirs))
    return torch.stack(list(both)).mean()


def same_key(texts: ScoredTexts) -> float:
    """Share of routed tokens whose best key is the teacher's."""
    student, teacher = texts.joined()
    assert student.keys is not None and teacher.keys is not None
    same = (student.keys[..., 0] == teacher.keys[..., 0]) & teacher.routed
    return float(same.sum() / teacher.routed.sum().clamp(min=1))


def weighted(terms: dict[str, Tensor], part: MatchPart) -> Tensor:
    """The loss: the sum of the terms times their weights."""
    return torch.stack([getattr(part, name) * term for name, term in terms.items()]).sum()
