"""The documents of one `add` call, kept apart until the call succeeds: one that fails leaves nothing behind."""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from citadel.index.buffer import Buffer
from citadel.index.deletion import NumberSet
from citadel.index.documents import metadata_json
from citadel.index.segment import Segment
from citadel.text.analyser import Analyser
from citadel.types import Document, VectorBatch

_TERM_BYTES = 64  # a term as a string in a list
_DOCUMENT_BYTES = 400  # what Python keeps around a document besides its text
_LONG_TEXT = 1 << 16  # characters; the terms of a longer text go straight into a buffer, in windows


class AnalysedDocument:
    """A document of a bm25 index with its terms; those of a long text are made when a buffer takes them."""

    def __init__(self, document: Document, analyser: Analyser) -> None:
        self.document, self._analyser = document, analyser
        self.is_long = len(document.text) + len(document.title) > _LONG_TEXT
        self.terms: list[str] = [] if self.is_long else analyser.terms(document.encoded_text)

    def windows(self) -> Iterable[Sequence[str]]:
        """All terms, in lists."""
        return self._analyser.windows(self.document.encoded_text) if self.is_long else [self.terms]


Item = AnalysedDocument | VectorBatch


def is_long(item: Item) -> bool:
    """Whether an item must go straight into a buffer."""
    return isinstance(item, AnalysedDocument) and item.is_long


def add_item(buffer: Buffer, item: Item) -> int:
    """Add documents to a buffer; the number that replaced one already in it."""
    if isinstance(item, AnalysedDocument):
        return int(buffer.add_terms(item.document, item.windows()))
    return buffer.add_batch(item)


def check_item(buffer: Buffer, item: Item) -> None:
    """Refuse with InputError what a buffer could not store."""
    if isinstance(item, AnalysedDocument):
        metadata_json(item.document)
    else:
        buffer.check(item)


def item_bytes(item: Item) -> int:
    """Bytes that an item takes while it is kept."""
    documents = [item.document] if isinstance(item, AnalysedDocument) else item.documents
    size = sum(_DOCUMENT_BYTES + sys.getsizeof(document.text) + sys.getsizeof(document.title) for document in documents)
    if isinstance(item, AnalysedDocument):
        return size + _TERM_BYTES * len(item.terms)
    arrays = (item.keys, item.weights, item.vectors, item.semantic)
    return size + sum(array.nbytes for array in arrays if array is not None)


class ChangeSet:
    """What one call has added so far: items as they came, or a buffer and spilled segments once they are many."""

    def __init__(self) -> None:
        self.thread = threading.get_ident()
        self.clear()

    def clear(self) -> None:
        """Forget everything; spilled files are the caller's to remove."""
        self.items: list[Item] = []
        self.item_bytes = 0
        self.buffer: Buffer | None = None
        self.segments: list[Segment] = []
        self.gone: dict[str, NumberSet] = {}  # replaced within this call, by segment
        self.counts: Counter[str] = Counter()

    @property
    def bytes(self) -> int:
        return self.item_bytes + (0 if self.buffer is None else self.buffer.bytes)

    @property
    def is_small(self) -> bool:
        """Whether it still consists of items alone."""
        return self.buffer is None and not self.segments

    def append(self, item: Item) -> None:
        """Keep an item that was checked."""
        self.items.append(item)
        self.item_bytes += item_bytes(item)

    def use_buffer(self, new: Callable[[], Buffer]) -> Buffer:
        """The buffer of this call, made at its first use from the items so far."""
        if self.buffer is None:
            self.buffer = new()
            for item in self.items:
                self.counts["replaced"] += add_item(self.buffer, item)
            self.items, self.item_bytes = [], 0
        return self.buffer
