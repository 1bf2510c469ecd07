"""Encode a stream of documents in batches for the index."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np

from citadel.encode.passages import PassageSplitter
from citadel.encode.tokenizer import Encoding, Tokenizer
from citadel.errors import DocumentTooLargeError, InputError
from citadel.settings import LongDocuments
from citadel.types import Document, Passages, RoutedTokens, VectorBatch

DOCUMENTS_PER_GROUP = 256  # encoded together, sorted by length
_LETTERS_PER_GROUP = 1 << 18
_LETTERS_PER_DOCUMENT = 4096  # about as much as a model reads
LETTERS_TOKENISED = 1 << 22  # per group; tokenisation includes letters that are cut later
# Two copies of a quarter of a token with five postings of 32 dimensions; half the limit is for other uses.
_BYTES_PER_LETTER = 1024
_BYTES_PER_TOKEN = 128  # half a posting of 32 dimensions, as float32 and again in the buffer
CUT = LongDocuments("cut")


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
    long: LongDocuments = CUT,
) -> Iterator[VectorBatch]:
    """Encode a stream group by group; `tally` receives the numbers of documents that were cut or split.

    `advance` is called after each encoded batch with its number of documents.
    """
    reads_all = long.mode == "chunk"
    size = max(min(_LETTERS_PER_GROUP, memory // _BYTES_PER_LETTER), 1)
    splitter = PassageSplitter(encoder.tokenizer, long)
    for group in groups(documents, size, LETTERS_TOKENISED if reads_all else None):
        texts = encoder.tokenizer.documents([document.encoded_text for document in group])
        is_long = [text.cut for text in texts]
        if not any(is_long) or long.mode == "cut":
            yield join(group, encoder.route_documents(texts, advance))
            tally("cut", sum(is_long))
        elif long.mode == "fail":
            first = is_long.index(True)
            if first:
                yield join(group[:first], encoder.route_documents(texts[:first], advance))
            raise InputError(too_long(group[first].id, encoder.tokenizer.window))
        else:
            batch = _encode_passages(group, texts, encoder, splitter, memory, advance)
            yield batch
            assert batch.passages is not None
            tally("split", int((batch.passages.counts > 1).sum()))
            pairs = zip(texts, group, strict=True)
            tally("cut", sum(text.cut and not document.text.strip() for text, document in pairs))


def too_long(id: str, limit: int) -> str:
    """The error for a document that the index does not split."""
    return (
        f"document {id!r} is longer than the {limit} tokens that the model reads: "
        'split it, or create the index with long="chunk"'
    )


def _encode_passages(
    group: Sequence[Document],
    texts: Sequence[Encoding],
    encoder: TextEncoder,
    splitter: PassageSplitter,
    memory: int,
    advance: Callable[[int], Any] | None,
) -> VectorBatch:
    """Encode a group of documents of which some are split into passages."""
    pieces: list[Encoding] = []
    spans: list[tuple[int, int]] = []
    starts = [0]
    for document, text in zip(group, texts, strict=True):
        own = []
        if text.cut:
            own = bounded_passages(
                splitter.spans(document.title, document.text), document, memory, splitter.tokens
            )
        if own:
            spans += own
            pieces += encoder.tokenizer.documents(
                [splitter.text(document.title, document.text, span) for span in own]
            )
        else:
            spans.append((0, len(document.text)))  # short, or a long title without text
            pieces.append(text)
        starts.append(len(pieces))
    share = None if advance is None else _shared(advance, len(group), len(pieces))
    passages = Passages(np.array(starts, np.int64), np.array(spans, np.uint32).reshape(-1, 2))
    return join(group, encoder.route_documents(pieces, share), passages)


def bounded_passages(
    spans: Iterable[tuple[int, int]], document: Document, memory: int, tokens: int
) -> list[tuple[int, int]]:
    """The passages of a document; raises when encoding them would take more than half the memory bound."""
    limit = max(memory // 2 // (_BYTES_PER_TOKEN * tokens), 1)
    kept = list(itertools.islice(spans, limit + 1))
    if len(kept) > limit:
        length = (len(document.text) + len(document.title)) / 1e6
        raise DocumentTooLargeError(
            f"document {document.id!r} of {length:.1f} million characters is too large for "
            f"{memory / 1e6:.0f} MB of memory: raise the bound (--memory), or split the document"
        )
    return kept


def _shared(advance: Callable[[int], Any], documents: int, passages: int) -> Callable[[int], Any]:
    """Report documents in proportion to the passages that are encoded."""
    done = 0

    def share(number: int) -> None:
        nonlocal done
        before, done = done * documents // passages, done + number
        advance(done * documents // passages - before)

    return share


def groups(
    documents: Iterable[Document], letters: int, per_document: int | None = None
) -> Iterator[list[Document]]:
    """Group documents by number and size; the documents before a bad one are yielded before its error.

    At most `per_document` letters of a document count, by default about as many as a model reads.
    """
    most = _LETTERS_PER_DOCUMENT if per_document is None else per_document
    group: list[Document] = []
    size, whole, errors = 0, 0, list[InputError]()
    for document in _until_error(documents, errors):
        group.append(document)
        length = len(document.text) + len(document.title)
        size, whole = size + min(length, most), whole + length
        if len(group) == DOCUMENTS_PER_GROUP or size >= letters or whole >= LETTERS_TOKENISED:
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


def join(
    documents: Sequence[Document], routed: Sequence[RoutedTokens], passages: Passages | None = None
) -> VectorBatch:
    """Join several texts into one batch; `passages` says which belong to one document."""
    vectors = [text.vectors for text in routed if text.vectors is not None]
    semantic = [text.semantic for text in routed if text.semantic is not None]
    return VectorBatch(
        documents,
        np.concatenate([[0], np.cumsum([len(text) for text in routed])]).astype(np.int64),
        np.concatenate([text.keys for text in routed]),
        np.concatenate([text.weights for text in routed]),
        np.concatenate(vectors) if vectors else None,
        np.stack(semantic) if semantic else None,
        passages,
    )
