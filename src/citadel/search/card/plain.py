"""The steps of a search in plain torch: the reference of the kernels, and what runs where there is no Triton."""

from __future__ import annotations

import torch
from torch import Tensor

from citadel.search.card.batch import Batch, Tokens
from citadel.search.card.lists import Lists, Rows
from citadel.search.card.memory import Card, Room
from citadel.search.card.select import pack, top

LANES = 16


def products(rows: Rows, at: Tensor | slice, query: Tensor, factor: Tensor, key_scale: Tensor | float = 1.0) -> Tensor:
    """A query vector or its table against coded rows, in the order of additions of docs/search.md: [n]."""
    codes = rows.codes[at]
    if rows.codec == "int8":
        assert rows.scales is not None
        return (codes.float() @ query) * rows.scales[at].float() * factor
    if rows.codec == "fp16":
        found = torch.nn.functional.pad(codes.float() * query, (0, -codes.shape[1] % LANES))
        lanes = found.new_zeros(len(codes), LANES)
        for part in found.view(len(codes), found.shape[1] // LANES, LANES).unbind(1):
            lanes = lanes + part
        for half in (8, 4, 2, 1):
            lanes = lanes[:, :half] + lanes[:, half : 2 * half]
        return lanes[:, 0]
    table = query.view(-1, 256)  # [S, 256]
    sums = table[torch.arange(len(table), device=table.device), codes.long()].sum(1)
    return sums * factor * key_scale


class PlainSteps:
    """Each step for each query, one after the other."""

    recordable = False

    def __init__(self, card: Card, floor: bool) -> None:
        self._card, self._floor = card, floor

    def score(self, room: Room, batch: Batch, weight_floor: int) -> None:
        """Add up the token scores of every document that meets a query token."""
        starts = batch.token_starts.tolist()
        for lists, tokens, base in zip(self._card.lists, batch.tokens, self._card.bases, strict=True):
            if lists is None or tokens is None:
                continue
            bounds = torch.stack([tokens.starts, tokens.stops], 1).tolist()
            for query in range(batch.size):
                for token in range(starts[query], starts[query + 1]):
                    self._add(room.scores[query, base:], lists, tokens, token, slice(*bounds[token]), weight_floor)

    def _add(
        self, scores: Tensor, lists: Lists, tokens: Tokens, token: int, postings: slice, weight_floor: int
    ) -> None:
        """One query token's best product with each document of its list."""
        documents = lists.documents[postings].long()
        values = products(lists.rows, postings, tokens.rows[token], tokens.factors[token], tokens.key_scales[token])
        if weight_floor and lists.weights is not None:
            kept = lists.weights[postings] > weight_floor
            documents, values = documents[kept], values[kept]
        met, group = torch.unique_consecutive(documents, return_inverse=True)
        best = values.new_full((len(met),), float("-inf")).scatter_reduce_(0, group, values, "amax")
        best = best.clamp_(min=0) if self._floor else best
        before = scores[met]
        scores[met] = torch.where(torch.isneginf(before), best, before + best)

    def select(self, room: Room, batch: Batch, wanted: int, semantic: bool, keep: bool) -> Tensor:
        """The best documents of each query, packed; `keep` leaves the scores for those who look some up."""
        scores = room.scores[: batch.size]
        if semantic:
            scores.masked_fill_(torch.isneginf(scores), 0)
            scores += torch.stack([self._semantic(batch, query, slice(None)) for query in range(batch.size)])
        if self._card.alive is not None:
            scores.masked_fill_(self._card.alive == 0, float("-inf"))
        best = top(pack(scores, torch.arange(self._card.documents, device=scores.device).expand_as(scores)), wanted)
        if not keep:
            self.reset(room, batch)
        return best

    def reset(self, room: Room, batch: Batch) -> None:
        """No document has a score any more."""
        room.scores[: batch.size] = float("-inf")

    def semantic(self, batch: Batch, documents: Tensor) -> Tensor:
        """The semantic products of each query's documents [B, n]; any number where a document is -1."""
        rows = documents.clamp(min=0)
        return torch.stack([self._semantic(batch, query, rows[query]) for query in range(batch.size)])

    def _semantic(self, batch: Batch, query: int, at: Tensor | slice) -> Tensor:
        rows = self._card.semantic
        assert rows is not None and batch.semantic_rows is not None and batch.semantic_factors is not None
        return products(rows, at, batch.semantic_rows[query], batch.semantic_factors[query])

    def probe(self, batch: Batch, centroids: Tensor) -> Tensor:
        """Each query's products with the centroids [B, C], added in the order of the dimensions."""
        assert batch.semantic is not None
        total = batch.semantic[:, :1] * centroids[:, 0]
        for part in range(1, centroids.shape[1]):
            total = total + batch.semantic[:, part : part + 1] * centroids[:, part]
        return total
