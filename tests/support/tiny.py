"""Tiny random torch models in float64 and texts, small enough to compare with plain loops."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from citadel.model.citadel import Citadel
from citadel.train.inputs import Inputs, Marker
from tests.support.models import VOCABULARY, tiny_config, tiny_state

FIRST_WORD = 5  # ids below it are special tokens
PUNCTUATION = [VOCABULARY.index(mark) for mark in ".,!?"]


def tiny_citadel(router: str = "dynamic", seed: int = 0, quiet: float = 0.0, **changes: Any) -> Citadel:
    """A random model in float64; `quiet` is subtracted from every logit, so that some tokens have no key."""
    config = tiny_config(router, **changes)
    model = Citadel(config)
    model.load_state_dict({name: torch.from_numpy(array) for name, array in tiny_state(config, seed).items()})
    if model.router is not None:
        with torch.no_grad():
            model.router.bias.sub_(quiet)
    return model.double()


def tiny_texts(model: Citadel, count: int, seed: int, longest: int = 7, query: bool = False) -> Inputs:
    """Texts from a small vocabulary, so that words repeat: [CLS] words [SEP], padded to the longest."""
    config, rng = model.config, np.random.default_rng(seed)
    lengths = rng.integers(1, longest + 1, count)
    ids = np.full((count, int(lengths.max()) + 2), config.pad_id, np.int64)
    for row, length in zip(ids, lengths, strict=True):
        words = rng.integers(FIRST_WORD, FIRST_WORD + 30, length)
        row[: length + 2] = [config.cls_id, *words, config.sep_id]
    mask = torch.from_numpy((ids != config.pad_id).astype(np.int64))
    return Marker(config, PUNCTUATION)(torch.from_numpy(ids), mask, query)
