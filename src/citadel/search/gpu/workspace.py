"""Device buffers of a search: scores, the best score per part, and candidates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from citadel.search.gpu.device_index import DeviceIndex
from citadel.search.gpu.probes import DeviceProbe
from citadel.search.plan import PROBED_LISTS, Options

CANDIDATES = 1 << 14  # capacity for scores at or above the limit, which are then ranked
MAX_PARTS = 1 << 15  # parts whose best scores one program reads
MIN_PART = 16  # documents per part
COMBINED = 32  # documents per program that combines both stages
NONE = -2139095041  # −∞ as an ordered int32


@dataclass(frozen=True)
class TopCandidates:
    """Buffers for the selection and ranking of a query's best documents."""

    limits: Tensor  # [B]
    counts: Tensor  # [B]: number of candidates
    candidates: Tensor  # [B, capacity]
    ranked: Tensor  # [B, wanted + 1], largest first, then the number of candidates

    @property
    def wanted(self) -> int:
        """Number of documents to select."""
        return self.ranked.shape[1] - 1


@dataclass(frozen=True)
class ProbeGroups:
    """Buffers for the probe groups of one segment, nearest to a query first."""

    values: Tensor  # [B, C]: products with the centroids, as ordered int32
    numbers: Tensor  # [1, C]: 0 … C − 1
    nearest: TopCandidates  # as many groups as hold the wanted documents even if they are the smallest
    ends: Tensor  # [B, groups]: end of each when the nearest are concatenated
    slots: int  # limit for the documents of the nearest groups


@dataclass(frozen=True)
class ProbedDocuments:
    """Buffers for the documents of the nearest groups."""

    groups: tuple[ProbeGroups, ...]  # per segment
    values: Tensor  # [B, slots]: semantic products as ordered int32
    documents: Tensor  # [B, slots]
    both_values: Tensor  # [B, blocks · COMBINED]: final scores, candidates by tokens first
    both_documents: Tensor  # [B, blocks · COMBINED]
    both_maxima: Tensor  # [B, blocks]
    both: TopCandidates


@dataclass(frozen=True)
class Workspace:
    """All buffers for a number of queries with the same options."""

    part: int  # documents whose best score is kept
    scores: Tensor  # [B, R · documents per range]: −∞ between two searches, except in dirty ranges
    dirty: Tensor  # [B, R]
    maxima: Tensor  # [B, R · parts per range]
    chosen: TopCandidates
    probed: ProbedDocuments | None  # with `rerank`


def part_width(documents: int, width: int, wanted: int) -> int:
    """Documents per part: a power of two that gives at least two parts per wanted document.

    >>> part_width(8_841_823, 2048, 1000), part_width(8_841_823, 2048, 4000), part_width(100, 256, 10)
    (2048, 1024, 16)
    """
    few = max(documents // (2 * max(wanted, 1)), -(-documents // MAX_PARTS), 1)
    return min(max(1 << (few.bit_length() - 1), MIN_PART), width)


def _chosen(queries: int, wanted: int, capacity: int, device: torch.device) -> TopCandidates:
    new: Any = {"device": device}
    return TopCandidates(
        torch.zeros(queries, dtype=torch.int32, **new),
        torch.zeros(queries, dtype=torch.int32, **new),
        torch.empty(queries, capacity, dtype=torch.int64, **new),
        torch.empty(queries, wanted + 1, dtype=torch.int64, **new),
    )


def _groups(queries: int, probe: DeviceProbe, wanted: int) -> ProbeGroups:
    count, device = len(probe.centroids), probe.centroids.device
    enough = probe.groups_needed(wanted, PROBED_LISTS)
    return ProbeGroups(
        torch.empty(queries, count, dtype=torch.int32, device=device),
        torch.arange(count, dtype=torch.int32, device=device)[None],
        _chosen(queries, enough, count, device),
        torch.empty(queries, enough, dtype=torch.int32, device=device),
        probe.capacity(wanted, PROBED_LISTS),
    )


def _probed(index: DeviceIndex, queries: int, options: Options) -> ProbedDocuments:
    groups = tuple(_groups(queries, probe, options.probes) for probe in index.probes)
    slots = sum(one.slots for one in groups)
    new: Any = {"dtype": torch.int32, "device": index.device}
    blocks = -(-options.candidates // COMBINED) + -(-slots // COMBINED)
    return ProbedDocuments(
        groups,
        torch.empty(queries, slots, **new),
        torch.empty(queries, slots, **new),
        torch.empty(queries, blocks * COMBINED, **new),
        torch.empty(queries, blocks * COMBINED, **new),
        torch.empty(queries, blocks, **new),
        _chosen(queries, options.k, blocks * COMBINED, index.device),
    )


def wanted_by_tokens(options: Options) -> int:
    """Number of documents that the token stage selects."""
    return options.candidates if options.semantic == "rerank" else options.k


def capacity(index: DeviceIndex, options: Options) -> int:
    """Capacity for candidates per query."""
    return min(max(CANDIDATES, 4 * wanted_by_tokens(options)), max(index.documents, 1))


def bytes_per_query(index: DeviceIndex, options: Options) -> int:
    """Approximate size of the workspace of one query."""
    slots = sum(probe.capacity(options.probes, PROBED_LISTS) for probe in index.probes)
    probed = 24 * (slots + options.candidates) if options.semantic == "rerank" else 0
    return 4 * len(index.borders) * index.width + 8 * capacity(index, options) + probed


def make_workspace(index: DeviceIndex, queries: int, options: Options) -> Workspace:
    """Allocate a workspace for a number of queries."""
    wanted = wanted_by_tokens(options)
    part = part_width(index.documents, index.width, wanted)
    whole: Any = {"device": index.device, "dtype": torch.int32}
    return Workspace(
        part,
        torch.full((queries, len(index.borders) * index.width), float("-inf"), device=index.device),
        torch.zeros(queries, len(index.borders), **whole),
        torch.full((queries, len(index.borders) * (index.width // part)), NONE, **whole),
        _chosen(queries, wanted, capacity(index, options), index.device),
        _probed(index, queries, options) if options.semantic == "rerank" else None,
    )
