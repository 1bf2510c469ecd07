"""Queries for an index without a model: random vectors, with keys drawn by their number of postings."""

from __future__ import annotations

import numpy as np

from citadel.errors import InputError
from citadel.index.snapshot import Snapshot
from citadel.index.stats import list_lengths
from citadel.types import RoutedTokens


def random_queries(snapshot: Snapshot, count: int, tokens: int, seed: int = 0) -> list[RoutedTokens]:
    """Random routed tokens for an index; deterministic per seed."""
    lengths, settings = list_lengths(snapshot), snapshot.settings
    generator = np.random.default_rng(seed)
    if settings.lexical is not None and not lengths:
        raise InputError("the index has no postings: add documents first")
    keys = np.array(sorted(lengths), np.uint32)
    share = np.array([lengths[key] for key in keys.tolist()], np.float64)
    queries = []
    for _ in range(count):
        drawn = generator.choice(keys, tokens, p=share / share.sum()) if len(keys) else np.zeros(0, np.uint32)
        weights = generator.uniform(0.5, 2.0, len(drawn)).astype(np.float32)
        lexical, semantic = settings.lexical, settings.semantic
        vectors = generator.standard_normal((len(drawn), lexical.dimension), np.float32) if lexical else None
        queries.append(
            RoutedTokens(
                drawn,
                weights,
                vectors if lexical and lexical.dimension else None,
                generator.standard_normal(semantic.dimension, np.float32) if semantic else None,
            )
        )
    return queries
