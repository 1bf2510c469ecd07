"""A search in plain torch: the reference of the kernels, and what runs where there is no Triton."""

from __future__ import annotations

import torch
from torch import Tensor

from citadel.search.gpu.batch import Batch, Tokens
from citadel.search.gpu.lists import Lists, Rows
from citadel.search.gpu.memory import Card
from citadel.search.gpu.pq_tables import tabulate
from citadel.search.gpu.probes import Probe
from citadel.search.gpu.select import documents_of, pack, top
from citadel.search.plan import PROBED_LISTS, Options

LANES = 16


def products(rows: Rows, at: Tensor | slice, query: Tensor, factor: Tensor, key_scale: Tensor | float = 1.0) -> Tensor:
    """A query vector or its table against coded rows, in the order of additions of docs/how-it-works/search.md: [n]."""
    codes = rows.codes[at]
    if rows.codec == "int8":
        assert rows.scales is not None
        return (codes.float() @ query.float()) * rows.scales[at].float() * factor
    if rows.codec == "fp16":
        found = torch.nn.functional.pad(codes.float() * query, (0, -codes.shape[1] % LANES))
        lanes = found.new_zeros(len(codes), LANES)
        for part in found.view(len(codes), found.shape[1] // LANES, LANES).unbind(1):
            lanes = lanes + part
        for half in (8, 4, 2, 1):
            lanes = lanes[:, :half] + lanes[:, half : 2 * half]
        return lanes[:, 0]
    table = query.view(-1, 256)  # [S, 256]
    sums = table[torch.arange(len(table), device=table.device), codes.long()].sum(1)  # whole: exact in any order
    return sums.float() * factor * key_scale


class PlainSearch:
    """Each query after the other."""

    recordable = False  # it asks the card for numbers on its way

    def __init__(self, card: Card, floor: bool) -> None:
        self._card, self._floor = card, floor

    def room(self, queries: int, options: Options) -> Tensor:
        """Scores of that many queries [B, N], −∞ where a document is not met."""
        return torch.full((queries, self._card.documents), float("-inf"), device=self._card.device)

    def run(self, room: Tensor, batch: Batch, options: Options) -> Tensor:
        """The best k of each query, packed, and behind them 0: no candidate is without room [B, k + 1]."""
        best = self._best(room[: batch.size], batch, options)
        return torch.cat([best, best.new_zeros(len(best), 1)], 1)

    def bring(self, found: Tensor, answer: Tensor) -> None:
        """Copy what was found into the host's memory."""
        answer.copy_(found, non_blocking=True)

    def _best(self, scores: Tensor, batch: Batch, options: Options) -> Tensor:
        scores.fill_(float("-inf"))
        if batch.tables is not None:
            assert self._card.centroids is not None
            tabulate(batch.tables, self._card.centroids)
        self.score(scores, batch, options.weight_floor)
        if options.semantic != "rerank":
            return self.select(scores, batch, options.k, options.semantic == "exact")
        by_tokens = documents_of(self.select(scores, batch, options.candidates, False))
        chosen = _distinct(torch.cat([by_tokens, self._nearest(batch, options.probes)], 1))
        met = scores.gather(1, chosen.clamp(min=0))
        found = torch.where(torch.isneginf(met), 0.0, met) + self.semantic(batch, chosen)
        return top(pack(found, chosen), options.k)

    def score(self, scores: Tensor, batch: Batch, weight_floor: int) -> None:
        """Add up the token scores of every document that meets a query token."""
        starts = batch.token_starts.tolist()
        for lists, tokens, base in zip(self._card.lists, batch.tokens, self._card.bases, strict=True):
            if lists is None or tokens is None:
                continue
            bounds = torch.stack([tokens.starts, tokens.stops], 1).tolist()
            for query in range(batch.size):
                for token in range(starts[query], starts[query + 1]):
                    self._add(scores[query, base:], lists, tokens, token, slice(*bounds[token]), weight_floor)

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

    def select(self, scores: Tensor, batch: Batch, wanted: int, semantic: bool) -> Tensor:
        """The best documents of each query, packed."""
        if semantic:
            scores.masked_fill_(torch.isneginf(scores), 0)
            scores += torch.stack([self._semantic(batch, query, slice(None)) for query in range(batch.size)])
        if self._card.alive is not None:
            scores.masked_fill_(self._card.alive == 0, float("-inf"))
        numbers = torch.arange(self._card.documents, device=scores.device)
        return top(pack(scores, numbers.expand_as(scores)), wanted)

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

    def _nearest(self, batch: Batch, count: int) -> Tensor:
        """The documents of the nearest groups [B, P], -1 for none."""
        probed = torch.cat([self._probed(batch, probe, count) for probe in self._card.probes], 1)  # [B, P]
        if self._card.alive is not None:
            probed = probed.masked_fill(self._card.alive[probed.clamp(min=0)] == 0, -1)
        return probed

    def _probed(self, batch: Batch, probe: Probe, count: int) -> Tensor:
        """The documents of the groups nearest to each query that together hold `count`; -1 behind them."""
        slots = torch.arange(probe.capacity(count, PROBED_LISTS), device=probe.documents.device)
        order = torch.sort(self.probe(batch, probe.centroids), dim=1, descending=True, stable=True).indices  # [B, C]
        sizes = (probe.starts[1:] - probe.starts[:-1])[order]
        before = torch.cumsum(sizes, 1) - sizes
        rank = torch.arange(order.shape[1], device=order.device)
        kept = torch.where((before < count) | (rank < PROBED_LISTS), sizes, 0)
        ends = torch.cumsum(kept, 1)
        group = torch.searchsorted(ends, slots.expand(batch.size, -1).contiguous(), right=True)
        group = group.clamp(max=order.shape[1] - 1)  # [B, slots]
        place = probe.starts[order.gather(1, group)] + slots - (ends - kept).gather(1, group)
        there = slots < ends[:, -1:]
        return torch.where(there, probe.documents[torch.where(there, place, 0)], -1)


def _distinct(documents: Tensor) -> Tensor:
    """Each document once, the others -1."""
    ordered = torch.sort(documents, dim=1).values
    again = torch.zeros_like(ordered, dtype=torch.bool)
    again[:, 1:] = ordered[:, 1:] == ordered[:, :-1]
    return ordered.masked_fill(again, -1)
