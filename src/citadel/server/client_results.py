"""Results of `citadel.Client`: hits of a search, and the number of documents added."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

from citadel.errors import InputError
from citadel.types import Document, Hit

if TYPE_CHECKING:
    from citadel.server.client import Client


class RemoteHits(Sequence[Hit]):
    """The hits of one query, best first, with the interface of `Hits`."""

    def __init__(
        self,
        client: Client,
        rows: Sequence[Mapping[str, Any]],
        tau: float,
        dot_products: int = 0,
        query_cut: bool = False,
        offset: int = 0,
    ) -> None:
        self._client, self._rows, self.tau, self.dot_products = client, rows, tau, dot_products
        self.query_cut, self.offset = query_cut, offset
        self._hits = [Hit(row["id"], row["score"], row["rank"], self._document) for row in rows]

    def __len__(self) -> int:
        return len(self._hits)

    def __getitem__(self, index: Any) -> Any:
        return self._hits[index]

    def __repr__(self) -> str:
        return f"RemoteHits({self._hits!r})"

    @property
    def ids(self) -> list[str]:
        """The ids of the hits."""
        return [hit.id for hit in self._hits]

    @property
    def scores(self) -> list[float]:
        """The scores of the hits."""
        return [hit.score for hit in self._hits]

    def _document(self, rank: int) -> Document:
        row = self._rows[rank - self.offset - 1]
        if "text" in row and not row.get("text_cut"):
            return Document(row["id"], row["text"], row["title"], row["metadata"])
        document = self._client.get(row["id"])  # searched without documents, or cut: fetched one by one
        if document is None:
            raise InputError(f"document {row['id']!r} was deleted since the search")
        return document


class AddedCount(int):
    """Number of documents added; `cut` of them were longer than the `limit` of tokens that the model reads.

    >>> added = AddedCount(3, cut=1, limit=512)
    >>> added == 3, added.cut, added.limit
    (True, 1, 512)
    """

    cut: int
    limit: int | None  # None for an index without a model

    def __new__(cls, added: int, cut: int = 0, limit: int | None = None) -> Self:
        self = super().__new__(cls, added)
        self.cut, self.limit = cut, limit
        return self
