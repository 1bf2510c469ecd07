"""What an index holds, taken together so that two of them can be compared: documents and a ranking."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from citadel import Index
from citadel.index.manifest import generations, read_manifest
from citadel.index.storage import LOCK, Storage

QUERY = "rome apple w1 w2"
QUERY_VECTORS: dict[str, Any] = {
    "keys": np.array([1, 2, 3], np.uint32),
    "weights": np.array([1.0, 0.5, 0.25], np.float32),
    "vectors": np.array([[1, 0, 0, 0], [0, 1, 0, 0], [0.5, 0.5, 0.5, 0.5]], np.float32),
    "semantic": np.array([0.25, -0.5], np.float32),
}


@dataclass(frozen=True)
class Contents:
    """All live documents, and what one query finds among them."""

    documents: tuple[tuple[str, str], ...]  # (id, text), by id
    ranking: tuple[tuple[str, float], ...]

    def same(self, other: Contents) -> bool:
        """Equal documents, equal order, and scores that differ by no more than the order of additions."""
        return (
            self.documents == other.documents
            and [id for id, _ in self.ranking] == [id for id, _ in other.ranking]
            and all(
                math.isclose(a, b, rel_tol=1e-5, abs_tol=1e-6)
                for (_, a), (_, b) in zip(self.ranking, other.ranking, strict=True)
            )
        )


def ranking_of(index: Index) -> tuple[tuple[str, float], ...]:
    """The whole ranking of the one query that all tests here ask."""
    searcher = index.searcher(threads=1)
    text = index.settings.router == "bm25"
    hits = searcher.search(QUERY, k=10_000) if text else searcher.search_vectors(**QUERY_VECTORS, k=10_000)
    return tuple((hit.id, hit.score) for hit in hits)


def contents_of(index: Index) -> Contents:
    """Every live document, read from its segment, and the ranking."""
    snapshot = index._snapshot
    found = [
        document for segment in snapshot.segments for document in segment.store.get(snapshot.live_numbers(segment))
    ]
    assert len(found) == len(index)
    return Contents(tuple(sorted((document.id, document.text) for document in found)), ranking_of(index))


def orphans(storage: Storage) -> set[str]:
    """Files that belong to no kept generation."""
    numbers = generations(storage)
    known = {LOCK} | {f"gen.{number:08d}" for number in numbers}
    known |= {record.name for number in numbers for record in read_manifest(storage, number).files()}
    return set(storage.names()) - known
