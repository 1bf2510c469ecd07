"""Prune postings: keep only the best of a document under each key.

A word that repeats in a document has several similar postings under its key, and a query token counts only
the best product. Keeping the posting of largest weight halves the index at no loss of quality
(docs/results.md). It commutes with τ, which drops the posting of largest weight last.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from citadel.encode.tokenizer import Encoding
from citadel.types import RoutedTokens


def best_of_keys(text: RoutedTokens, limit: int) -> NDArray[np.bool_]:
    """Mask [P] of the `limit` rows of largest weight under each key; ties go to the first.

    >>> text = RoutedTokens(np.array([7, 9, 7], np.uint32), np.array([1.0, 0.5, 2.0], np.float32))
    >>> best_of_keys(text, 1).tolist()
    [False, True, True]
    """
    order = np.lexsort((-text.weights, text.keys))
    first = np.searchsorted(text.keys[order], text.keys[order])  # first row of the same key
    kept = np.zeros(len(order), np.bool_)
    kept[order[np.arange(len(order)) - first < limit]] = True
    return kept


def with_lengths(texts: Sequence[Encoding], routed: Sequence[RoutedTokens]) -> list[RoutedTokens]:
    """Mark the queries whose text was cut or has no tokens."""
    return [
        replace(query, is_cut=text.cut, is_blank=text.is_blank) if text.cut or text.is_blank else query
        for text, query in zip(texts, routed, strict=True)
    ]


def without_blanks(texts: Sequence[Encoding], routed: Sequence[RoutedTokens]) -> list[RoutedTokens]:
    """Give documents without tokens no postings and a zero semantic vector, so that they never match."""
    return [
        _blank(document) if text.is_blank else document for text, document in zip(texts, routed, strict=True)
    ]


def _blank(document: RoutedTokens) -> RoutedTokens:
    semantic = None if document.semantic is None else np.zeros_like(document.semantic)
    return replace(taken(document, np.zeros(len(document), np.bool_)), semantic=semantic, is_blank=True)


def taken(text: RoutedTokens, rows: NDArray[np.bool_]) -> RoutedTokens:
    """Select rows of a text."""
    return replace(
        text,
        keys=text.keys[rows],
        weights=text.weights[rows],
        vectors=None if text.vectors is None else text.vectors[rows],
        tokens=None if text.tokens is None else text.tokens[rows],
    )
