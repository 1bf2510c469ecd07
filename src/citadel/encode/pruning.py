"""Which of a document's postings are kept under one key.

A word that occurs in a document several times has several postings under its key, much alike, of which a query token
counts the best product. Keeping the one of most weight halves the index and costs no quality (docs/results.md). τ
and this can act in either order: the one of most weight is the last that τ drops.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from citadel.encode.tokenizer import Encoding
from citadel.types import RoutedTokens


def best_of_keys(text: RoutedTokens, limit: int) -> NDArray[np.bool_]:
    """Which rows [P] are among the `limit` of their key by weight; of equal ones the first.

    >>> text = RoutedTokens(np.array([7, 9, 7], np.uint32), np.array([1.0, 0.5, 2.0], np.float32))
    >>> best_of_keys(text, 1).tolist()
    [False, True, True]
    """
    order = np.lexsort((-text.weights, text.keys))
    first = np.searchsorted(text.keys[order], text.keys[order])  # where each one's key begins
    kept = np.zeros(len(order), np.bool_)
    kept[order[np.arange(len(order)) - first < limit]] = True
    return kept


def with_lengths(texts: Sequence[Encoding], routed: Sequence[RoutedTokens]) -> list[RoutedTokens]:
    """The same queries, marked where the text was cut or has no tokens."""
    return [
        replace(query, is_cut=text.cut, is_blank=text.is_blank) if text.cut or text.is_blank else query
        for text, query in zip(texts, routed, strict=True)
    ]


def without_blanks(texts: Sequence[Encoding], routed: Sequence[RoutedTokens]) -> list[RoutedTokens]:
    """The same documents; one without tokens gets no postings and a zero semantic vector, so it never matches."""
    return [_blank(document) if text.is_blank else document for text, document in zip(texts, routed, strict=True)]


def _blank(document: RoutedTokens) -> RoutedTokens:
    semantic = None if document.semantic is None else np.zeros_like(document.semantic)
    return replace(taken(document, np.zeros(len(document), np.bool_)), semantic=semantic, is_blank=True)


def taken(text: RoutedTokens, rows: NDArray[np.bool_]) -> RoutedTokens:
    """Some rows of a text."""
    return replace(
        text,
        keys=text.keys[rows],
        weights=text.weights[rows],
        vectors=None if text.vectors is None else text.vectors[rows],
        tokens=None if text.tokens is None else text.tokens[rows],
    )
