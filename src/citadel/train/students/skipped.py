"""Tokens that a student skips in documents, because they hardly ever have a key."""

from __future__ import annotations

import numpy as np
import torch

from citadel.model.citadel import Citadel
from citadel.train.inputs import Marker
from citadel.train.students.match import text_states, top_keys
from citadel.train.students.spans import Corpus

_SAMPLE, _PER_BATCH, _LENGTH = 4096, 64, 160  # passages; tokens of each
_FEWEST = 50  # occurrences of a token that is skipped


@torch.no_grad()
def skipped_tokens(
    teacher: Citadel, corpus: Corpus, marker: Marker, share: float, seed: int, dtype: torch.dtype
) -> tuple[int, ...]:
    """Ids of which at most this share have a key in documents, in a sample of the passages."""
    if not share:
        return ()
    rng = np.random.default_rng(seed)
    passages = corpus.passages.some(rng.permutation(len(corpus.passages))[:_SAMPLE]).cut(_LENGTH)
    order = np.argsort(passages.lengths, kind="stable")
    vocabulary = teacher.config.backbone.vocabulary
    counts = torch.zeros(2, vocabulary, dtype=torch.long)  # all tokens, those with a key
    for start in range(0, len(order), _PER_BATCH):
        ids, mask, padded = corpus.batch(passages.some(order[start : start + _PER_BATCH]))
        texts = marker(ids, mask)
        states = text_states(teacher, texts, dtype, padded)
        weights = top_keys(teacher, states.router, texts.routed, 1).weights[..., 0]  # [n, T]
        for row, chosen in enumerate((texts.routed, weights > teacher.config.tau)):
            counts[row] += torch.bincount(texts.ids[chosen], minlength=vocabulary).cpu()
    rare = (counts[0] >= _FEWEST) & (counts[1] <= share * counts[0])
    return tuple(torch.nonzero(rare)[:, 0].tolist())
