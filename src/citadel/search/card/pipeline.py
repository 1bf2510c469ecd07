"""One search from its tokens to its best documents, in steps that never wait for the card."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from citadel.search.card.batch import Batch
from citadel.search.card.lists import Probe
from citadel.search.card.memory import Card, Room
from citadel.search.card.select import documents_of, pack, top
from citadel.search.plan import Options

PROBED_LISTS = 8


class Steps(Protocol):
    """What the kernels and plain torch both do."""

    recordable: bool  # nothing waits for the host, so a graph can replay them

    def score(self, room: Room, batch: Batch, weight_floor: int) -> None: ...
    def select(self, room: Room, batch: Batch, wanted: int, semantic: bool, keep: bool) -> Tensor: ...
    def reset(self, room: Room, batch: Batch) -> None: ...
    def semantic(self, batch: Batch, documents: Tensor) -> Tensor: ...
    def probe(self, batch: Batch, centroids: Tensor) -> Tensor: ...


def run(card: Card, steps: Steps, room: Room, batch: Batch, options: Options) -> Tensor:
    """The best k of each query, packed [B, k]."""
    steps.score(room, batch, options.weight_floor)
    if options.semantic != "rerank":
        return steps.select(room, batch, options.k, options.semantic == "exact", keep=False)
    by_tokens = documents_of(steps.select(room, batch, options.candidates, False, keep=True))
    chosen = _distinct(torch.cat([by_tokens, _nearest(card, steps, batch, options.probes)], 1))
    met = room.scores[: batch.size].gather(1, chosen.clamp(min=0))
    scores = torch.where(torch.isneginf(met), 0.0, met) + steps.semantic(batch, chosen)
    steps.reset(room, batch)
    return top(pack(scores, chosen), options.k)


def wanted(options: Options) -> int:
    """How many documents the token stage must put in order."""
    return options.candidates if options.semantic == "rerank" else options.k


def _distinct(documents: Tensor) -> Tensor:
    """Each document once, the others -1."""
    ordered = torch.sort(documents, dim=1).values
    again = torch.zeros_like(ordered, dtype=torch.bool)
    again[:, 1:] = ordered[:, 1:] == ordered[:, :-1]
    return ordered.masked_fill(again, -1)


def _nearest(card: Card, steps: Steps, batch: Batch, count: int) -> Tensor:
    """The documents among the probed ones that are nearest by their semantic vectors [B, count], -1 for none."""
    probed = torch.cat([_probed(steps, batch, probe, count) for probe in card.probes], 1)  # [B, P]
    if card.alive is not None:
        probed = probed.masked_fill(card.alive[probed.clamp(min=0)] == 0, -1)
    return documents_of(top(pack(steps.semantic(batch, probed), probed), count))


def _probed(steps: Steps, batch: Batch, probe: Probe, count: int) -> Tensor:
    """The documents of the groups nearest to each query that together hold `count`; -1 behind them."""
    slots = torch.arange(probe.capacity(count, PROBED_LISTS), device=probe.documents.device)
    order = torch.sort(steps.probe(batch, probe.centroids), dim=1, descending=True, stable=True).indices  # [B, C]
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
