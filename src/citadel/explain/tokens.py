"""The tokens of queries and documents with their names and offsets: what an index's numbers are called."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from citadel.explain.result import Token
from citadel.text.highlight import ANALYSED, best_part
from citadel.types import Document, RoutedTokens, Tokens

if TYPE_CHECKING:
    from citadel.encode.encoder import Encoder
    from citadel.encode.tokenizer import Encoding
    from citadel.text.analyser import Analyser

ANY_NAME = "any"  # the one key of all_to_all
_CHARACTERS_PER_TOKEN = 16  # what a model reads lies within its length times this
Places = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Names:
    """A document's tokens, and those that gave the postings under each key or term, in posting order."""

    tokens: tuple[Token, ...] = ()
    cut: bool = False
    by_key: dict[int | str, list[Places]] | None = None

    def postings(self, key: int | str | None, count: int) -> list[Places]:
        """The tokens of `count` postings; where the text gives another number of them, nobody knows which is which."""
        found = (self.by_key or {}).get(key, []) if key is not None else []
        return found if len(found) == count else [()] * count


@dataclass(frozen=True, slots=True)
class Part:
    """What is analysed of a document: its title and text, or parts of them where they are long."""

    document: Document
    text_start: int = 0
    cut: bool = False


def term_part(document: Document, terms: Collection[str], analyser: Analyser, check: Callable[[], None]) -> Part:
    """The part of a document around the terms of a query."""
    start, end = best_part(document.text, terms, analyser, check=check)
    return _part(document, start, end)


def first_part(document: Document, document_length: int = 0) -> Part:
    """The beginning of a document, with all that a model of this length reads."""
    return _part(document, 0, max(ANALYSED, document_length * _CHARACTERS_PER_TOKEN))


def _part(document: Document, start: int, end: int) -> Part:
    if len(document.title) <= ANALYSED and end - start >= len(document.text):
        return Part(document)
    short = replace(document, title=document.title[:ANALYSED], text=document.text[start:end])
    return Part(short, start, cut=True)


def model_tokens(encoder: Encoder, text: Encoding) -> Iterator[Token]:
    """Every token of an encoded text; special ones have no field."""
    for place, (id, (start, end)) in enumerate(zip(text.ids.tolist(), text.offsets, strict=True)):
        name = encoder.tokenizer.token(id)
        yield Token(place, name, "text", start, end) if end > start else Token(place, name)


def key_name(encoder: Encoder, key: int) -> str:
    """The word of a key."""
    return ANY_NAME if encoder.config.router == "all_to_all" else encoder.tokenizer.token(key)


def row_places(text: Encoding, routed: RoutedTokens) -> list[Places]:
    """The tokens of each row; for a sparse router, whose rows belong to no token, those that are the key's own word."""
    places = np.flatnonzero(text.routed)  # [t]
    if routed.tokens is not None:
        return [(place,) for place in places[routed.tokens].tolist()]
    own: dict[int, list[int]] = {}
    for place in places.tolist():
        own.setdefault(int(text.ids[place]), []).append(place)
    return [tuple(own.get(key, ())) for key in routed.keys.tolist()]


def model_names(encoder: Encoder, document: Document) -> Names:
    """A document through its model once more."""
    [text] = encoder.tokenizer.documents([document.encoded_text])
    [routed] = encoder.route_documents([text])
    by_key: dict[int | str, list[Places]] = {}
    for key, places in zip(routed.keys.tolist(), row_places(text, routed), strict=True):
        by_key.setdefault(key, []).append(places)
    tokens = in_fields(document, model_tokens(encoder, text))
    return Names(tuple(tokens), text.cut, by_key)


def term_names(document: Document, found: Tokens) -> Names:
    """A document's terms; all places of a term give its one posting."""
    places: dict[int | str, list[int]] = {}
    for place, term in enumerate(found.texts):
        places.setdefault(term, []).append(place)
    by_key: dict[int | str, list[Places]] = {term: [tuple(where)] for term, where in places.items()}
    return Names(tuple(in_fields(document, term_tokens(found))), False, by_key)


def term_tokens(found: Tokens, field: str = "text") -> Iterator[Token]:
    """Terms with the places of their words."""
    for place, (term, (start, end)) in enumerate(zip(found.texts, found.offsets, strict=True)):
        yield Token(place, term, field, start, end)


def in_fields(document: Document, tokens: Iterator[Token] | Sequence[Token]) -> Iterator[Token]:
    """Tokens of the encoded text, with offsets into title and text instead.

    >>> document = Document("d1", " mass", title="Energy")
    >>> [(token.field, token.start, token.end) for token in in_fields(document, [Token(1, "mass", "text", 8, 12)])]
    [('text', 1, 5)]
    """
    joined = f"{document.title} {document.text}"
    stripped, border = len(joined) - len(joined.lstrip()), len(document.title)
    for token in tokens:
        if token.start is None or token.end is None:
            yield token
            continue
        start, end = token.start + stripped, token.end + stripped
        if start < border:
            yield Token(token.place, token.token, "title", start, min(end, border))
        else:
            yield Token(token.place, token.token, "text", max(start - border - 1, 0), end - border - 1)
