"""An index as the frameworks use it: every change is committed, every read sees the newest generation."""

from __future__ import annotations

import os
import threading
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from citadel.api import Index
from citadel.errors import UsageError
from citadel.filter.parse import GivenFilter
from citadel.search.hits import Hits
from citadel.types import AddedCount, Document, Hit

_HALF = 20.0  # the score that becomes 0.5 without a calibration

AnyIndex = Index | str | os.PathLike[str]


def relevance(hit: Hit) -> float:
    """The relevance of a hit from 0 to 1; its score mapped to 0 … 1 where the model has no calibration.

    >>> relevance(Hit("d1", 20.0, 1)), relevance(Hit("d1", 20.0, 1, relevance=0.9))
    (0.5, 0.9)
    """
    if hit.relevance is not None:
        return hit.relevance
    score = max(hit.score, 0.0)
    return score / (score + _HALF)


def new_ids(ids: Iterable[str | None] | None, count: int) -> list[str]:
    """Fill in missing ids; their number must be that of the documents.

    >>> new_ids(["d1", "d2"], 2)
    ['d1', 'd2']
    """
    given = list(ids) if ids is not None else [None] * count
    if len(given) != count:
        raise UsageError(f"{len(given):,} ids for {count:,} documents: give one per document, or none")
    return [str(uuid.uuid4()) if id is None else id for id in given]


class Store:
    """Documents of an index by id and by filter. Threads may share it.

    A missing index is created with `options`, those of `Index.create`, unless `create` is false. Uncommitted
    changes of a given Index are committed with the first change made here.

    >>> import tempfile
    >>> store = Store(tempfile.mkdtemp(), model="bm25")
    >>> store.write([Document("d1", "E = mc²", metadata={"year": 1905})])
    1
    >>> [(hit.id, hit.metadata["year"]) for hit in store.search("mc²", 10, {"year": 1905})]
    [('d1', 1905)]
    """

    def __init__(self, index: AnyIndex, *, create: bool = True, **options: Any) -> None:
        if isinstance(index, Index):
            if options:
                raise UsageError(
                    f"{', '.join(options)}: an open Index keeps its options; give its path instead"
                )
            self.index = index
        elif create:
            self.index = Index.open_or_create(index, **options)
        else:
            self.index = Index.open(index, **options)
        self.lock = threading.RLock()  # a change and its commit belong together

    def write(self, documents: Sequence[Document | Mapping[str, Any]]) -> AddedCount:
        """Add documents, replacing those with known ids, and commit; all are added, or none."""
        with self.lock:
            try:
                added = self.index.add(documents)
                self.index.commit()
            except BaseException:
                self.index.rollback()
                raise
            return added

    def delete(self, ids: Iterable[str]) -> int:
        """Delete documents by id, commit and return their number."""
        with self.lock:
            number = self.index.delete(list(ids))
            self.index.commit()
            return number

    def delete_matching(self, filter: GivenFilter) -> int:
        """Delete documents by a filter, commit and return their number."""
        with self.lock:
            number = self.index.delete(filter=filter)
            self.index.commit()
            return number

    def clear(self) -> None:
        """Delete all documents."""
        with self.lock:
            self.delete(self.index.refresh().ids())

    def get(self, ids: Iterable[str]) -> list[Document]:
        """The documents with these ids, in their order; unknown ids are left out."""
        index = self.index.refresh()
        return [document for id in ids if (document := index.get(id)) is not None]

    def documents(self, filter: GivenFilter | None = None) -> Iterator[Document]:
        """The documents that match a filter, in commit order."""
        return self.index.refresh().documents(filter)

    def count(self, filter: GivenFilter | None = None) -> int:
        """The number of documents that match a filter."""
        return self.index.refresh().count(filter)

    def search(self, query: str, k: int, filter: GivenFilter | None = None, **options: Any) -> Hits:
        """The best k documents that match a filter, with the options of `Searcher.search`."""
        return self.index.search(query, k, filter=filter, **options)
