"""Encode a stream of documents in batches for the index."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np

from citadel.encode.tokenizer import Encoding, Tokenizer
from citadel.errors import InputError
from citadel.types import Document, RoutedTokens, VectorBatch

DOCUMENTS_PER_GROUP = 256  # encoded together, sorted by length
_LETTERS_PER_GROUP = 1 << 18
_LETTERS_PER_DOCUMENT = 4096  # about as much as a model reads
_LETTERS_TOKENISED = 1 << 22  # per group; tokenisation includes letters that are cut later
# Two copies of a quarter of a token with five postings of 32 dimensions; half the limit is for other uses.
_BYTES_PER_LETTER = 1024


class TextEncoder(Protocol):
    """Interface of `Encoder` as used here."""

    @property
    def tokenizer(self) -> Tokenizer: ...

    def route_documents(
        self, texts: Sequence[Encoding], advance: Callable[[int], Any] | None = None
    ) -> list[RoutedTokens]: ...


def encoded_batches(
    documents: Iterable[Document],
    encoder: TextEncoder,
    memory: int,
    tally: Callable[[str, int], None],
    advance: Callable[[int], Any] | None = None,
) -> Iterator[VectorBatch]:
    """Encode a stream group by group; `tally` receives the number of truncated documents.

    `advance` is called after each encoded batch with its number of documents.
    """
    for group in groups(documents, max(min(_LETTERS_PER_GROUP, memory // _BYTES_PER_LETTER), 1)):
        texts = encoder.tokenizer.documents([document.encoded_text for document in group])
        routed = encoder.route_documents(texts, advance)
        tally("cut", sum(text.cut for text in texts))
        yield join(group, routed)


def groups(documents: Iterable[Document], letters: int) -> Iterator[list[Document]]:
    """Group documents by number and size; the documents before a bad one are yielded before its error."""
    group: list[Document] = []
    size, whole, errors = 0, 0, list[InputError]()
    for document in _until_error(documents, errors):
        group.append(document)
        length = len(document.text) + len(document.title)
        size, whole = size + min(length, _LETTERS_PER_DOCUMENT), whole + length
        if len(group) == DOCUMENTS_PER_GROUP or size >= letters or whole >= _LETTERS_TOKENISED:
            yield group
            group, size, whole = [], 0, 0
    if group:
        yield group
    if errors:
        raise errors[0]


def _until_error(documents: Iterable[Document], errors: list[InputError]) -> Iterator[Document]:
    try:
        yield from documents
    except InputError as error:
        errors.append(error)


def join(documents: Sequence[Document], routed: Sequence[RoutedTokens]) -> VectorBatch:
    """Join several texts into one batch."""
    vectors = [text.vectors for text in routed if text.vectors is not None]
    semantic = [text.semantic for text in routed if text.semantic is not None]
    return VectorBatch(
        documents,
        np.concatenate([[0], np.cumsum([len(text) for text in routed])]).astype(np.int64),
        np.concatenate([text.keys for text in routed]),
        np.concatenate([text.weights for text in routed]),
        np.concatenate(vectors) if vectors else None,
        np.stack(semantic) if semantic else None,
    )
