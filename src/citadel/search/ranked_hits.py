"""Hits in an order that no single search made: fused from several rankings, or reranked."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, overload

from citadel.index.documents import Fields
from citadel.search.hits import Hits
from citadel.types import Document, Hit, Passage, ScorePart

Source = tuple[Sequence[Hit], int]  # hits of a search, and an index into them


class Row(NamedTuple):
    """One hit: its new score, and where its document is read."""

    id: str
    score: float
    sources: tuple[Source, ...]  # at least one
    parts: tuple[ScorePart, ...] = ()

    @property
    def relevance(self) -> float | None:
        """The relevance that one of the searches gave."""
        values = (relevance_of(hits, index) for hits, index in self.sources)
        return next((value for value in values if value is not None), None)


class RankedHits(Hits):
    """Hits with new scores; documents and passages are read through the hits they come from."""

    __slots__ = ("_rows", "_shards")

    def __init__(
        self,
        rows: Sequence[Row],
        offset: int = 0,
        query_cut: bool = False,
        tau: float = 0.0,
        shards: tuple[int, int] | None = None,
    ) -> None:
        self._shards = shards
        self._rows, self.offset, self.query_cut, self.tau = list(rows), offset, query_cut, tau
        self._documents = None
        self._last_long = None

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, index: int) -> Hit: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Hit]: ...
    def __getitem__(self, index: int | slice) -> Hit | Sequence[Hit]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        if not -len(self) <= index < len(self):
            raise IndexError(f"hit {index} of {len(self)}")
        row, rank = self._rows[index], self.offset + index % len(self) + 1
        return Hit(row.id, row.score, rank, self._document, self._hit_passages, row.relevance, row.parts)

    def __iter__(self) -> Iterator[Hit]:
        return map(self.__getitem__, range(len(self)))

    @property
    def ids(self) -> list[str]:
        """The ids of all hits."""
        return [row.id for row in self._rows]

    def id(self, index: int) -> str:
        """The id of hit `index`."""
        return self._rows[index].id

    def score(self, index: int) -> float:
        """The score of hit `index`."""
        return self._rows[index].score

    @property
    def scores(self) -> list[float]:
        """The scores of all hits."""
        return [row.score for row in self._rows]

    def relevance(self, index: int) -> float | None:
        """The relevance of hit `index`, from 0 to 1; None if no search gave one."""
        return self._rows[index].relevance

    def parts(self, index: int) -> tuple[ScorePart, ...]:
        """The scores that hit `index` was made from."""
        return self._rows[index].parts

    @property
    def dot_products(self) -> int:
        """Dot products computed by the searches that these hits come from."""
        return sum(hits.dot_products for hits in self._searches())

    def _searches(self) -> list[Hits]:
        """The searches that these hits come from."""
        searches = {id(hits): hits for row in self._rows for hits, _ in row.sources}
        return [hits for hits in searches.values() if isinstance(hits, Hits)]

    @property
    def shards(self) -> tuple[int, int] | None:
        """How many shards answered all of the searches, of how many; None without a cluster."""
        return self._shards

    def fields(self, start: int, stop: int, limit: int = sys.maxsize) -> list[Fields]:
        """Id, title, text and metadata of hits start … stop − 1; texts are cut after `limit` characters."""
        return [_fields(*row.sources[0], limit) for row in self._rows[start:stop]]

    def best_passage(self, index: int) -> Passage | None:
        """The best passage of hit `index` if its document is a long one."""
        own = self._passages_of(index, others=False)
        return own[0] if own else None

    def other_passages(self, index: int) -> Sequence[Passage]:
        """The other passages of hit `index`."""
        return self._passages_of(index, others=True)

    def _hit_passages(self, rank: int, others: bool) -> Sequence[Passage]:
        return self._passages_of(rank - self.offset - 1, others)

    def _passages_of(self, index: int, others: bool) -> Sequence[Passage]:
        """Passages from the first search that split the document."""
        for hits, position in self._rows[index].sources:
            source = hits[position]
            if source._passages is not None and (own := source._passages(source.rank, others)):
                return own
        return ()

    def _long_document(self, index: int) -> Document:
        hits, position = self._rows[index].sources[0]
        return hits[position].document


def fewest_shards(results: Sequence[Sequence[Hit]]) -> tuple[int, int] | None:
    """The fewest shards that answered one of several searches; None without a cluster."""
    known = [hits.shards for hits in results if isinstance(hits, Hits) and hits.shards is not None]
    return min(known, default=None)


def columns(hits: Sequence[Hit]) -> tuple[list[str], list[float]]:
    """Ids and scores, without making a Hit of each where the sequence has them as lists."""
    if isinstance(hits, Hits):
        return hits.ids, hits.scores
    return [hit.id for hit in hits], [hit.score for hit in hits]


def id_of(hits: Sequence[Hit], index: int) -> str:
    """The id of one hit of a search."""
    return hits.id(index) if isinstance(hits, Hits) else hits[index].id


def score_of(hits: Sequence[Hit], index: int) -> float:
    """The score of one hit of a search."""
    return hits.score(index) if isinstance(hits, Hits) else hits[index].score


def relevance_of(hits: Sequence[Hit], index: int) -> float | None:
    """The relevance of one hit of a search."""
    return hits.relevance(index) if isinstance(hits, Hits) else hits[index].relevance


def _fields(hits: Sequence[Hit], index: int, limit: int) -> Any:
    if isinstance(hits, Hits):
        return hits.fields(index, index + 1, limit)[0]
    document = hits[index].document
    return hits[index].id, document.title, document.text[:limit], dict(document.metadata)
