"""Types of the data flow: Document → Tokens → TokenVectors → RoutedTokens → Postings → Ranking."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from citadel.errors import InputError, UnknownQueryError, UsageError
from citadel.files import write_whole

Floats = NDArray[np.float32]
Keys = NDArray[np.uint32]


@dataclass(frozen=True, slots=True)
class Document:
    """A document, as added to an index and as returned with a hit.

    >>> Document("d1", "E = mc²", title="Relativity").encoded_text
    'Relativity E = mc²'
    """

    id: str
    text: str
    title: str = ""
    metadata: Mapping[str, Any] = field(default_factory=dict)

    @property
    def encoded_text(self) -> str:
        """Title and text, the input of the analyser or model."""
        return f"{self.title} {self.text}".strip()


@dataclass(frozen=True, slots=True)
class Tokens:
    """The tokens of one text with their character offsets.

    >>> Tokens(("run", "fast"), ((0, 7), (8, 12))).texts[0]
    'run'
    """

    texts: tuple[str, ...]
    offsets: tuple[tuple[int, int], ...]

    def __len__(self) -> int:
        return len(self.texts)


@dataclass(frozen=True, slots=True)
class TokenVectors:
    """Output of an encoder for one text, before routing.

    `activations` is φ, dense over the keys; `semantic` the pooled vector.

    >>> import numpy as np
    >>> len(TokenVectors(np.array([7, 9], np.uint32), np.ones((2, 4), np.float32)))
    2
    """

    token_ids: Keys  # [T]
    vectors: Floats | None = None  # [T, d]
    activations: Floats | None = None  # [T, V]
    semantic: Floats | None = None  # [s]

    def __len__(self) -> int:
        return len(self.token_ids)


@dataclass(frozen=True, slots=True)
class RoutedTokens:
    """One text after routing: row p routes token `tokens[p]` to `keys[p]` with `weights[p]`.

    Rows are in token order. `vectors[p]` is the token's vector, not yet multiplied by its weight;
    `vectors` is None if the router uses no vectors (v ≡ 1).

    >>> import numpy as np
    >>> len(RoutedTokens(np.array([3], np.uint32), np.array([1.0], np.float32)))
    1
    """

    keys: Keys  # [P]
    weights: Floats  # [P]
    vectors: Floats | None = None  # [P, d]
    semantic: Floats | None = None  # [s]
    tokens: NDArray[np.uint32] | None = None  # [P]
    is_cut: bool = False  # the text was longer than the model reads
    is_blank: bool = False  # the text has no tokens

    def __len__(self) -> int:
        return len(self.keys)


@dataclass(frozen=True, slots=True)
class Postings:
    """Rows of inverted lists: document `documents[p]` is listed under `keys[p]`.

    >>> import numpy as np
    >>> one = np.array([1], np.uint32)
    >>> len(Postings(keys=one, documents=one, weights=one.astype(np.float32)))
    1
    """

    keys: Keys  # [P]
    documents: NDArray[np.uint32]  # [P]
    weights: Floats  # [P]
    vectors: Floats | None = None  # [P, d]

    def __len__(self) -> int:
        return len(self.keys)


@dataclass(frozen=True)
class Passages:
    """Documents split into passages: document i has passages starts[i] … starts[i + 1] − 1.

    >>> Passages(np.array([0, 1, 3]), np.array([[0, 9], [0, 40], [30, 70]], np.uint32)).counts.tolist()
    [1, 2]
    """

    starts: NDArray[np.int64]  # [n + 1]
    spans: NDArray[np.uint32]  # [R, 2]: first character in the document's text, and the one after the last

    @property
    def counts(self) -> NDArray[np.int64]:
        """Passages per document [n]."""
        return np.diff(self.starts)


@dataclass(frozen=True)
class VectorBatch:
    """Documents with their postings: passage i owns rows offsets[i] … offsets[i + 1] − 1.

    Without `passages`, each document is one passage.
    """

    documents: Sequence[Document]  # [n]
    offsets: NDArray[np.int64]  # [R + 1]
    keys: NDArray[np.uint32]  # [P]
    weights: Floats  # [P]
    vectors: Floats | None  # [P, d]
    semantic: Floats | None  # [R, s]
    passages: Passages | None = None

    def __len__(self) -> int:
        return len(self.documents)

    def owner(self, row: int) -> str:
        """Id of the document to which a row belongs."""
        return self.passage_owner(int(np.searchsorted(self.offsets, row, side="right")) - 1)

    def passage_owner(self, passage: int) -> str:
        """Id of the document to which a passage belongs."""
        if self.passages is None:
            return self.documents[passage].id
        return self.documents[int(np.searchsorted(self.passages.starts, passage, side="right")) - 1].id

    def part(self, start: int, stop: int) -> VectorBatch:
        """Batch of the documents start … stop − 1, of a batch without `passages`."""
        rows = slice(int(self.offsets[start]), int(self.offsets[stop]))
        return VectorBatch(
            self.documents[start:stop],
            self.offsets[start : stop + 1] - self.offsets[start],
            self.keys[rows],
            self.weights[rows],
            None if self.vectors is None else self.vectors[rows],
            None if self.semantic is None else self.semantic[start:stop],
        )


class Scored(NamedTuple):
    """The engine's result for one query: global document numbers and scores, best first.

    >>> Scored(np.array([4]), np.array([1.5], np.float32)).numbers.tolist()
    [4]
    """

    numbers: NDArray[np.int64]  # [k]
    scores: Floats  # [k]
    dot_products: int = 0
    shards: tuple[int, int] | None = None  # answered, of how many; None unless they are searched elsewhere


class AddedCount(int):
    """Number of documents added; `cut` of them were longer than the `limit` of tokens that the model reads.

    `generated_ids` are the ids of documents that were given without one, in order.

    >>> added = AddedCount(3, cut=1, limit=512)
    >>> added == 3, added.cut, added.limit, added.generated_ids
    (True, 1, 512, [])
    """

    cut: int
    limit: int | None  # None for an index without a model
    generated_ids: list[str]

    def __new__(
        cls, added: int, cut: int = 0, limit: int | None = None, generated_ids: Sequence[str] = ()
    ) -> Self:
        self = super().__new__(cls, added)
        self.cut, self.limit, self.generated_ids = cut, limit, list(generated_ids)
        return self


@dataclass(frozen=True, slots=True)
class Passage:
    """A part of a document's text, with its score for a query.

    >>> Passage("mass and energy", 120, 135, 2.5).text
    'mass and energy'
    """

    text: str
    start: int  # of its first character in the document's text
    end: int  # of the character after its last
    score: float


def _no_document(_: int) -> Document:
    """The document of a hit that was made by hand; a lambda could not be pickled."""
    return Document("", "")


@dataclass(frozen=True, slots=True)
class ScorePart:
    """What one ranking or the reranker knows of a hit; the gains of all parts add up to the hit's score.

    >>> ScorePart("bm25", 7.5, 3, 0.25).gain
    0.25
    """

    name: str
    score: float | None  # None if the hit is not in this ranking
    rank: int | None
    gain: float


@dataclass(frozen=True, slots=True)
class Hit:
    """One ranked document; text, title and metadata are read from the index at first use.

    >>> Hit("d1", 2.5, 1, lambda rank: Document("d1", "E = mc²")).text
    'E = mc²'
    """

    id: str
    score: float
    rank: int
    _load: Callable[[int], Document] = field(repr=False, compare=False, default=_no_document)
    _passages: Callable[[int, bool], Sequence[Passage]] | None = field(
        repr=False, compare=False, default=None
    )
    relevance: float | None = field(default=None, compare=False)  # 0 … 1; None without a calibration
    parts: tuple[ScorePart, ...] = field(default=(), compare=False)  # of a fused or reranked hit

    def __repr__(self) -> str:
        shown = [f"id={self.id!r}", f"score={self.score!r}", f"rank={self.rank}"]
        shown += [f"relevance={self.relevance!r}"] if self.relevance is not None else []
        shown += [f"parts={self.parts!r}"] if self.parts else []
        return f"Hit({', '.join(shown)})"

    @property
    def document(self) -> Document:
        return self._load(self.rank)

    @property
    def text(self) -> str:
        return self.document.text

    @property
    def title(self) -> str:
        return self.document.title

    @property
    def metadata(self) -> Mapping[str, Any]:
        return self.document.metadata

    @property
    def passage(self) -> Passage:
        """The passage that gave the hit its score; the whole text unless the document is a long one."""
        own = () if self._passages is None else self._passages(self.rank, False)
        return own[0] if own else Passage(self.text, 0, len(self.text), self.score)

    @property
    def passages(self) -> Sequence[Passage]:
        """The other passages of a long document, best first; those without a score come last."""
        return () if self._passages is None else self._passages(self.rank, True)

    def to_dict(self) -> dict[str, Any]:
        """The hit in JSON's types: with `relevance` and `parts` if known, and a long document's best passage.

        >>> Hit("d1", 2.5, 1, lambda rank: Document("d1", "E = mc²")).to_dict()
        {'id': 'd1', 'score': 2.5, 'rank': 1, 'title': '', 'text': 'E = mc²', 'metadata': {}}
        """
        document = self.document
        fields = {
            "id": self.id,
            "score": self.score,
            "rank": self.rank,
            "title": document.title,
            "text": document.text,
            "metadata": dict(document.metadata),
        }
        if self.relevance is not None:
            fields["relevance"] = self.relevance
        if self.parts:
            fields["parts"] = [asdict(part) for part in self.parts]
        own = () if self._passages is None else self._passages(self.rank, False)
        return fields | ({"passage": asdict(own[0])} if own else {})


@dataclass(frozen=True, slots=True)
class Ranking:
    """The hits of several queries, in the order of the queries.

    >>> ranking = Ranking(("q1",), ((Hit("d1", 2.5, 1),),))
    >>> print(ranking.trec("demo"), end="")
    q1 Q0 d1 1 2.5 demo
    >>> ranking["q1"][0].id, "q2" in ranking, [query for query, hits in ranking]
    ('d1', False, ['q1'])
    """

    query_ids: tuple[str, ...]
    hits: tuple[Sequence[Hit], ...]
    _positions: Mapping[str, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        positions = {id: position for position, id in enumerate(self.query_ids)}
        object.__setattr__(self, "_positions", positions)

    def __len__(self) -> int:
        return len(self.query_ids)

    def __contains__(self, query_id: object) -> bool:
        return isinstance(query_id, str) and query_id in self._positions

    def __getitem__(self, query_id: str) -> Sequence[Hit]:
        """The hits of a query by its id."""
        if query_id in self:
            return self.hits[self._positions[query_id]]
        example = f", such as {self.query_ids[0]!r}" if self.query_ids else ""
        raise UnknownQueryError(f"the ranking has no query {query_id!r}: give one of its query_ids{example}")

    def __iter__(self) -> Iterator[tuple[str, Sequence[Hit]]]:
        return iter(zip(self.query_ids, self.hits, strict=True))

    def to_dict(self) -> dict[str, dict[str, float]]:
        """Scores by query and document, the form of a run in evaluation libraries.

        >>> Ranking(("q1",), ((Hit("d1", 2.5, 1),),)).to_dict()
        {'q1': {'d1': 2.5}}
        """
        return {query: {hit.id: hit.score for hit in hits} for query, hits in self}

    def trec(self, tag: str = "citadel") -> str:
        """Format as a TREC run; an id with white space is an error."""
        return "".join(self._trec_lines(tag))

    def to_trec(self, path: str | os.PathLike[str], tag: str = "citadel") -> None:
        """Write `trec(tag)` to a file atomically."""
        write_whole(os.fspath(path), self._trec_lines(tag))

    def _trec_lines(self, tag: str) -> Iterator[str]:
        if not _is_column(tag):
            raise UsageError(f"the tag {tag!r} does not fit a TREC run: choose a word without white space")
        for query, hits in self:
            check_trec_ids((query, *(hit.id for hit in hits)))
            # Nine digits identify every fp32 number.
            yield from (f"{query} Q0 {hit.id} {hit.rank} {hit.score:.9g} {tag}\n" for hit in hits)


def check_trec_ids(ids: Iterable[str]) -> None:
    """Raise InputError if an id would break the columns of a TREC run.

    >>> check_trec_ids(["d 1"])
    Traceback (most recent call last):
    citadel.errors.InputError: the id 'd 1' does not fit a TREC run: rename it without white space, ...
    """
    for id in ids:
        if not _is_column(id):
            raise InputError(
                f"the id {id!r} does not fit a TREC run: rename it without white space, or use --json"
            )


def _is_column(name: str) -> bool:
    # Parsers of runs differ in what they treat as white space; reject what any of them does, and lone
    # surrogates.
    return name.split() == [name] and name.encode(errors="ignore").decode() == name
