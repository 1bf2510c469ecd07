"""Refine a trained model so that short boilerplate ("See also", "Page 3") does not win short queries.

A dense vector of a text without a topic is close to every query, most of all to queries of one word. The
model learns from its own scores, with the scores of boilerplate capped: batches have many one-word queries
and some texts of boilerplate (`stubs.py`) beside the passages.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from citadel.model.citadel import Citadel, EncodedTexts
from citadel.model.encoder import TorchEncoder
from citadel.text.function_words import function_word_ids
from citadel.train import losses
from citadel.train.batches import Batches, TrainingBatch
from citadel.train.config import TrainConfig
from citadel.train.config_tables import HubsPart, LossPart
from citadel.train.data import Data
from citadel.train.inputs import Inputs, Marker, encode_by_length
from citadel.train.objective import regularisers
from citadel.train.stubs import draw_stub

if TYPE_CHECKING:
    from tokenizers import Tokenizer

Tokens = NDArray[Any]

_STREAM = 2  # random stream of the seed, distinct from those of batches
_FRAGMENTS = 0.25  # share of stubs that are the first words of a passage, or one of its words
_LOOSE = 0.7  # quantile for fragments: unlike boilerplate they may be about the query
_QUERIES = 2048  # whose mean is the direction of the offset
_CANDIDATES = 6  # words drawn for a query; rarer ones are preferred


class HubBatches(Batches):
    """Ordinary batches with short queries and stubs appended."""

    def __init__(self, data: Data, config: TrainConfig, tokenizer: Tokenizer) -> None:
        super().__init__(data, config)
        self._hubs, self._tokenizer = config.hubs, tokenizer
        vocabulary = tokenizer.get_vocab()
        self._continues = np.zeros(max(vocabulary.values()) + 1, np.bool_)  # [V]: "##ing"
        self._continues[[id for token, id in vocabulary.items() if token.startswith("##")]] = True
        self._empty = np.zeros_like(self._continues)  # [V]: tokens that two texts may share by chance
        ignored = [*data.special, *function_word_ids(vocabulary)]
        ignored += [id for token, id in vocabulary.items() if len(token) == 1]
        self._empty[ignored] = True
        self._frequency = np.bincount(_sample(data), minlength=len(self._continues)) + 1  # [V]

    def batch(self, step: int) -> TrainingBatch:
        """Return the batch of a forward pass."""
        rng = np.random.default_rng((self._seed, _STREAM, step))
        drawn = [self._draw(position) for position in self._positions(step)]
        passages = [text for each in drawn for text in each.texts]
        queries = [each.query for each in drawn]
        queries += [self._short_query(rng) for _ in range(self._hubs.short_queries)]
        queries += [self._word(drawn[at % len(drawn)].texts[0], rng) for at in range(self._hubs.word_queries)]
        stubs, quantiles = self._stubs(rng)
        query_ids, query_mask = self._pad(queries, self._part.query_length)
        passage_ids, passage_mask = self._pad([*passages, *stubs], self._part.passage_length)
        allowed = np.ones((len(queries), len(passages) + len(stubs)), np.bool_)
        caps = np.where(self._shared(queries, stubs), np.nan, quantiles).astype(np.float32)
        return TrainingBatch(query_ids, query_mask, passage_ids, passage_mask, allowed, None, caps)

    def _short_query(self, rng: np.random.Generator) -> Tokens:
        """One word, or two in 2 of 5 cases, as a query."""
        words = [self._word(self._passage(rng), rng) for _ in range(1 + (rng.random() < 0.4))]
        return np.concatenate([words[0][:-1], *(word[1:-1] for word in words[1:]), words[0][-1:]])

    def _passage(self, rng: np.random.Generator) -> Tokens:
        return self.data.passages[int(rng.integers(len(self.data.passages)))]

    def _word(self, passage: Tokens, rng: np.random.Generator) -> Tokens:
        """A word of a passage between [CLS] and [SEP]; every other time a rare one."""
        inner = passage[1:-1]
        starts = np.flatnonzero(~self._continues[inner])
        if not len(starts):
            return passage[:8]
        some = starts[rng.integers(len(starts), size=_CANDIDATES if rng.random() < 0.5 else 1)]
        start = int(some[np.argmin(self._frequency[inner[some]])])
        following = starts[starts > start]
        end = int(following[0]) if len(following) else len(inner)
        return np.concatenate([passage[:1], inner[start:end], passage[-1:]])

    def _stubs(self, rng: np.random.Generator) -> tuple[list[Tokens], NDArray[np.float32]]:
        """Stubs and the quantile that caps each."""
        fragments = round(self._hubs.stubs * _FRAGMENTS)
        texts = [draw_stub(rng) for _ in range(self._hubs.stubs - fragments)]
        kind = self.data.passages[0].dtype
        stubs = [np.array(each.ids, kind) for each in self._tokenizer.encode_batch(texts)]
        stubs += [self._fragment(rng) for _ in range(fragments)]
        return stubs, np.repeat(np.array([self._hubs.quantile, _LOOSE], np.float32), [len(texts), fragments])

    def _fragment(self, rng: np.random.Generator) -> Tokens:
        passage = self._passage(rng)
        if rng.random() < 0.5:
            return self._word(passage, rng)
        return np.concatenate([passage[: 2 + int(rng.integers(4))], passage[-1:]])

    def _shared(self, queries: list[Tokens], stubs: list[Tokens]) -> NDArray[np.bool_]:
        """Mask [B, S] of the stubs that share a token of some meaning with a query: they may match it."""
        of_stubs = np.zeros((len(stubs), len(self._empty)), np.bool_)  # [S, V]
        for row, stub in enumerate(stubs):
            of_stubs[row, stub] = True
        of_stubs &= ~self._empty
        return np.stack([of_stubs[:, query].any(axis=1) for query in queries])


def _sample(data: Data, size: int = 20_000) -> Tokens:
    """Tokens of some passages, to estimate frequencies."""
    rows = np.linspace(0, len(data.passages) - 1, min(size, len(data.passages))).astype(np.int64)
    return np.concatenate([data.passages[row] for row in rows.tolist()])


@torch.no_grad()
def start_offset(model: Citadel, data: Data, marker: Marker) -> None:
    """Set the direction of a new offset: all queries have a product near 1 with it."""
    if model.offset is None or bool(model.offset.direction.any()):
        return
    rows = np.linspace(0, len(data.queries) - 1, min(_QUERIES, len(data.queries))).astype(np.int64)
    encoder = TorchEncoder(model, marker, data.special.pad)
    semantic = encoder.encode([data.queries[row] for row in rows.tolist()], query=True).semantic
    assert semantic is not None
    mean = semantic.float().mean(0)  # [s]
    model.offset.direction.copy_(mean / (mean @ mean))


class HubTeacher:
    """The model before training, which scores each batch."""

    def __init__(self, model: Citadel, dtype: torch.dtype, groups: int) -> None:
        self._model = copy.deepcopy(model).requires_grad_(False).eval()
        self._dtype, self._groups = dtype, groups

    @torch.no_grad()
    def __call__(self, queries: Inputs, passages: Inputs) -> tuple[Tensor, Tensor | None]:
        """Scores and semantic scores, each [B, D]."""
        q = self._model.encode(*queries, query=True, learning=False, dtype=self._dtype)
        p = encode_by_length(
            passages, lambda part: self._model.encode(*part, learning=False, dtype=self._dtype), self._groups
        )
        return self._model.score(q, p), self._model.semantic_score(q, p)


def capped(scores: Tensor, caps: Tensor) -> Tensor:
    """Scores [B, D] whose last columns, the stubs', are at most a quantile of the passages'.

    `caps` [B, S] names the quantile; NaN leaves a score as it is.

    >>> capped(torch.tensor([[1.0, 2.0, 3.0, 9.0, 9.0]]), torch.tensor([[0.5, float("nan")]])).tolist()
    [[1.0, 2.0, 3.0, 2.0, 9.0]]
    """
    size = caps.shape[1]
    ordered = scores[:, :-size].sort(dim=1).values  # [B, D - S]
    index = (caps.nan_to_num() * (ordered.shape[1] - 1)).round().long()  # [B, S]
    limit = torch.where(caps.isnan(), torch.inf, ordered.gather(1, index))
    return torch.cat([scores[:, :-size], torch.minimum(scores[:, -size:], limit)], 1)


def hub_terms(
    model: Citadel,
    queries: EncodedTexts,
    passages: EncodedTexts,
    labels: Mapping[str, Tensor],
    loss: LossPart,
    hubs: HubsPart,
) -> dict[str, Tensor]:
    """Terms of the loss: divergence from the capped scores, their shape, and stubs above their cap."""
    semantic = model.semantic_score(queries, passages)
    lexical = model.lexical_score(queries, passages)
    assert semantic is not None and lexical is not None
    scores, caps = semantic + lexical, labels["caps"]
    target = labels["scores"]
    excess = F.relu(_centred(scores, caps) - _centred(target, caps))[:, -caps.shape[1] :]
    terms = {
        "distillation": loss.soft_label * losses.kl_distillation_loss(scores, target),
        "shape": hubs.shape * (_centred(scores, caps) - _centred(target, caps)).square().mean(),
        "stubs": hubs.penalty * torch.where(caps.isnan(), 0, excess).mean(),
    }
    terms["anchor"] = hubs.anchor * losses.kl_distillation_loss(semantic, labels["semantic"])
    return terms | regularisers(model, queries, passages, loss)


def _centred(scores: Tensor, caps: Tensor) -> Tensor:
    """Scores minus the mean over a query's passages, stubs left out."""
    return scores - scores[:, : -caps.shape[1]].mean(1, keepdim=True)


def hub_labels(teacher: HubTeacher, queries: Inputs, passages: Inputs, caps: Tensor) -> dict[str, Tensor]:
    """Labels of a batch: the teacher's scores with capped stubs."""
    scores, semantic = teacher(queries, passages)
    assert semantic is not None
    return {"scores": capped(scores, caps), "semantic": capped(semantic, caps), "caps": caps}
