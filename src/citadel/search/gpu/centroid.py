"""Centroid indexes on a GPU with torch: the steps of the reference engine on tensors, with equal results."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from citadel.index.segment import Segment
from citadel.index.snapshot import Snapshot
from citadel.search.centroid_reference import CentroidReference, coded, residual_tokens
from citadel.search.gpu.device import device_errors, parse_device
from citadel.search.plan import Options
from citadel.search.reference import AllowedDocuments
from citadel.search.topk import best
from citadel.types import Floats, Scored

if TYPE_CHECKING:
    from citadel._native import Cancel

_TOKENS_AT_ONCE = 1 << 17  # decoded at a time


@dataclass(frozen=True)
class _Tokens:
    """A segment on the device: codes [T, w], scales [T], centroids [T], and the passages of each list."""

    starts: Tensor  # [passages + 1]
    codes: Tensor
    scales: Tensor
    centroids: Tensor
    keys: Tensor  # [lists]
    list_starts: Tensor  # [lists + 1]
    documents: Tensor  # [postings]


@dataclass(frozen=True)
class _DeviceQuery:
    """int8 codes of the query's tokens [n, d], their scales [n], products with all centroids [K, n]."""

    codes: Tensor
    scales: Tensor
    products: Tensor
    residual_codes: Tensor  # of the vectors as residuals are multiplied with them
    residual_scales: Tensor


class GpuCentroidEngine(CentroidReference):
    """Searches a centroid index with torch on `device`; all segments are kept there."""

    def __init__(self, snapshot: Snapshot, device: str) -> None:
        super().__init__(snapshot)
        self._device = parse_device(device)
        with snapshot.whole():
            self._parts = {id(segment): self._load(segment) for segment in snapshot.segments}
        book = snapshot.centroids
        if book is not None:
            self._centroids = self._put(book.codes).float()
            self._centroid_scales = self._put(book.scales).float()
            self._buckets = self._put(book.buckets).float().reshape(-1)

    def _put(self, values: NDArray[np.generic]) -> Tensor:
        return torch.from_numpy(np.array(values)).to(self._device)

    def _load(self, segment: Segment) -> _Tokens:
        encoded = segment.encoded(0, segment.tokens)
        assert encoded.scales is not None
        has_lists = segment.meta.has_centroids and segment.lists
        documents = segment.document_numbers(0, segment.lists) if has_lists else np.zeros(0, np.int64)
        return _Tokens(
            self._put(segment.token_starts),
            self._put(encoded.codes),
            self._put(encoded.scales).float(),
            self._put(segment.token_centroids(0, segment.tokens).astype(np.int64)),
            self._put(segment.keys.astype(np.int64)),
            self._put(segment.list_starts),
            self._put(documents),
        )

    def search(
        self,
        query: Floats,
        options: Options,
        cancel: Cancel | None = None,
        allowed: AllowedDocuments | None = None,
    ) -> Scored:
        """The best k documents of one query."""
        with device_errors(str(self._device)):
            return super().search(query, options, cancel, allowed)

    def _query(self, query: Floats) -> _DeviceQuery:
        codes, scales = map(self._put, coded(query))
        book = self._snapshot.centroids
        if book is None:
            products = torch.zeros((0, len(query)), device=self._device)
        else:
            products = (self._centroids @ codes.T) * self._centroid_scales[:, None] * scales
        return _DeviceQuery(codes, scales, products, *map(self._put, residual_tokens(query, book)))

    def _touched(self, segment: Segment, query: Floats, nprobe: int) -> tuple[NDArray[np.int64], Floats]:
        part, products = self._parts[id(segment)], self._query(query).products
        probes = torch.sort(products, dim=0, descending=True, stable=True).indices[:nprobe]  # [nprobe, n]
        totals = torch.zeros(segment.passages, device=self._device)
        is_touched = torch.zeros(segment.passages, dtype=torch.bool, device=self._device)
        for token in range(len(query)):
            own = probes[:, token]
            gains = products[own, token] - products[own[-1], token]
            documents, owners = _list_documents(part, own)
            largest = torch.zeros_like(totals).scatter_reduce(0, documents, gains[owners], "amax")
            totals += largest
            is_touched[documents] = True
        touched = torch.nonzero(is_touched)[:, 0]
        return touched.cpu().numpy(), totals[touched].cpu().numpy()

    def _rank(self, query: Floats, numbers: NDArray[np.int64], k: int) -> Scored:
        on_device = self._query(query)
        scored, scores = [np.zeros(0, np.int64)], [np.zeros(0, np.float32)]
        bases = self._snapshot.passage_bases
        for position, segment in enumerate(self._snapshot.segments):
            first, last = np.searchsorted(numbers, bases[position : position + 2]).tolist()
            own = numbers[first:last] - bases[position]
            own = own[segment.token_starts[own + 1] > segment.token_starts[own]]
            for part in _parts(segment, own):
                scored.append(part + bases[position])
                scores.append(self._maxsim(segment, on_device, part))
        return best(np.concatenate(scored), np.concatenate(scores), k)

    def _maxsim(self, segment: Segment, query: _DeviceQuery, passages: NDArray[np.int64]) -> Floats:
        """The scores of some passages of a segment, all of which have tokens."""
        part, own = self._parts[id(segment)], self._put(passages)
        sizes = part.starts[own + 1] - part.starts[own]
        tokens, owners = _ranges(part.starts[own], sizes)
        products = self._products(segment, part, query, tokens)  # [P, n]
        lowest = torch.full((len(passages), products.shape[1]), -torch.inf, device=self._device)
        largest = lowest.scatter_reduce(0, owners[:, None].expand_as(products), products, "amax")
        totals = torch.zeros(len(passages), device=self._device)
        for token in range(products.shape[1]):
            totals += largest[:, token]
        scores: Floats = totals.cpu().numpy()
        return scores

    def _products(self, segment: Segment, part: _Tokens, query: _DeviceQuery, tokens: Tensor) -> Tensor:
        book, scales = self._snapshot.centroids, part.scales[tokens][:, None]
        if not segment.meta.has_residuals or book is None:
            return (part.codes[tokens].float() @ query.codes.T) * scales * query.scales
        values = self._buckets[_windows(part.codes[tokens], book.bits, book.memory)]  # [P, d]
        lengths = scales * float(np.float32(book.step))
        steps = query.residual_scales * float(np.float32(book.bucket_scale))
        return query.products[part.centroids[tokens]] + (values @ query.residual_codes.T) * lengths * steps


