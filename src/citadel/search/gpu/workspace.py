"""What queries need on the card besides the index: scores, the best of their parts, and candidates in order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from citadel.search.gpu.memory import Card
from citadel.search.gpu.probes import Probe
from citadel.search.plan import PROBED_LISTS, Options

CANDIDATES = 1 << 14  # scores from a limit at or below the k-th one on, which are then put in order
MOST_PARTS = 1 << 15  # of the documents, whose best scores one program looks at together
NARROWEST = 16  # documents a part has
COMBINED = 32  # documents of both stages that a program looks at together
NONE = -2139095041  # −∞ as a whole number of the same order


@dataclass(frozen=True)
class Chosen:
    """The best of a query's documents on their way to an order."""

    limits: Tensor  # [B]
    found: Tensor  # [B]: how many candidates there were
    candidates: Tensor  # [B, capacity]
    ranked: Tensor  # [B, wanted + 1], largest first; behind them how many candidates there were

    @property
    def wanted(self) -> int:
        """How many are sought."""
        return self.ranked.shape[1] - 1


@dataclass(frozen=True)
class Groups:
    """The groups of one segment by their distance from a query."""

    values: Tensor  # [B, C]: products with the centroids, as whole numbers of the same order
    numbers: Tensor  # [1, C]: 0 … C − 1
    nearest: Chosen  # the nearest groups, as many as hold the wanted documents even if they are the smallest
    ends: Tensor  # [B, groups]: where each ends once the nearest stand in a row
    slots: int  # documents that the nearest groups may have together


@dataclass(frozen=True)
class Near:
    """The documents of the nearest groups."""

    groups: tuple[Groups, ...]  # one a segment
    values: Tensor  # [B, slots]: semantic products as whole numbers of the same order
    documents: Tensor  # [B, slots]
    both_values: Tensor  # [B, blocks · COMBINED]: whole scores, first of those that the tokens have chosen
    both_documents: Tensor  # [B, blocks · COMBINED]
    both_maxima: Tensor  # [B, blocks]
    both: Chosen


@dataclass(frozen=True)
class Room:
    """Room for some queries of one kind."""

    part: int  # documents whose best score is kept
    scores: Tensor  # [B, R · documents of a range]: −∞ between two searches, save in the ranges that are dirty
    dirty: Tensor  # [B, R]
    maxima: Tensor  # [B, R · parts of a range]
    chosen: Chosen
    near: Near | None  # with `rerank`


def part_width(documents: int, width: int, wanted: int) -> int:
    """Documents a part has: a power of two, so that there are at least two parts for each document that is sought.

    >>> part_width(8_841_823, 2048, 1000), part_width(8_841_823, 2048, 4000), part_width(100, 256, 10)
    (2048, 1024, 16)
    """
    few = max(documents // (2 * max(wanted, 1)), -(-documents // MOST_PARTS), 1)
    return min(max(1 << (few.bit_length() - 1), NARROWEST), width)


def _chosen(queries: int, wanted: int, capacity: int, device: torch.device) -> Chosen:
    new: Any = {"device": device}
    return Chosen(
        torch.zeros(queries, dtype=torch.int32, **new),
        torch.zeros(queries, dtype=torch.int32, **new),
        torch.empty(queries, capacity, dtype=torch.int64, **new),
        torch.empty(queries, wanted + 1, dtype=torch.int64, **new),
    )


def _groups(queries: int, probe: Probe, wanted: int) -> Groups:
    count, device = len(probe.centroids), probe.centroids.device
    enough = probe.enough(wanted, PROBED_LISTS)
    return Groups(
        torch.empty(queries, count, dtype=torch.int32, device=device),
        torch.arange(count, dtype=torch.int32, device=device)[None],
        _chosen(queries, enough, count, device),
        torch.empty(queries, enough, dtype=torch.int32, device=device),
        probe.capacity(wanted, PROBED_LISTS),
    )


def _near(card: Card, queries: int, options: Options) -> Near:
    groups = tuple(_groups(queries, probe, options.probes) for probe in card.probes)
    slots = sum(one.slots for one in groups)
    new: Any = {"dtype": torch.int32, "device": card.device}
    blocks = -(-options.candidates // COMBINED) + -(-slots // COMBINED)
    return Near(
        groups,
        torch.empty(queries, slots, **new),
        torch.empty(queries, slots, **new),
        torch.empty(queries, blocks * COMBINED, **new),
        torch.empty(queries, blocks * COMBINED, **new),
        torch.empty(queries, blocks, **new),
        _chosen(queries, options.k, blocks * COMBINED, card.device),
    )


def wanted_by_tokens(options: Options) -> int:
    """How many documents the token stage puts in order."""
    return options.candidates if options.semantic == "rerank" else options.k


def capacity(card: Card, options: Options) -> int:
    """How many candidates a query has room for."""
    return min(max(CANDIDATES, 4 * wanted_by_tokens(options)), max(card.documents, 1))


def bytes_a_query(card: Card, options: Options) -> int:
    """About what the room of one query takes."""
    slots = sum(probe.capacity(options.probes, PROBED_LISTS) for probe in card.probes)
    near = 24 * (slots + options.candidates) if options.semantic == "rerank" else 0
    return 4 * len(card.borders) * card.width + 8 * capacity(card, options) + near


def make_room(card: Card, queries: int, options: Options) -> Room:
    """Room for that many queries."""
    wanted = wanted_by_tokens(options)
    part = part_width(card.documents, card.width, wanted)
    whole: Any = {"device": card.device, "dtype": torch.int32}
    return Room(
        part,
        torch.full((queries, len(card.borders) * card.width), float("-inf"), device=card.device),
        torch.zeros(queries, len(card.borders), **whole),
        torch.full((queries, len(card.borders) * (card.width // part)), NONE, **whole),
        _chosen(queries, wanted, capacity(card, options), card.device),
        _near(card, queries, options) if options.semantic == "rerank" else None,
    )
