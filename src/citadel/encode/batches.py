"""Documents of text, through a model, as batches the index can take."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np

from citadel.encode.tokenizer import Encoding, Tokenizer
from citadel.errors import InputError
from citadel.types import Document, RoutedTokens, VectorBatch

DOCUMENTS_PER_GROUP = 256  # encoded together, sorted by length
_LETTERS_PER_GROUP = 1 << 18
_LETTERS_PER_DOCUMENT = 4096  # about what a model reads of one; the rest is cut
_LETTERS_TOKENISED = 1 << 22  # read or not, every letter of a group becomes tokens first
_BYTES_PER_LETTER = (
    1024  # a quarter of a token with five postings of 32 dimensions, twice, and half the bound for others
)


class TextEncoder(Protocol):
    """What this file needs of an Encoder."""

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
    """Encode a stream group by group; the number of documents that were cut is tallied.

    `advance` is called after each encoded batch with its number of documents."""
    for group in groups(documents, max(min(_LETTERS_PER_GROUP, memory // _BYTES_PER_LETTER), 1)):
        texts = encoder.tokenizer.documents([document.encoded_text for document in group])
        routed = encoder.route_documents(texts, advance)
        tally("cut", sum(text.cut for text in texts))
        yield join(group, routed)


def groups(documents: Iterable[Document], letters: int) -> Iterator[list[Document]]:
    """Lists of documents, bounded by number and size; those before a bad document come first, then its error."""
    group: list[Document] = []
    size, whole, refused = 0, 0, list[InputError]()
    for document in _until_refused(documents, refused):
        group.append(document)
        length = len(document.text) + len(document.title)
        size, whole = size + min(length, _LETTERS_PER_DOCUMENT), whole + length
        if len(group) == DOCUMENTS_PER_GROUP or size >= letters or whole >= _LETTERS_TOKENISED:
            yield group
            group, size, whole = [], 0, 0
    if group:
        yield group
    if refused:
        raise refused[0]


def _until_refused(documents: Iterable[Document], refused: list[InputError]) -> Iterator[Document]:
    try:
        yield from documents
    except InputError as error:
        refused.append(error)


def join(documents: Sequence[Document], routed: Sequence[RoutedTokens]) -> VectorBatch:
    """One batch of several texts."""
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
