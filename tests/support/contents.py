"""Contents of an index for comparison: its documents and a ranking."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from typing import Any

import numpy as np

from citadel import Index
from citadel.errors import IndexNotFoundError
from citadel.index.folder_lock import LOCK
from citadel.index.manifest import generations, read_manifest
from citadel.index.storage import Storage
from tests.support.workload import WITH_GRAPHS

QUERY = "rome apple w1 w2"
QUERY_VECTORS: dict[str, Any] = {
    "keys": np.array([1, 2, 3], np.uint32),
    "weights": np.array([1.0, 0.5, 0.25], np.float32),
    "vectors": np.array([[1, 0, 0, 0], [0, 1, 0, 0], [0.5, 0.5, 0.5, 0.5]], np.float32),
    "semantic": np.array([0.25, -0.5], np.float32),
}


@dataclass(frozen=True)
class Contents:
    """All live documents, and the ranking of one query."""

    documents: tuple[tuple[str, str], ...]  # (id, text), by id
    ranking: tuple[tuple[str, float], ...]

    def same(self, other: Contents) -> bool:
        """Whether documents and order are equal, and scores up to rounding."""
        return (
            self.documents == other.documents
            and [id for id, _ in self.ranking] == [id for id, _ in other.ranking]
            and all(
                math.isclose(a, b, rel_tol=1e-5, abs_tol=1e-6)
                for (_, a), (_, b) in zip(self.ranking, other.ranking, strict=True)
            )
        )


def ranking_of(index: Index) -> tuple[tuple[str, float], ...]:
    """The full ranking of the query that all these tests use."""
    searcher = index.searcher(threads=1)
    if index.settings.router == "bm25":
        hits = searcher.search(QUERY, k=10_000)
    else:
        mode = "graph" if index.settings.fingerprint == WITH_GRAPHS else "auto"
        hits = searcher.search_vectors(**QUERY_VECTORS, k=10_000, semantic_mode=mode)
    if index.settings.words is not None:  # both rankings, the second from the BM25 lists
        words = index.searcher(mode="bm25", threads=1).search(QUERY, k=10_000)
        return tuple((hit.id, hit.score) for hit in [*hits, *words])
    return tuple((hit.id, hit.score) for hit in hits)


def contents_of(index: Index) -> Contents:
    """All live documents, read from their segments, and the ranking."""
    snapshot = index._snapshot
    documents = [
        document
        for segment in snapshot.segments
        for document in segment.store.get(snapshot.live_numbers(segment))
    ]
    assert len(documents) == len(index)
    return Contents(tuple(sorted((document.id, document.text) for document in documents)), ranking_of(index))


def checked_contents(storage: Storage | str | os.PathLike[str]) -> Contents | None:
    """The contents of an index after a deep check; None where there is no index."""
    try:
        index = Index.open(storage)
        index.check(deep=True)
        return contents_of(index)
    except IndexNotFoundError:
        return None


def orphans(storage: Storage) -> set[str]:
    """Files that belong to no kept generation."""
    numbers = generations(storage)
    known = {LOCK} | {f"gen.{number:08d}" for number in numbers}
    known |= {record.name for number in numbers for record in read_manifest(storage, number).files()}
    return set(storage.names()) - known
