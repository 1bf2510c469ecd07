"""Tokens that a student skips in documents, because they hardly ever have a key."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from citadel.model.citadel import Citadel
from citadel.progress import Meter, silent
from citadel.train.inputs import Marker
from citadel.train.students.match import text_states, top_keys
from citadel.train.students.spans import Corpus

LENGTH = 160  # tokens of a passage
_SAMPLE, _PER_BATCH = 4096, 64  # passages
_FEWEST = 50  # occurrences of a token that is skipped


@torch.no_grad()
def skipped_tokens(
    student: Citadel,
    corpus: Corpus,
    marker: Marker,
    share: float,
    seed: int,
    dtype: torch.dtype,
    meter: Meter = silent,
) -> tuple[int, ...]:
    """Ids of which at most this share have a key in documents, in a sample of the passages."""
    if not share:
        return ()
    passages = corpus.passages.some(sampled(len(corpus.passages), seed)).cut(LENGTH)
    order = np.argsort(passages.lengths, kind="stable")
    vocabulary = student.config.backbone.vocabulary
    counts = torch.zeros(2, vocabulary, dtype=torch.long)  # all tokens, those with a key
    with meter("Counting tokens without keys", "passages", len(order)) as progress:
        for start in range(0, len(order), _PER_BATCH):
            ids, mask, padded = corpus.batch(passages.some(order[start : start + _PER_BATCH]))
            texts = marker(ids, mask)
            states = text_states(student, texts, dtype, padded)
            weights = top_keys(student, states.router, texts.routed, 1).weights[..., 0]  # [n, T]
            for row, chosen in enumerate((texts.routed, weights > student.config.tau)):
                counts[row] += torch.bincount(texts.ids[chosen], minlength=vocabulary).cpu()
            progress(min(start + _PER_BATCH, len(order)))
    total, keyed = counts.numpy()
    return hardly_routed(total, keyed, share)


def sampled(passages: int, seed: int) -> NDArray[np.int64]:
    """The rows of the passages that tokens are counted in."""
    return np.random.default_rng(seed).permutation(passages)[:_SAMPLE]


def hardly_routed(total: NDArray[Any], keyed: NDArray[Any], share: float) -> tuple[int, ...]:
    """Ids of which at most this share have a key, from counts of all tokens and of those with a key [V]."""
    rare = (total >= _FEWEST) & (keyed <= share * total)
    return tuple(np.flatnonzero(rare).tolist())
