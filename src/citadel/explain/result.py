"""What an explanation is made of; the fields are those of its JSON (docs/reference/explanation.md)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any

from citadel.explain.snippet import Snippet, Span, merged, snippet

FORMAT = 1  # raise it when a field changes its meaning or goes
SNIPPET = 240  # characters
_DOCUMENT_TOKEN = ("place", "token", "field", "start", "end")
_SPAN = ("start", "end", "gain", "matches")


@dataclass(frozen=True, slots=True)
class Alternative:
    """A key that a query token would have taken next, and what it would have added (None: no posting under it).

    >>> Alternative(7, "relativity", 0.5, None).name
    'relativity'
    """

    key: int
    name: str | None
    weight: float
    product: float | None


@dataclass(frozen=True, slots=True)
class Token:
    """One token and where it stands in its field; special tokens stand nowhere.

    >>> Token(1, "##ity", "text", 5, 8).field
    'text'
    """

    place: int
    token: str | None
    field: str | None = None
    start: int | None = None
    end: int | None = None
    alternatives: tuple[Alternative, ...] = ()


@dataclass(frozen=True, slots=True)
class Posting:
    """A posting of the document that a query token met.

    >>> Posting((4,), 1.5, 1, 2.25).product
    2.25
    """

    document_tokens: tuple[int, ...]
    weight: float
    count: int
    product: float


@dataclass(frozen=True, slots=True)
class Match:
    """A query token under one of its keys, and what it met there, best first.

    >>> Match((2,), 7, "relativity", 1.0, 2.25, 0.5, (Posting((4,), 1.5, 1, 2.25),)).met
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
    def met(self) -> bool:
        """Whether the document has a posting under this key."""
        return bool(self.postings)

    @property
    def label(self) -> str:
        """The key for a reader: its word, or its number where it has none."""
        return self.name if self.name is not None else str(self.key)


@dataclass(frozen=True, slots=True)
class Semantic:
    """What the semantic vectors added.

    >>> Semantic(1.5, 0.25).gain
    1.5
    """

    gain: float
    share: float | None


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a document has the score it has for a query: the gains of `matches` and `semantic` add up to `score`.

    `text` is the document's text, or the part that was analysed where that is longer than 100,000 characters:
    `text_cut` says so, and `text_start` where the part begins. Offsets are into `text`.

    >>> import citadel, tempfile
    >>> index = citadel.Index.create(tempfile.mkdtemp())
    >>> index.add([{"id": "d1", "text": "Einstein proposed relativity"}])
    1
    >>> found = index.commit().searcher().explain("who proposed relativity", "d1")
    >>> [(match.name, match.met) for match in found.matches]
    [('who', False), ('propos', True), ('rel', True)]
    >>> found.asked(found.matches[1]), found.met(found.matches[1].postings[0])
    ('proposed', 'proposed')
    >>> found.snippet.text[found.snippet.spans[1].start :]
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
        """The parts of `text` or `title` that added to the score, in order."""
        found = []
        known = {token.place: token for token in self.document_tokens if token.field == field}
        for number, match in enumerate(self.matches):
            places = match.postings[0].document_tokens if match.postings and match.gain else ()
            for token in (known[place] for place in places if place in known):
                assert token.start is not None and token.end is not None  # it has a field
                found.append(Span(token.start, token.end, match.gain / len(places), (number,)))
        return merged(found)

    def asked(self, match: Match) -> str:
        """The query tokens of a match, for a reader: words as they were typed where tokens are stems."""
        return " ".join(self._names(self.query_tokens, match.query_tokens))

    def met(self, posting: Posting) -> str:
        """The document tokens of a posting, in the same way; empty where nobody knows them."""
        return " ".join(self._names(self.document_tokens, posting.document_tokens))

    def _names(self, tokens: tuple[Token, ...], places: tuple[int, ...]) -> Iterable[str]:
        fields = {"query": self.query, "title": self.title, "text": self.text} if self.router == "bm25" else {}
        wanted = set(places)
        found = ((token, fields.get(token.field or "")) for token in tokens if token.place in wanted)
        names = (str(token.token or "") if text is None else text[token.start : token.end] for token, text in found)
        once: dict[str, str] = {}
        for name in names:
            once.setdefault(name.casefold(), name)
        return filter(None, once.values())

    @property
    def snippet(self) -> Snippet:
        """The part of the text with the largest share of the score."""
        return snippet(self.text, self.spans(), SNIPPET)

    def to_json(self) -> dict[str, Any]:
        """All of it as JSON's own types, with the spans and the snippet."""
        value = {"format": FORMAT, **asdict(replace(self, document_tokens=()))}
        value["document_tokens"] = [_fields(token, _DOCUMENT_TOKEN) for token in self.document_tokens]
        title_spans, text_spans = self.spans("title"), self.spans("text")
        value["title_spans"] = [_fields(span, _SPAN) for span in title_spans]
        value["text_spans"] = [_fields(span, _SPAN) for span in text_spans]
        return value | {"snippet": asdict(snippet(self.text, text_spans, SNIPPET))}


def _fields(value: Token | Span, names: tuple[str, ...]) -> dict[str, Any]:
    """The same as `asdict`, which takes ten times as long: a document can have thousands of them."""
    return {name: getattr(value, name) for name in names}
