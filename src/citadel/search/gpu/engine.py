"""The engine of a GPU, or of several: the index in their memory, each with a part of the documents."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from citadel.errors import UsageError
from citadel.index.snapshot import Snapshot
from citadel.search.gpu.device import card_memory, find_card
from citadel.search.gpu.device_engine import CardEngine
from citadel.search.gpu.memory import Card, load_card, shard_borders
from citadel.search.plan import Options, Plan
from citadel.search.topk import best
from citadel.types import Scored


class GpuEngine:
    """Searches a snapshot on a card, or with `cuda:0,cuda:1` on several, each holding a range of documents.

    Several cards give the one card's answers, but that `rerank` takes its candidates from each of them."""

    def __init__(
        self, snapshot: Snapshot, floor: bool, device: str = "cuda", width: int = 0, memory: int | None = None
    ) -> None:
        if snapshot.settings.router == "bm25":
            raise UsageError("a GPU searches vectors and this index holds words (bm25): use --device cpu")
        where, devices = snapshot.storage.location, [find_card(name) for name in device.split(",")]
        self.cards: list[CardEngine] = []
        borders = shard_borders(int(snapshot.bases[-1]), len(devices))
        for place, found in enumerate(devices):
            with card_memory(where):
                card = load_card(snapshot, found, width, borders[place : place + 2], memory)
            self.cards.append(CardEngine(card, floor, _live(card), where))

    def prepare(self, plan: Plan) -> Plan:
        """A query as `search` takes it; each card looks its lists up."""
        return plan

    def search(self, query: Plan, options: Options, cancel: Any = None) -> Scored:
        """The best k documents of one query."""
        return self.search_batch([query], options, cancel)[0]

    def search_batch(self, queries: Sequence[Plan], options: Options, cancel: Any = None) -> list[Scored]:
        """The best k documents of each query."""
        if len(self.cards) == 1:
            return self.cards[0].search_batch(queries, options, cancel)
        with ThreadPoolExecutor(len(self.cards), "citadel-card") as pool:  # they work side by side
            parts = list(pool.map(lambda card: card.search_batch(queries, options, cancel), self.cards))
        return [_merged(found, options.k) for found in zip(*parts, strict=True)]


def _live(card: Card) -> int:
    return card.documents if card.alive is None else int(card.alive.sum())


def _merged(parts: Sequence[Scored], k: int) -> Scored:
    """The best k of what each card found."""
    numbers, scores = (np.concatenate(column) for column in list(zip(*parts, strict=True))[:2])
    found = best(numbers, scores, k)
    return Scored(found.numbers, found.scores, sum(part.dot_products for part in parts))
