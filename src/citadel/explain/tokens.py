"""The tokens of queries and documents with names and offsets."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from citadel.explain.result import Token
from citadel.text.snippet import MAX_ANALYSED, best_piece, part_around
from citadel.types import Document, RoutedTokens, Tokens

if TYPE_CHECKING:
    from citadel.encode.encoder import Encoder
    from citadel.encode.tokenizer import Encoding
    from citadel.index.documents import DocumentStore
    from citadel.text.analyser import Analyser

ANY_NAME = "any"  # the one key of all_to_all
_CHARACTERS_PER_TOKEN = 16  # upper bound for the text that a model reads
Positions = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class DocumentTokens:
    """A document's tokens, and their positions for each posting of a key or term, in posting order."""

    tokens: tuple[Token, ...] = ()
    cut: bool = False
    by_key: dict[int | str, list[Positions]] | None = None

    def postings(self, key: int | str | None, count: int) -> list[Positions]:
        """The token positions of `count` postings; empty if the text yields a different number."""
        positions = (self.by_key or {}).get(key, []) if key is not None else []
        return positions if len(positions) == count else [()] * count


@dataclass(frozen=True, slots=True)
class AnalysedPart:
    """The analysed title and text of a document; parts of them if they are long."""

    document: Document
    text_start: int = 0
    cut: bool = False
    is_passage: bool = False


def term_part(
    store: DocumentStore,
    number: int,
    terms: Collection[str],
    analyser: Analyser,
    check: Callable[[], None],
) -> AnalysedPart:
    """The part of a document around the terms of a query; a long text is never in memory as a whole."""
    document, length = store.part(number, 0, MAX_ANALYSED + 1)
    if length <= MAX_ANALYSED:
        return _part(document, MAX_ANALYSED)
    pieces = (piece for column, piece in store.pieces(number) if column == "text")
    at = best_piece(pieces, terms, analyser, check=check)
    offset = max(0, at - MAX_ANALYSED)
    document, length = store.part(number, offset, at + MAX_ANALYSED + 1)
    start, end = part_around(at, document.text, offset, length)
    short = replace(
        document,
        title=document.title[:MAX_ANALYSED],
        text=document.text[start - offset : end - offset],
    )
    return AnalysedPart(short, start, cut=True)


def first_part(store: DocumentStore, number: int, document_length: int = 0) -> AnalysedPart:
    """The beginning of a document, at least what a model of this length reads."""
    limit = max(MAX_ANALYSED, document_length * _CHARACTERS_PER_TOKEN)
    return _part(store.part(number, 0, limit + 1).document, limit)


def passage_part(store: DocumentStore, number: int, span: tuple[int, int]) -> AnalysedPart:
    """A passage of a long document."""
    document, _ = store.part(number, *span)
    return AnalysedPart(document, span[0], cut=True, is_passage=True)


def _part(document: Document, limit: int) -> AnalysedPart:
    """The first `limit` characters of a document."""
    if len(document.title) <= MAX_ANALYSED and len(document.text) <= limit:
        return AnalysedPart(document)
    short = replace(document, title=document.title[:MAX_ANALYSED], text=document.text[:limit])
    return AnalysedPart(short, cut=True)


def model_tokens(encoder: Encoder, text: Encoding) -> Iterator[Token]:
    """Every token of an encoded text; special tokens have no field."""
    for position, (id, (start, end)) in enumerate(zip(text.ids.tolist(), text.offsets, strict=True)):
        name = encoder.tokenizer.token(id)
        yield Token(position, name, "text", start, end) if end > start else Token(position, name)


def key_name(encoder: Encoder, key: int) -> str:
    """The name of a key."""
    return ANY_NAME if encoder.config.router == "all_to_all" else encoder.tokenizer.token(key)


def row_positions(text: Encoding, routed: RoutedTokens) -> list[Positions]:
    """The token positions of each row; for a sparse router, those of the key's own word."""
    positions = np.flatnonzero(text.routed)  # [t]
    if routed.tokens is not None:
        return [(position,) for position in positions[routed.tokens].tolist()]
    own: dict[int, list[int]] = {}
    for position in positions.tolist():
        own.setdefault(int(text.ids[position]), []).append(position)
    return [tuple(own.get(key, ())) for key in routed.keys.tolist()]


def model_document(encoder: Encoder, document: Document) -> DocumentTokens:
    """Encode a document again to name its postings."""
    [text] = encoder.tokenizer.documents([document.encoded_text])
    [routed] = encoder.route_documents([text])
    by_key: dict[int | str, list[Positions]] = {}
    for key, positions in zip(routed.keys.tolist(), row_positions(text, routed), strict=True):
        by_key.setdefault(key, []).append(positions)
    tokens = in_fields(document, model_tokens(encoder, text))
    return DocumentTokens(tuple(tokens), text.cut, by_key)


def term_document(document: Document, terms: Tokens) -> DocumentTokens:
    """A document's terms; all positions of a term make one posting."""
    positions: dict[int | str, list[int]] = {}
    for position, term in enumerate(terms.texts):
        positions.setdefault(term, []).append(position)
    by_key: dict[int | str, list[Positions]] = {term: [tuple(own)] for term, own in positions.items()}
    return DocumentTokens(tuple(in_fields(document, term_tokens(terms))), False, by_key)


def term_tokens(terms: Tokens, field: str = "text") -> Iterator[Token]:
    """Terms with the offsets of their words."""
    for position, (term, (start, end)) in enumerate(zip(terms.texts, terms.offsets, strict=True)):
        yield Token(position, term, field, start, end)


def in_fields(document: Document, tokens: Iterator[Token] | Sequence[Token]) -> Iterator[Token]:
    """Tokens of the encoded text, with offsets mapped to title and text.

    >>> document = Document("d1", " mass", title="Energy")
    >>> [token] = in_fields(document, [Token(1, "mass", "text", 8, 12)])
    >>> token.field, token.start, token.end
    ('text', 1, 5)
    """
    joined = f"{document.title} {document.text}"
    stripped, border = len(joined) - len(joined.lstrip()), len(document.title)
    for token in tokens:
        if token.start is None or token.end is None:
            yield token
            continue
        start, end = token.start + stripped, token.end + stripped
        if start < border:
            yield Token(token.position, token.token, "title", start, min(end, border))
        else:
            yield Token(token.position, token.token, "text", max(start - border - 1, 0), end - border - 1)
