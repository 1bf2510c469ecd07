"""Differentiable score of every query with every passage (Eq. 5): a sparse join over keys, or all-to-all.

The formula is that of `routing/formula.py`, for batches; a property test checks that both agree.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

MAX_PAIRS = 1 << 22  # (query row, posting) pairs gathered at a time


class RoutedBatch(NamedTuple):
    """Texts after routing. A weight of 0 is no key."""

    keys: Tensor  # [n, T, k]
    weights: Tensor  # [n, T, k]
    vectors: Tensor  # [n, T, d]


class _LiveRows(NamedTuple):
    """The (text, token, key) triples of a batch with a positive weight, flat."""

    keys: Tensor  # [P]
    weights: Tensor  # [P]
    texts: Tensor  # [P]
    tokens: Tensor  # [P], a row of the flattened vectors


def lexical_score(query: RoutedBatch, passages: RoutedBatch, floor: bool = True) -> Tensor:
    """Σ over query tokens and keys of the best product under that key, for every (query, passage): [B, D].

    >>> one = torch.ones(1, 1, 1)
    >>> text = RoutedBatch(torch.tensor([[[7]]]), one, torch.tensor([[[3.0, 4.0]]]))
    >>> lexical_score(text, text).tolist()
    [[25.0]]
    """
    rows, postings = _rows(query), _rows(passages)
    order = torch.argsort(postings.keys * len(passages.keys) + postings.texts, stable=True)
    postings = _LiveRows(*(column[order] for column in postings))
    first = torch.searchsorted(postings.keys, rows.keys)  # [R]
    runs = torch.searchsorted(postings.keys, rows.keys, right=True) - first  # [R]
    pairs = int(runs.sum())
    if floor and pairs > _dense_cost(rows, passages):
        return _dense(rows, query, passages)
    scores = query.weights.new_zeros(len(query.keys), len(passages.keys))  # [B, D]
    for part in _parts(runs, MAX_PAIRS, pairs):
        added = _part(
            rows, postings, first[part], runs[part], part, query.vectors, passages.vectors, floor, scores
        )
        scores = scores + added
    return scores


def all_to_all_score(
    query: Tensor, mask: Tensor, passages: Tensor, present: Tensor, step: int = 64
) -> Tensor:
    """ColBERT: Σ over query tokens of the largest product with any token of the passage, no floor: [B, D].

    >>> q = torch.tensor([[[1.0, 0.0], [0.0, 1.0]]])
    >>> yes = torch.ones(1, 2, dtype=torch.bool)
    >>> all_to_all_score(q, yes, torch.tensor([[[0.5, 0.0], [0.0, -1.0]]]), yes).tolist()
    [[0.5]]
    """
    text, token = torch.nonzero(mask, as_tuple=True)
    rows = query[text, token]  # [R, d]; most of a batch of queries is padding
    parts = [
        checkpoint(
            _all_to_all_part,
            rows,
            text,
            len(query),
            passages[at : at + step],
            present[at : at + step],
            use_reentrant=False,
        )
        for at in range(0, len(passages), step)
    ]
    return torch.cat(parts, dim=1)


def _all_to_all_part(rows: Tensor, texts: Tensor, queries: int, passages: Tensor, present: Tensor) -> Tensor:
    products = (rows @ passages.flatten(0, 1).T).view(len(rows), *passages.shape[:2])  # [R, c, T]
    best = products.masked_fill(~present, float("-inf")).amax(-1)  # [R, c]
    best = torch.where(present.any(-1), best, 0)
    best = best.to(torch.promote_types(best.dtype, torch.float32))
    return best.new_zeros(queries, best.shape[1]).index_add(0, texts, best)  # [B, c]


def _rows(batch: RoutedBatch) -> _LiveRows:
    text, token, slot = torch.nonzero(batch.weights.detach() > 0, as_tuple=True)
    flat = text * batch.keys.shape[1] + token
    return _LiveRows(batch.keys[text, token, slot], batch.weights[text, token, slot], text, flat)


def _parts(runs: Tensor, max_pairs: int, pairs: int) -> list[slice]:
    """Split the query rows so that no part has many more than `max_pairs` pairs."""
    if pairs <= max_pairs:
        return [slice(0, len(runs))]
    part = (torch.cumsum(runs, 0) // max_pairs).tolist()
    cuts = [0, *(i for i in range(1, len(part)) if part[i] != part[i - 1]), len(part)]
    return [slice(start, end) for start, end in pairwise(cuts)]


def _part(
    rows: _LiveRows,
    postings: _LiveRows,
    first: Tensor,
    runs: Tensor,
    part: slice,
    queries: Tensor,
    passages: Tensor,
    floor: bool,
    scores: Tensor,
) -> Tensor:
    """Scores of some query rows; recomputed in backward, so that pairs are not kept."""
    some = _LiveRows(*(column[part] for column in rows))

    def join(q: Tensor, w: Tensor, d: Tensor, u: Tensor) -> Tensor:
        return _join(
            _LiveRows(some.keys, w, some.texts, some.tokens),
            postings._replace(weights=u),
            first,
            runs,
            q,
            d,
            floor,
            scores,
        )

    scored: Tensor = checkpoint(join, queries, some.weights, passages, postings.weights, use_reentrant=False)
    return scored


def _join(
    rows: _LiveRows,
    postings: _LiveRows,
    first: Tensor,
    runs: Tensor,
    queries: Tensor,
    passages: Tensor,
    floor: bool,
    like: Tensor,
) -> Tensor:
    row = torch.repeat_interleave(torch.arange(len(runs), device=runs.device), runs)  # [P]
    before = torch.cumsum(runs, 0) - runs
    posting = torch.arange(len(row), device=runs.device) + (first - before)[row]  # [P]
    q = queries.flatten(0, 1).index_select(0, rows.tokens).index_select(0, row)  # [P, d]
    d = passages.flatten(0, 1).index_select(0, postings.tokens.index_select(0, posting))  # [P, d]
    products = (q * d).sum(-1) * rows.weights[row] * postings.weights[posting]  # [P]
    # Pairs of one (row, passage) are adjacent, because postings are sorted by key and passage.
    passage = postings.texts[posting]
    new = torch.ones_like(row, dtype=torch.bool)
    new[1:] = (row[1:] != row[:-1]) | (passage[1:] != passage[:-1])
    group = torch.cumsum(new, 0) - 1  # [P]
    starts = torch.nonzero(new).flatten()  # [S]
    best = products.new_zeros(len(starts)).scatter_reduce(
        0, group, products, "amax", include_self=False
    )  # [S]
    if floor:
        best = best.clamp(min=0)
    cell = rows.texts[row[starts]] * like.shape[1] + passage[starts]
    return torch.zeros_like(like).flatten().index_add(0, cell, best.to(like.dtype)).view_as(like)


def _dense_cost(rows: _LiveRows, passages: RoutedBatch) -> int:
    """Number of pairs above which the dense computation, one matrix product over all tokens, is cheaper."""
    return max(MAX_PAIRS, len(rows.keys) * passages.keys.shape[0] * passages.keys.shape[1] // 32)


def _dense(rows: _LiveRows, query: RoutedBatch, passages: RoutedBatch) -> Tensor:
    """Score every query row against every token, weighted by key; used if one key has very many postings.

    A token without the row's key has weight 0 and so product 0, which does not matter above the floor of 0.
    """
    q = query.vectors.flatten(0, 1)[rows.tokens] * rows.weights[:, None]  # [R, d]
    unique, which = torch.unique(rows.keys, return_inverse=True)  # [U], [R]
    step = max(1, MAX_PAIRS * 16 // max(1, len(q) * passages.keys.shape[1]))
    parts = [
        checkpoint(
            _dense_part, q, rows.texts, unique, which, passages_part, len(query.keys), use_reentrant=False
        )
        for passages_part in (
            RoutedBatch(*(column[at : at + step] for column in passages))
            for at in range(0, len(passages.keys), step)
        )
    ]
    return torch.cat(parts, dim=1)


def _dense_part(
    q: Tensor, texts: Tensor, unique: Tensor, which: Tensor, passages: RoutedBatch, queries: int
) -> Tensor:
    keys, weights = passages.keys.flatten(0, 1), passages.weights.flatten(0, 1)  # [c·T, k]
    column = torch.searchsorted(unique, keys).clamp(max=len(unique) - 1)  # [c·T, k]
    weights = weights * ((unique[column] == keys) & (weights > 0))  # a dead key must not learn from the floor
    by_key = weights.new_zeros(len(keys), len(unique)).scatter_add(1, column, weights).T  # [U, c·T]
    products = (q @ passages.vectors.flatten(0, 1).T) * by_key[which]  # [R, c·T]
    best = products.view(len(q), *passages.keys.shape[:2]).amax(-1).clamp(min=0)  # [R, c]
    return best.new_zeros(queries, best.shape[1]).index_add(0, texts, best)
