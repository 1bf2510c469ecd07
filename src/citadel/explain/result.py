"""The parts of an explanation; their fields are those of its JSON (docs/reference/explanation.md)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any

from citadel.text.snippet import Snippet, Span, merge_spans, snippet

FORMAT = 2  # increase when a field is removed or changes its meaning
SNIPPET = 240  # characters
_DOCUMENT_TOKEN = ("position", "token", "field", "start", "end")
_SPAN = ("start", "end", "gain", "matches")


@dataclass(frozen=True, slots=True)
class Alternative:
    """An unused key of a query token, and what it would have added (None: no posting).

    >>> Alternative(7, "relativity", 0.5, None).name
    'relativity'
    """

    key: int
    name: str | None
    weight: float
    product: float | None


@dataclass(frozen=True, slots=True)
class Token:
    """A token, its position and its offsets in a field; special tokens have no field.

    >>> Token(1, "##ity", "text", 5, 8).field
    'text'
    """

    position: int
    token: str | None
    field: str | None = None
    start: int | None = None
    end: int | None = None
    alternatives: tuple[Alternative, ...] = ()


@dataclass(frozen=True, slots=True)
class Posting:
    """A posting of the document that matched a query token.

    >>> Posting((4,), 1.5, 1, 2.25).product
    2.25
    """

    document_tokens: tuple[int, ...]
    weight: float
    count: int
    product: float


@dataclass(frozen=True, slots=True)
class Match:
    """A query token with one of its keys, and the matching postings, best first.

    >>> Match((2,), 7, "relativity", 1.0, 2.25, 0.5, (Posting((4,), 1.5, 1, 2.25),)).is_matched
    True
    """

    query_tokens: tuple[int, ...]
    key: int | None
    name: str | None
    weight: float
    gain: float
    share: float | None
    postings: tuple[Posting, ...]

    @property
    def is_matched(self) -> bool:
        """Whether the document has a posting with this key."""
        return bool(self.postings)

    @property
    def label(self) -> str:
        """The key as text: its name, or its number without one."""
        return self.name if self.name is not None else str(self.key)


@dataclass(frozen=True, slots=True)
class Semantic:
    """The contribution of the semantic vectors.

    >>> Semantic(1.5, 0.25).gain
    1.5
    """

    gain: float
    share: float | None


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a document has its score for a query: the gains of `matches` and `semantic` add up to `score`.

    `text` is the document's text, or the analysed part of a text longer than 100,000 characters: then
    `text_cut` is true and `text_start` is the offset of the part. Offsets are into `text`.

    >>> import citadel, tempfile
    >>> index = citadel.Index.create(tempfile.mkdtemp())
    >>> index.add([{"id": "d1", "text": "Einstein proposed relativity"}])
    1
    >>> explanation = index.commit().searcher().explain("who proposed relativity", "d1")
    >>> [(match.name, match.is_matched) for match in explanation.matches]
    [('who', False), ('propos', True), ('rel', True)]
    >>> match = explanation.matches[1]
    >>> explanation.query_words(match), explanation.document_words(match.postings[0])
    ('proposed', 'proposed')
    >>> explanation.snippet.text[explanation.snippet.spans[1].start :]
    'relativity'
    """

    query: str | None
    id: str
    title: str
    text: str
    router: str
    codec: str | None
    tau: float
    semantic_mode: str
    score: float | None
    semantic: Semantic | None
    cut: bool
    query_tokens: tuple[Token, ...]
    document_tokens: tuple[Token, ...]
    matches: tuple[Match, ...]
    text_start: int = 0
    text_cut: bool = False

    def spans(self, field: str = "text") -> tuple[Span, ...]:
        """The spans of `text` or `title` that added to the score, in order."""
        spans = []
        tokens = {token.position: token for token in self.document_tokens if token.field == field}
        for number, match in enumerate(self.matches):
            positions = match.postings[0].document_tokens if match.postings and match.gain else ()
            for token in (tokens[position] for position in positions if position in tokens):
                assert token.start is not None and token.end is not None  # it has a field
                spans.append(Span(token.start, token.end, match.gain / len(positions), (number,)))
        return merge_spans(spans)

    def query_words(self, match: Match) -> str:
        """The query tokens of a match as text; for bm25 the words as typed, not their stems."""
        return " ".join(self._texts(self.query_tokens, match.query_tokens))

    def document_words(self, posting: Posting) -> str:
        """The document tokens of a posting as text; empty if unknown."""
        return " ".join(self._texts(self.document_tokens, posting.document_tokens))

    def _texts(self, tokens: tuple[Token, ...], positions: tuple[int, ...]) -> Iterable[str]:
        fields = (
            {"query": self.query, "title": self.title, "text": self.text} if self.router == "bm25" else {}
        )
        chosen = set(positions)
        pairs = ((token, fields.get(token.field or "")) for token in tokens if token.position in chosen)
        names = (
            str(token.token or "") if text is None else text[token.start : token.end] for token, text in pairs
        )
        distinct: dict[str, str] = {}
        for name in names:
            distinct.setdefault(name.casefold(), name)
        return filter(None, distinct.values())

    @property
    def snippet(self) -> Snippet:
        """The window of the text with the largest share of the score."""
        return snippet(self.text, self.spans(), SNIPPET)

    def to_json(self) -> dict[str, Any]:
        """Convert to JSON types, with spans and snippet."""
        value = {"format": FORMAT, **asdict(replace(self, document_tokens=()))}
        value["document_tokens"] = [_fields(token, _DOCUMENT_TOKEN) for token in self.document_tokens]
        title_spans, text_spans = self.spans("title"), self.spans("text")
        value["title_spans"] = [_fields(span, _SPAN) for span in title_spans]
        value["text_spans"] = [_fields(span, _SPAN) for span in text_spans]
        return value | {"snippet": asdict(snippet(self.text, text_spans, SNIPPET))}


def _fields(value: Token | Span, names: tuple[str, ...]) -> dict[str, Any]:
    """A faster `asdict`: a document can have thousands of tokens."""
    return {name: getattr(value, name) for name in names}
