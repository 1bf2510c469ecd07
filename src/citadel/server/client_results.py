"""Hits of a search by `citadel.Client`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from citadel.errors import InputError
from citadel.filter.tree import Scalar
from citadel.types import Document, Hit, Passage, ScorePart

if TYPE_CHECKING:
    from citadel.server.client import Client


class RemoteHits(Sequence[Hit]):
    """The hits of one query, best first, with the interface of `Hits`."""

    def __init__(
        self,
        client: Client,
        result: Mapping[str, Any],
        answer: Mapping[str, Any],
        offset: int = 0,
        dot_products: int = 0,
    ) -> None:
        """`result` has the hits of a query; `answer`, the whole response, what queries of a batch share."""
        self._client, self._rows, self.offset = client, result["hits"], offset
        self.tau, self.dot_products = answer["tau"], dot_products
        self.query_cut = bool(result.get("query_cut"))
        self.matching: int | None = answer.get("matching")  # documents that match the filter
        self.unknown_fields: list[str] = answer.get("unknown_fields", [])  # that no document has
        self.complete: bool = answer.get("complete", True)  # all shards of a cluster answered in time
        self.facets = facet_pairs(answer.get("facets", {}))
        self._hits = [
            Hit(
                row["id"],
                row["score"],
                row["rank"],
                self._document,
                self._passages,
                row.get("relevance"),
                tuple(ScorePart(**part) for part in row.get("parts", ())),
            )
            for row in self._rows
        ]

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

    def _passages(self, rank: int, others: bool) -> list[Passage]:
        row = self._rows[rank - self.offset - 1]
        if others:
            return [Passage(**passage) for passage in row.get("passages", ())]
        return [Passage(**row["passage"])] if "passage" in row else []

    def _document(self, rank: int) -> Document:
        return listed_document(self._client, self._rows[rank - self.offset - 1])


def listed_document(client: Client, row: Mapping[str, Any]) -> Document:
    """The document of a hit or of a listing; one that is absent or cut there is fetched alone."""
    if "text" in row and not row.get("text_cut"):
        return Document(row["id"], row["text"], row["title"], row["metadata"])
    document = client.get(row["id"])
    if document is None:
        raise InputError(f"document {row['id']!r} was deleted since the search or listing")
    return document


def facet_pairs(facets: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, list[tuple[Scalar, int]]]:
    """Facets of a response as pairs of value and count.

    >>> facet_pairs({"year": [{"value": 1905, "count": 3}]})
    {'year': [(1905, 3)]}
    """
    return {name: [(row["value"], row["count"]) for row in rows] for name, rows in facets.items()}
