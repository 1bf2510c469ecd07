"""Hits of a search by `citadel.Client`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

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
    ) -> None:
        self._client, self._rows, self.tau, self.dot_products = client, rows, tau, dot_products
        self.query_cut = query_cut
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

    def to_dicts(self) -> list[dict[str, Any]]:
        """The hits as dicts in JSON's types."""
        return [hit.to_dict() for hit in self._hits]

    def _document(self, rank: int) -> Document:
        row = self._rows[rank - 1]
        if "text" in row and not row.get("text_cut"):
            return Document(row["id"], row["text"], row["title"], row["metadata"])
        document = self._client.get(row["id"])  # searched without documents, or cut: fetched one by one
        if document is None:
            raise InputError(f"document {row['id']!r} was deleted since the search")
        return document
