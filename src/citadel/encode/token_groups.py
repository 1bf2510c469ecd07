"""Tokenise a stream of documents into flat tables, for encoders that take thousands of texts at a time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, Protocol

import numpy as np

from citadel.encode.batches import LETTERS_TOKENISED, bounded_passages, groups, too_long
from citadel.encode.passages import PassageSplitter
from citadel.encode.token_table import TokenTable
from citadel.encode.tokenizer import Tokenizer
from citadel.errors import InputError
from citadel.settings import LongDocuments
from citadel.types import Document, Passages

_LETTERS_PER_GROUP = 1 << 18


class TokenGroup(NamedTuple):
    """Some documents and the texts to encode for them: one per document, or one per passage."""

    documents: Sequence[Document]
    texts: TokenTable
    passages: Passages | None
    cut: int  # documents of which only the beginning is read
    split: int


class DocumentTokenizer(Protocol):
    """Interface of `Tokenizer` as used here."""

    def document_table(self, texts: Sequence[str]) -> TokenTable: ...


def token_groups(
    documents: Iterable[Document], tokenizer: Tokenizer, memory: int, long: LongDocuments
) -> Iterator[TokenGroup]:
    """Tokenise group by group; the documents before a bad one are yielded before its error."""
    splitter = PassageSplitter(tokenizer, long)
    for group in groups(documents, _LETTERS_PER_GROUP, LETTERS_TOKENISED if long.mode == "chunk" else None):
        texts = tokenizer.document_table([document.encoded_text for document in group])
        if long.mode == "cut" or not texts.cut.any():
            yield TokenGroup(group, texts, None, int(texts.cut.sum()), 0)
        elif long.mode == "fail":
            first = int(texts.cut.argmax())
            if first:
                yield TokenGroup(group[:first], texts.rows(np.arange(first)), None, 0, 0)
            raise InputError(too_long(group[first].id, tokenizer.window))
        else:
            yield _split(group, texts, tokenizer, splitter, memory)


def _split(
    group: Sequence[Document],
    texts: TokenTable,
    tokenizer: DocumentTokenizer,
    splitter: PassageSplitter,
    memory: int,
) -> TokenGroup:
    """Replace the long texts of a group by their passages."""
    pieces: list[str] = []
    order, spans, starts = list[int](), list[tuple[int, int]](), [0]
    for number, document in enumerate(group):
        own = []
        if texts.cut[number]:
            own = bounded_passages(
                splitter.spans(document.title, document.text), document, memory, splitter.tokens
            )
        if own:
            order += range(len(texts) + len(pieces), len(texts) + len(pieces) + len(own))
            pieces += [splitter.text(document.title, document.text, span) for span in own]
            spans += own
        else:
            order.append(number)
            spans.append((0, len(document.text)))  # short, or a long title without text
        starts.append(len(order))
    whole = TokenTable.joined([texts, tokenizer.document_table(pieces)]) if pieces else texts
    passages = Passages(np.array(starts, np.int64), np.array(spans, np.uint32).reshape(-1, 2))
    cut = sum(bool(texts.cut[n]) and not document.text.strip() for n, document in enumerate(group))
    split = int((passages.counts > 1).sum())
    return TokenGroup(group, whole.rows(np.array(order, np.int64)), passages, cut, split)
