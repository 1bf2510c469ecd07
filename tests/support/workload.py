"""Sequences of small changes to an index of text or vectors, each ended by a commit or a merge."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from citadel import Index
from citadel.index.storage import Storage
from tests.support.hybrid import create_hybrid

WITH_GRAPHS = "test with graphs"  # a fingerprint
GRAPH_FLOOR = 3  # documents
MEMORY = 4096  # bytes, about three documents, so that larger steps spill


@dataclass(frozen=True)
class Step:
    """Deletes, then adds, then a commit or a merge."""

    add: tuple[tuple[str, str], ...] = ()  # (id, text)
    delete: tuple[str, ...] = ()
    merge: bool = False

    def apply(self, index: Index) -> None:
        if index.settings.fingerprint == WITH_GRAPHS:
            index._writer.graph_floor = GRAPH_FLOOR
        if self.delete:
            index.delete(self.delete)
        if self.add and index.settings.router == "bm25":
            index.add({"id": id, "text": text} | metadata(text) for id, text in self.add)
        elif self.add:
            index.add_vectors(vectors(id, text) for id, text in self.add)
        _ = index.merge() if self.merge else index.commit()

    def after(self, documents: dict[str, str]) -> dict[str, str]:
        """The documents of the index after this step."""
        kept = {id: text for id, text in documents.items() if id not in self.delete}
        return kept | dict(self.add)


def metadata(text: str) -> dict[str, Any]:
    """Values that become columns of several types."""
    words = text.split()
    return {"words": len(words), "last": words[-1], "tags": sorted(set(words[:2]))}


def vectors(id: str, text: str) -> dict[str, Any]:
    """A document with vectors derived from its text."""
    numbers = random.Random(text)
    rows = [[round(numbers.uniform(-1, 1), 2) for _ in range(4)] for _ in range(3)]
    weights = [numbers.choice((0.5, 1.0, 1.5)) for _ in rows]
    semantic = [round(numbers.uniform(-1, 1), 2) for _ in range(2)]
    keys = [numbers.randint(1, 4) for _ in rows]
    parts = {"keys": keys, "weights": weights, "vectors": rows, "semantic": semantic}
    return {"id": id, "text": text} | parts | metadata(text)


def create_text(storage: Storage | str) -> Index:
    """Create an empty index for text."""
    return Index.create(storage, memory=MEMORY)


def create_vectors(storage: Storage | str) -> Index:
    """Create an empty index for vectors, with both fields."""
    return Index.create(storage, fields={"lexical": 4, "semantic": 2}, fingerprint="test", memory=MEMORY)


def create_with_graphs(storage: Storage | str) -> Index:
    """Create an empty index for vectors whose segments get graphs."""
    return Index.create(storage, fields={"lexical": 4, "semantic": 2}, fingerprint=WITH_GRAPHS, memory=MEMORY)


CREATE: dict[str, Callable[[Storage | str], Index]] = {
    "text": create_text,
    "vectors": create_vectors,
    "graphs": create_with_graphs,
    "hybrid": lambda storage: create_hybrid(storage, memory=MEMORY),
}


def document(number: int, version: int = 0) -> tuple[str, str]:
    """A small document; no two have the same term counts."""
    filler = " filler" * (number % 5)
    return f"d{number}", f"rome apple w{number % 4} w{version}{filler} unique{number}x{version}"


def everything() -> list[Step]:
    """Every kind of change: add, spill, replace, delete, tiered merge, rewrite, merge, empty, refill."""
    return [
        Step(add=(document(0), document(1))),
        Step(add=(document(0, 1),)),
        Step(add=(document(2),), delete=("d1",)),
        *(Step(add=(document(number),)) for number in range(3, 9)),
        Step(add=tuple(document(number) for number in range(9, 16))),
        Step(delete=("d3", "d4", "d10", "d11"), add=(document(9, 1),)),
        Step(add=(document(16),)),
        Step(merge=True),
        Step(add=(document(2, 1), document(17))),
        Step(delete=tuple(f"d{number}" for number in range(18))),
        Step(add=(document(18), document(19))),
        Step(delete=("d18",), merge=True),
    ]


def brief() -> list[Step]:
    """A short sequence that spills, replaces, deletes and merges."""
    return [
        Step(add=(document(0), document(1))),
        Step(add=tuple(document(number) for number in range(1, 5))),
        Step(add=(document(6),), delete=("d0",)),
        *(Step(add=(document(number),)) for number in range(7, 10)),
        Step(merge=True),
    ]


def endless() -> Iterator[Step]:
    """Endless steps that keep an index at about a hundred documents."""
    number = 0
    while True:
        size = 1 + number % 7
        first = number * 3 % 90
        added = [document(other, number % 3) for other in range(first, first + size)]
        yield Step(tuple(added), (f"d{number * 5 % 97}",), merge=number % 11 == 10)
        number += 1
