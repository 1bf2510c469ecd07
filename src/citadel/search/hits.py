"""The hits of a search; ids and texts are read on access."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, overload

import numpy as np
from numpy.typing import NDArray

from citadel.errors import Cancelled
from citadel.index.documents import Fields
from citadel.index.snapshot import Snapshot
from citadel.types import Document, Hit, Passage, Scored, ScorePart

if TYPE_CHECKING:
    from citadel._native import Cancel

_READ_AT_ONCE = 50  # documents
_MAX_KEPT = 100_000  # characters; a longer document is read alone, when it is asked for


class HitPassages:
    """The passages of long documents among the hits of one query.

    `rescore` returns the scores of a document's passages, best first.
    """

    def __init__(self, snapshot: Snapshot, scored: Scored, rescore: Callable[[range], Scored]) -> None:
        self._snapshot, self._scored = snapshot, scored  # numbers of passages
        self._rescore: Callable[[range], Scored] | None = rescore
        self._others: dict[int, tuple[Passage, ...]] = {}

    def __getstate__(self) -> dict[str, Any]:
        """Pickled with all passages, because a prepared query cannot be pickled."""
        for index in range(len(self._scored.numbers)):
            self.others(index)
        return {**self.__dict__, "_rescore": None}

    def span(self, index: int) -> tuple[int, int] | None:
        """Where the best passage of hit `index` lies in its text; None: all of it."""
        return self._snapshot.span(int(self._scored.numbers[index]))

    def best(self, index: int) -> tuple[Passage, ...]:
        """The passage that was found; empty unless the document has several."""
        number, score = int(self._scored.numbers[index]), float(self._scored.scores[index])
        return () if self.span(index) is None else self._read([number], [score])

    def others(self, index: int) -> tuple[Passage, ...]:
        """The other passages of the document: those with a score, best first, then the rest in order."""
        if index not in self._others:
            self._others[index] = self._read_others(int(self._scored.numbers[index]))
        return self._others[index]

    def _read_others(self, best: int) -> tuple[Passage, ...]:
        if self._snapshot.span(best) is None:
            return ()
        [document] = self._snapshot.owners(np.array([best])).tolist()
        own = self._snapshot.passages_of(document)
        assert self._rescore is not None
        scored = self._rescore(own)
        scores = dict.fromkeys(own, 0.0)
        ranked = dict(zip(scored.numbers.tolist(), scored.scores.tolist(), strict=True))
        numbers = [number for number in (ranked | scores) if number != best]
        return self._read(numbers, [(scores | ranked)[number] for number in numbers])

    def _read(self, numbers: Sequence[int], scores: Sequence[float]) -> tuple[Passage, ...]:
        """Passages of one document; its text is read once."""
        spans = [self._snapshot.span(number) or (0, 0) for number in numbers]
        if not spans:
            return ()
        first, last = min(start for start, _ in spans), max(end for _, end in spans)
        text = self._snapshot.text(numbers[0], first, last)
        parts = (text[start - first : end - first] for start, end in spans)
        return tuple(
            Passage(part, start, start + len(part), score)
            for part, (start, _), score in zip(parts, spans, scores, strict=True)
        )


class Hits(Sequence[Hit]):
    """The hits of one query, best first; ids and texts are read on first access."""

    __slots__ = (
        "_documents",
        "_ids",
        "_last_long",
        "_passages",
        "_relevance",
        "_scored",
        "_snapshot",
        "offset",
        "query_cut",
        "tau",
    )

    def __init__(
        self,
        snapshot: Snapshot,
        scored: Scored,
        tau: float,
        query_cut: bool = False,
        offset: int = 0,
        passages: HitPassages | None = None,
        relevance: NDArray[np.float64] | None = None,
    ) -> None:
        self._snapshot, self._scored, self.tau = snapshot, scored, tau
        self.offset = offset  # better hits that were left out
        self._relevance = relevance  # [k]
        self._passages = passages  # None if no document of the index has several
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
        passages = None if self._passages is None else self._hit_passages
        relevance = self.relevance(index)
        score = float(self._scored.scores[index])
        return Hit(self.ids[index], score, rank, self._document, passages, relevance)

    def __iter__(self) -> Iterator[Hit]:
        passages = None if self._passages is None else self._hit_passages
        relevance = [None] * len(self) if self._relevance is None else self._relevance.tolist()
        rows = zip(self.ids, self.scores, relevance, strict=True)
        for rank, (id, score, own) in enumerate(rows, self.offset + 1):
            yield Hit(id, score, rank, self._document, passages, own)

    def __repr__(self) -> str:
        return f"Hits({list(self)!r})"

    @property
    def ids(self) -> list[str]:
        """The ids of all hits."""
        if self._ids is None:
            self._ids = self._snapshot.ids(self._scored.numbers)
        return self._ids

    @property
    def numbers(self) -> list[int]:
        """The numbers of the documents in the index."""
        numbers: list[int] = self._scored.numbers.tolist()
        return numbers

    def id(self, index: int) -> str:
        """The id of hit `index`; reads no other."""
        if self._ids is not None:
            return self._ids[index]
        return self._snapshot.ids(self._scored.numbers[index : index + 1])[0]

    def score(self, index: int) -> float:
        """The score of hit `index`."""
        return float(self._scored.scores[index])

    @property
    def scores(self) -> list[float]:
        """The scores of all hits."""
        scores: list[float] = self._scored.scores.tolist()
        return scores

    def relevance(self, index: int) -> float | None:
        """The relevance of hit `index`, from 0 to 1; None without a calibration."""
        return None if self._relevance is None else float(self._relevance[index])

    def parts(self, index: int) -> tuple[ScorePart, ...]:
        """The scores that hit `index` was made from, if it was fused or reranked."""
        return ()

    def load(self, cancel: Cancel | None = None) -> None:
        """Read the documents of all hits now, but long ones."""
        if self._documents is None:
            documents: list[Document | None] = []
            for start in range(0, len(self), _READ_AT_ONCE):
                if cancel is not None and cancel.is_set():
                    raise Cancelled("the search was cancelled")
                part = self.fields(start, start + _READ_AT_ONCE, _MAX_KEPT + 1)
                documents += [_kept(*fields) for fields in part]
            self._documents = documents

    @property
    def dot_products(self) -> int:
        """Dot products computed: query tokens with postings, and queries with semantic vectors."""
        return self._scored.dot_products

    @property
    def shards(self) -> tuple[int, int] | None:
        """How many shards answered, of how many, for an index served on a cluster; otherwise None."""
        return self._scored.shards

    def to_dicts(self) -> list[dict[str, Any]]:
        """The hits as dicts in JSON's types: `json.dumps(hits.to_dicts())`.

        >>> import citadel, tempfile
        >>> index = citadel.Index.create(tempfile.mkdtemp(), model="bm25")
        >>> added = index.add([{"id": "d1", "text": "E = mc²", "year": 1905}])
        >>> [(hit["id"], hit["rank"], hit["metadata"]) for hit in index.commit().search("mc²").to_dicts()]
        [('d1', 1, {'year': 1905})]
        """
        return [hit.to_dict() for hit in self]

    def fields(self, start: int, stop: int, limit: int = sys.maxsize) -> list[Fields]:
        """Id, title, text and metadata of hits start … stop − 1; texts are cut after `limit` characters."""
        return self._snapshot.fields(self._scored.numbers[start:stop], limit)

    def best_passage(self, index: int) -> Passage | None:
        """The best passage of hit `index` if its document is a long one."""
        own = () if self._passages is None else self._passages.best(index)
        return own[0] if own else None

    def other_passages(self, index: int) -> Sequence[Passage]:
        """The other passages of hit `index`."""
        return () if self._passages is None else self._passages.others(index)

    def _hit_passages(self, rank: int, others: bool) -> Sequence[Passage]:
        assert self._passages is not None
        index = rank - self.offset - 1
        return self._passages.others(index) if others else self._passages.best(index)

    def _document(self, rank: int) -> Document:
        self.load()
        assert self._documents is not None
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