def _windows(codes: Tensor, bits: int, memory: int) -> Tensor:
    """The windows [n, d] of packed codes: the bits of each dimension above the `memory` bits before them."""
    own = codes.long()
    before = torch.nn.functional.pad(own[:, :-1], (1, 0))
    shifts = torch.arange(8 - memory, 16 - memory, bits, device=codes.device)
    windows = (own << 8 | before)[:, :, None] >> shifts & ((1 << (bits + memory)) - 1)
    return windows.reshape(len(codes), -1)


def _ranges(starts: Tensor, sizes: Tensor) -> tuple[Tensor, Tensor]:
    """The numbers starts[i] … starts[i] + sizes[i] − 1 of all i, and the i of each."""
    owners = torch.repeat_interleave(torch.arange(len(sizes), device=sizes.device), sizes)
    before = torch.cumsum(sizes, 0) - sizes
    return torch.arange(len(owners), device=sizes.device) - before[owners] + starts[owners], owners


def _list_documents(part: _Tokens, centroids: Tensor) -> tuple[Tensor, Tensor]:
    """The passages of the lists of some centroids, and for each the position of its centroid."""
    lists = torch.searchsorted(part.keys, centroids.contiguous())
    is_known = lists < len(part.keys)
    lists = torch.where(is_known, lists, 0)
    is_known &= part.keys[lists] == centroids
    sizes = torch.where(is_known, part.list_starts[lists + 1] - part.list_starts[lists], 0)
    rows, owners = _ranges(part.list_starts[lists], sizes)
    return part.documents[rows], owners


def _parts(segment: Segment, passages: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
    """The passages in runs of about _TOKENS_AT_ONCE tokens."""
    ends = np.cumsum(segment.token_starts[passages + 1] - segment.token_starts[passages])
    for run in np.unique(ends // _TOKENS_AT_ONCE):
        yield passages[ends // _TOKENS_AT_ONCE == run]
