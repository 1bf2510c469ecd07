"""A teacher that scores every passage of each batch: sentence encoders, optionally with BM25.

Scores from a file cover only a query's own group. Here the student learns from the whole batch, including
cropped queries.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from citadel.errors import InputError
from citadel.model.citadel import Citadel, EncodedTexts
from citadel.model.encoder import dense_model
from citadel.routing.bm25 import idf, length_norm
from citadel.settings import DEFAULT_B, DEFAULT_K1
from citadel.train.batches import TrainingBatch
from citadel.train.config import TrainConfig, expand
from citadel.train.config_tables import LossPart
from citadel.train.data import Data
from citadel.train.inputs import Inputs, encode_by_length
from citadel.train.processes import World
from citadel.train.ragged import PART, Ragged
from citadel.train.tokens import TokenIds, load_tokenizer


class TeacherScores(NamedTuple):
    """Teacher logits of one batch: cosines times the weights of the encoders."""

    dense: Tensor  # [B, D]
    fused: Tensor  # [B, D], with BM25


@dataclass(frozen=True)
class BatchTeacher:
    """Scores a batch of the student's token ids, so that both must share a vocabulary."""

    models: tuple[tuple[Citadel, float], ...]  # with the factor of their cosines
    lexical: TokenBm25
    loss: LossPart
    dtype: torch.dtype
    groups: int = 1  # parts of similar length

    @torch.no_grad()
    def __call__(self, batch: TrainingBatch, world: World) -> TeacherScores:
        first, *others = (self._cosines(model, batch, world) * weight for model, weight in self.models)
        dense = sum(others, first)
        if not self.loss.bm25:
            return TeacherScores(dense, dense)
        ids = (torch.from_numpy(side).to(dense.device) for side in (batch.query_ids, batch.passage_ids))
        return TeacherScores(dense, dense + self.loss.bm25 * self.lexical(*ids))

    def _cosines(self, model: Citadel, batch: TrainingBatch, world: World) -> Tensor:
        """Cosine of each query with each passage: [B, D]."""
        queries = self._vectors(model, batch.query_ids, batch.query_mask, world)  # [B, h]
        passages = self._vectors(model, batch.passage_ids, batch.passage_mask, world)  # [D, h]
        return queries @ passages.T

    def _vectors(self, model: Citadel, ids: TokenIds, mask: TokenIds, world: World) -> Tensor:
        """Unit vectors of all texts; every process encodes its share."""

        def encode(texts: Inputs) -> EncodedTexts:
            return model.encode(*texts, learning=False, dtype=self.dtype)

        whole = Inputs(*(torch.from_numpy(side).to(world.device) for side in (ids, mask, mask > 0)))
        encoded = encode_by_length(world.share(whole), encode, self.groups)
        vectors = world.gather(encoded).semantic
        assert vectors is not None
        return vectors.float()


@dataclass(frozen=True)
class TokenBm25:
    """BM25 over tokens, of every query with every passage of a batch.

    >>> bm25 = TokenBm25.of(Ragged.of([[1, 5, 2], [1, 6, 6, 2]]), vocabulary=8, silent=[0, 1, 2])
    >>> bm25(torch.tensor([[1, 6, 2]]), torch.tensor([[1, 5, 2, 0], [1, 6, 6, 2]])).tolist()
    [[0.0, 0.45...]]
    """

    rarity: Tensor  # [V]: idf, 0 for `silent` tokens
    average: float  # terms per passage

    @classmethod
    def of(
        cls, passages: Ragged, vocabulary: int, silent: list[int], device: torch.device | str = "cpu"
    ) -> TokenBm25:
        """Count the terms of a collection; `silent` tokens are not terms."""
        frequency = document_frequency(passages, vocabulary)
        values, inverse = np.unique(frequency, return_inverse=True)
        rarity = np.array([idf(len(passages), int(value)) for value in values], np.float32)[inverse]
        rarity[silent] = 0
        is_term = np.ones(vocabulary, bool)
        is_term[silent] = False
        terms = sum(int(is_term[part.values[:]].sum()) for part in passages.parts())
        return cls(torch.from_numpy(rarity).to(device), terms / max(1, len(passages)))

    def __call__(self, queries: Tensor, passages: Tensor) -> Tensor:
        """[B, Tq] and [D, Tp] → [B, D]."""
        terms = torch.unique(queries[self.rarity[queries] > 0])  # [U]
        # All tokens that are not in a query share one extra column.
        column = torch.full_like(self.rarity, len(terms), dtype=torch.long)
        column[terms] = torch.arange(len(terms), device=terms.device)
        tf = _counts(column[passages], len(terms))  # [D, U]
        lengths = (self.rarity[passages] > 0).sum(1, keepdim=True)  # [D, 1]
        base, slope = length_norm(self.average, DEFAULT_K1, DEFAULT_B)
        weights = _counts(column[queries], len(terms)) * self.rarity[terms]  # [B, U]
        return weights @ (tf / (tf + base + slope * lengths)).T


def _counts(columns: Tensor, width: int) -> Tensor:
    """Count how often each column occurs in each row; column `width` is dropped."""
    ones = torch.ones_like(columns, dtype=torch.float32)
    counts = torch.zeros(len(columns), width + 1, device=columns.device).scatter_add_(1, columns, ones)
    return counts[:, :width]


def document_frequency(passages: Ragged, vocabulary: int, chunk: int = PART) -> NDArray[np.int64]:
    """Number of passages that contain each token.

    >>> document_frequency(Ragged.of([[1, 1, 2], [2]]), 4).tolist()
    [0, 1, 2, 0]
    """
    frequency = np.zeros(vocabulary, np.int64)
    for part in passages.parts(chunk):
        kind = np.int32 if chunk * vocabulary < 1 << 31 else np.int64  # int32 sorts much faster
        rows = np.repeat(np.arange(len(part), dtype=kind) * vocabulary, part.lengths)
        both = np.sort(rows + part.values[:].astype(kind))
        first = both[np.flatnonzero(np.diff(both, prepend=-1))]
        frequency += np.bincount(first % vocabulary, minlength=vocabulary)
    return frequency


def find_batch_teacher(
    config: TrainConfig,
    data: Data,
    vocabulary: dict[str, int],
    silent: list[int],
    device: torch.device,
    dtype: torch.dtype,
) -> BatchTeacher | None:
    """Load the teacher named in [loss]; None if there is none."""
    loss = config.loss
    if not loss.teacher:
        return None
    weights = {loss.teacher: 1 / loss.teacher_temperature, **loss.teachers}
    models = tuple(
        (_sentence_encoder(name, vocabulary, dtype).to(device), weight) for name, weight in weights.items()
    )
    for model, _ in models:
        model.speed_up(config.run.compile, config.run.packed)
    lexical = TokenBm25.of(data.passages, models[0][0].config.backbone.vocabulary, silent, device)
    return BatchTeacher(models, lexical, loss, dtype, config.run.groups)


def _sentence_encoder(name: str, vocabulary: dict[str, int], dtype: torch.dtype) -> Citadel:
    model, folder = dense_model(expand(name))
    if load_tokenizer(folder).get_vocab() != vocabulary:
        raise InputError(
            "the teacher's vocabulary differs from the backbone's: use `citadel score` instead", folder
        )
    model.keep_in(dtype)  # saves 12 casts per layer and pass
    return model.requires_grad_(False)
