"""The hits of a search; ids and texts are read on access."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, overload

from citadel.index.documents import Fields
from citadel.index.snapshot import Snapshot
from citadel.types import Document, Hit, Scored

_MAX_KEPT = 100_000  # characters; a longer document is read alone, when it is asked for


class Hits(Sequence[Hit]):
    """The hits of one query, best first; ids and texts are read on first access."""

    __slots__ = ("_documents", "_ids", "_last_long", "_scored", "_snapshot", "offset", "query_cut", "tau")

    def __init__(
        self, snapshot: Snapshot, scored: Scored, tau: float, query_cut: bool = False, offset: int = 0
    ) -> None:
        self._snapshot, self._scored, self.tau = snapshot, scored, tau
        self.offset = offset  # better hits that were left out
        self.query_cut = query_cut  # the query was longer than the model reads
        self._ids: list[str] | None = None
        self._documents: list[Document | None] | None = None
        self._last_long: tuple[int, Document] | None = None

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
        rank = self.offset + index % len(self) + 1
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

    def fields(self, start: int, stop: int, limit: int = sys.maxsize) -> list[Fields]:
        """Id, title, text and metadata of hits start … stop − 1; texts are cut after `limit` characters."""
        return self._snapshot.fields(self._scored.numbers[start:stop], limit)

    def _document(self, rank: int) -> Document:
        if self._documents is None:
            self._documents = [_kept(*fields) for fields in self.fields(0, len(self), _MAX_KEPT + 1)]
        index = rank - self.offset - 1
        return self._documents[index] or self._long_document(index)

    def _long_document(self, index: int) -> Document:
        """A document that is too long to be kept; the last one is, until another is read."""
        last = self._last_long
        if last is not None and last[0] == index:
            return last[1]
        self._last_long = last = None
        [document] = self._snapshot.documents(self._scored.numbers[index : index + 1])
        self._last_long = (index, document)
        return document


def _kept(id: str, title: str, text: str, metadata: dict[str, Any]) -> Document | None:
    """The document to keep with its hits; None for a long one."""
    return None if max(len(title), len(text)) > _MAX_KEPT else Document(id, text, title, metadata)
