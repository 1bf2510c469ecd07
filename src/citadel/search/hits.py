"""What a search gives: ids and scores at once, texts when they are asked for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import overload

from citadel.index.documents import Fields
from citadel.index.snapshot import Snapshot
from citadel.types import Document, Hit, Scored


class Hits(Sequence[Hit]):
    """The hits of one query, best first; ids and texts are read when the first of them is asked for."""

    __slots__ = ("_documents", "_found", "_ids", "_snapshot", "query_cut", "tau")

    def __init__(self, snapshot: Snapshot, found: Scored, tau: float, query_cut: bool = False) -> None:
        self._snapshot, self._found, self.tau = snapshot, found, tau
        self.query_cut = query_cut  # the query was longer than the model reads
        self._ids: list[str] | None = None
        self._documents: list[Document] | None = None

    def __len__(self) -> int:
        return len(self._found.numbers)

    @overload
    def __getitem__(self, place: int) -> Hit: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[Hit]: ...
    def __getitem__(self, place: int | slice) -> Hit | Sequence[Hit]:
        if isinstance(place, slice):
            return [self[i] for i in range(*place.indices(len(self)))]
        if not -len(self) <= place < len(self):
            raise IndexError(f"hit {place} of {len(self)}")
        rank = place % len(self) + 1
        return Hit(self.ids[place], float(self._found.scores[place]), rank, self._document)

    def __repr__(self) -> str:
        return f"Hits({list(self)!r})"

    @property
    def ids(self) -> list[str]:
        """The ids alone."""
        if self._ids is None:
            self._ids = self._snapshot.ids(self._found.numbers)
        return self._ids

    @property
    def scores(self) -> list[float]:
        """The scores alone."""
        scores: list[float] = self._found.scores.tolist()
        return scores

    @property
    def dot_products(self) -> int:
        """How many products of a query token with a posting or a document the engine took."""
        return self._found.dot_products

    def fields(self, start: int, stop: int) -> list[Fields]:
        """Id, title, text and metadata of some hits, for those who do not want all of them in memory."""
        return self._snapshot.fields(self._found.numbers[start:stop])

    def _document(self, rank: int) -> Document:
        if self._documents is None:
            self._documents = self._snapshot.documents(self._found.numbers)
        return self._documents[rank - 1]
