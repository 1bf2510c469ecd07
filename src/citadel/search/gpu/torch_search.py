"""Search in plain torch: the reference for the kernels, and the fallback without Triton."""

from __future__ import annotations

import torch
from torch import Tensor

from citadel.search.gpu.batch import Batch, SegmentTokens
from citadel.search.gpu.device_index import DeviceIndex
from citadel.search.gpu.lists import CodedRows, DeviceLists
from citadel.search.gpu.packed_scores import documents_of, pack, top
from citadel.search.gpu.pq_tables import tabulate
from citadel.search.gpu.probes import DeviceProbe
from citadel.search.plan import PROBED_LISTS, Options

LANES = 16


def products(
    rows: CodedRows, at: Tensor | slice, query: Tensor, factor: Tensor, key_scale: Tensor | float = 1.0
) -> Tensor:
    """Products of a query vector or table with coded rows [n]; docs/how-it-works/search.md has the order."""
    codes = rows.codes[at]
    if rows.codec == "int8":
        assert rows.scales is not None
        return (codes.float() @ query.float()) * rows.scales[at].float() * factor
    if rows.codec == "fp16":
        terms = torch.nn.functional.pad(codes.float() * query, (0, -codes.shape[1] % LANES))
        lanes = terms.new_zeros(len(codes), LANES)
        for part in terms.view(len(codes), terms.shape[1] // LANES, LANES).unbind(1):
            lanes = lanes + part
        for half in (8, 4, 2, 1):
            lanes = lanes[:, :half] + lanes[:, half : 2 * half]
        return lanes[:, 0]
    table = query.view(-1, 256)  # [S, 256]
    entries = table[torch.arange(len(table), device=table.device), codes.long()]
    sums = entries.sum(1)  # integers: exact in any order
    return sums.float() * factor * key_scale


class TorchSearch:
    """A search that takes one query after the other."""

    recordable = False  # it waits for values from the device

    def __init__(self, index: DeviceIndex, floor: bool) -> None:
        self._index, self._floor = index, floor

    def workspace(self, queries: int, options: Options) -> Tensor:
        """Scores of a number of queries [B, N], −∞ for documents without a match."""
        return torch.full((queries, self._index.documents), float("-inf"), device=self._index.device)

    def run(self, workspace: Tensor, batch: Batch, options: Options) -> Tensor:
        """The best k of each query, packed, then 0: candidates never overflow [B, k + 1]."""
        best = self._best(workspace[: batch.size], batch, options)
        return torch.cat([best, best.new_zeros(len(best), 1)], 1)

    def copy_result(self, ranked: Tensor, result: Tensor) -> None:
        """Copy a result to the host."""
        result.copy_(ranked, non_blocking=True)

    def _best(self, scores: Tensor, batch: Batch, options: Options) -> Tensor:
        scores.fill_(float("-inf"))
        if batch.tables is not None:
            assert self._index.centroids is not None
            tabulate(batch.tables, self._index.centroids)
        self.score(scores, batch, options.weight_floor)
        if options.semantic != "rerank":
            return self.select(scores, batch, options.k, options.semantic == "exact")
        by_tokens = documents_of(self.select(scores, batch, options.candidates, False))
        chosen = _distinct(torch.cat([by_tokens, self._nearest(batch, options.probes)], 1))
        by_token = scores.gather(1, chosen.clamp(min=0))
        final = torch.where(torch.isneginf(by_token), 0.0, by_token) + self.semantic(batch, chosen)
        return top(pack(final, chosen), options.k)

    def score(self, scores: Tensor, batch: Batch, weight_floor: int) -> None:
        """Sum the token scores of all matching documents."""
        starts = batch.token_starts.tolist()
        for lists, tokens, base in zip(self._index.lists, batch.tokens, self._index.bases, strict=True):
            if lists is None or tokens is None:
                continue
            bounds = torch.stack([tokens.starts, tokens.stops], 1).tolist()
            for query in range(batch.size):
                for token in range(starts[query], starts[query + 1]):
                    self._add(scores[query, base:], lists, tokens, token, slice(*bounds[token]), weight_floor)

    def _add(
        self,
        scores: Tensor,
        lists: DeviceLists,
        tokens: SegmentTokens,
        token: int,
        postings: slice,
        weight_floor: int,
    ) -> None:
        """Add one query token's best product with each document of its list."""
        documents = lists.documents[postings].long()
        values = products(
            lists.rows, postings, tokens.rows[token], tokens.factors[token], tokens.key_scales[token]
        )
        if weight_floor and lists.weights is not None:
            kept = lists.weights[postings] > weight_floor
            documents, values = documents[kept], values[kept]
        matched, group = torch.unique_consecutive(documents, return_inverse=True)
        best = values.new_full((len(matched),), float("-inf")).scatter_reduce_(0, group, values, "amax")
        best = best.clamp_(min=0) if self._floor else best
        before = scores[matched]
        scores[matched] = torch.where(torch.isneginf(before), best, before + best)

    def select(self, scores: Tensor, batch: Batch, wanted: int, semantic: bool) -> Tensor:
        """The best documents of each query, packed."""
        if semantic:
            scores.masked_fill_(torch.isneginf(scores), 0)
            scores += torch.stack([self._semantic(batch, query, slice(None)) for query in range(batch.size)])
        if self._index.alive is not None:
            scores.masked_fill_(self._index.alive == 0, float("-inf"))
        numbers = torch.arange(self._index.documents, device=scores.device)
        return top(pack(scores, numbers.expand_as(scores)), wanted)

    def semantic(self, batch: Batch, documents: Tensor) -> Tensor:
        """The semantic products of each query's documents [B, n]; undefined where a document is -1."""
        rows = documents.clamp(min=0)
        return torch.stack([self._semantic(batch, query, rows[query]) for query in range(batch.size)])

    def _semantic(self, batch: Batch, query: int, at: Tensor | slice) -> Tensor:
        rows = self._index.semantic
        assert rows is not None and batch.semantic_rows is not None and batch.semantic_factors is not None
        return products(rows, at, batch.semantic_rows[query], batch.semantic_factors[query])

    def probe(self, batch: Batch, centroids: Tensor) -> Tensor:
        """Each query's products with the centroids [B, C], summed in order of the dimensions."""
        assert batch.semantic is not None
        total = batch.semantic[:, :1] * centroids[:, 0]
        for part in range(1, centroids.shape[1]):
            total = total + batch.semantic[:, part : part + 1] * centroids[:, part]
        return total

    def _nearest(self, batch: Batch, count: int) -> Tensor:
        """The documents of the nearest groups [B, P], -1 for none."""
        probed = torch.cat([self._probed(batch, probe, count) for probe in self._index.probes], 1)  # [B, P]
        if self._index.alive is not None:
            probed = probed.masked_fill(self._index.alive[probed.clamp(min=0)] == 0, -1)
        return probed

    def _probed(self, batch: Batch, probe: DeviceProbe, count: int) -> Tensor:
        """The documents of the nearest groups that together hold `count`, padded with -1."""
        slots = torch.arange(probe.capacity(count, PROBED_LISTS), device=probe.documents.device)
        order = torch.sort(
            self.probe(batch, probe.centroids), dim=1, descending=True, stable=True
        ).indices  # [B, C]
        sizes = (probe.starts[1:] - probe.starts[:-1])[order]
        before = torch.cumsum(sizes, 1) - sizes
        rank = torch.arange(order.shape[1], device=order.device)
        kept = torch.where((before < count) | (rank < PROBED_LISTS), sizes, 0)
        ends = torch.cumsum(kept, 1)
        group = torch.searchsorted(ends, slots.expand(batch.size, -1).contiguous(), right=True)
        group = group.clamp(max=order.shape[1] - 1)  # [B, slots]
        position = probe.starts[order.gather(1, group)] + slots - (ends - kept).gather(1, group)
        valid = slots < ends[:, -1:]
        return torch.where(valid, probe.documents[torch.where(valid, position, 0)], -1)


def _distinct(documents: Tensor) -> Tensor:
    """Each document once; repeats become -1."""
    ordered = torch.sort(documents, dim=1).values
    repeated = torch.zeros_like(ordered, dtype=torch.bool)
    repeated[:, 1:] = ordered[:, 1:] == ordered[:, :-1]
    return ordered.masked_fill(repeated, -1)
