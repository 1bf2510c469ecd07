"""The hits of a search: scores at once, ids and texts on access."""

from __future__ import annotations

from collections.abc import Sequence
from typing import overload

from citadel.index.documents import Fields
from citadel.index.snapshot import Snapshot
from citadel.types import Document, Hit, Scored


class Hits(Sequence[Hit]):
    """The hits of one query, best first; ids and texts are read on first access."""

    __slots__ = ("_documents", "_ids", "_scored", "_snapshot", "query_cut", "tau")

    def __init__(self, snapshot: Snapshot, scored: Scored, tau: float, query_cut: bool = False) -> None:
        self._snapshot, self._scored, self.tau = snapshot, scored, tau
        self.query_cut = query_cut  # the query was longer than the model reads
        self._ids: list[str] | None = None
        self._documents: list[Document] | None = None

    def __len__(self) -> int:
        return len(self._scored.numbers)

    @overload
    def __getitem__(self, index: int) -> Hit: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Hit]: ...
    def __getitem__(self, index: int | slice) -> Hit | Sequence[Hit]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        if not -len(self) <= index < len(self):
            raise IndexError(f"hit {index} of {len(self)}")
        rank = index % len(self) + 1
        return Hit(self.ids[index], float(self._scored.scores[index]), rank, self._document)

    def __repr__(self) -> str:
        return f"Hits({list(self)!r})"

    @property
    def ids(self) -> list[str]:
        """The ids of all hits."""
        if self._ids is None:
            self._ids = self._snapshot.ids(self._scored.numbers)
        return self._ids

    @property
    def scores(self) -> list[float]:
        """The scores of all hits."""
        scores: list[float] = self._scored.scores.tolist()
        return scores

    @property
    def dot_products(self) -> int:
        """Dot products computed: query tokens with postings, and queries with semantic vectors."""
        return self._scored.dot_products

    def fields(self, start: int, stop: int) -> list[Fields]:
        """Id, title, text and metadata of hits start … stop − 1, without keeping them in memory."""
        return self._snapshot.fields(self._scored.numbers[start:stop])

    def _document(self, rank: int) -> Document:
        if self._documents is None:
            self._documents = self._snapshot.documents(self._scored.numbers)
        return self._documents[rank - 1]
