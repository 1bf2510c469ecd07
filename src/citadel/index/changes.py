"""The documents of one `add` call, kept apart until the call succeeds."""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from citadel.errors import InputError
from citadel.index.buffer import Buffer
from citadel.index.deletion import NumberSet
from citadel.index.document_limits import metadata_json
from citadel.index.segment import Segment
from citadel.text.analyser import Analyser
from citadel.text.parse import check_document, make_document
from citadel.types import Document, VectorBatch

_TERM_BYTES = 64  # per term in a list of strings
_DOCUMENT_BYTES = 400  # per document besides its text
_LONG_TEXT = 1 << 16  # characters; a longer text is analysed in windows, straight into a buffer


class AnalysedDocument:
    """A document of a bm25 index with its terms; a long text is analysed later, by the buffer."""

    def __init__(self, document: Document, analyser: Analyser) -> None:
        self.document, self._analyser = document, analyser
        self.is_long = len(document.text) + len(document.title) > _LONG_TEXT
        self.terms: list[str] = [] if self.is_long else analyser.terms(document.encoded_text)

    def windows(self) -> Iterable[Sequence[str]]:
        """All terms, in lists of bounded length."""
        return self._analyser.windows(self.document.encoded_text) if self.is_long else [self.terms]


Item = AnalysedDocument | VectorBatch


def is_long(item: Item) -> bool:
    """Whether an item must go straight into a buffer."""
    return isinstance(item, AnalysedDocument) and item.is_long


def add_item(buffer: Buffer, item: Item) -> int:
    """Add documents to a buffer and return how many replaced a buffered one."""
    if isinstance(item, AnalysedDocument):
        return int(buffer.add_terms(item.document, item.windows()))
    return buffer.add_batch(item)


def check_item(buffer: Buffer, item: Item) -> None:
    """Raise InputError for an item that a buffer could not store."""
    if isinstance(item, AnalysedDocument):
        metadata_json(item.document)
    else:
        buffer.check(item)


def item_bytes(item: Item) -> int:
    """Memory that an item takes."""
    documents = [item.document] if isinstance(item, AnalysedDocument) else item.documents
    size = sum(
        _DOCUMENT_BYTES + sys.getsizeof(document.text) + sys.getsizeof(document.title)
        for document in documents
    )
    if isinstance(item, AnalysedDocument):
        return size + _TERM_BYTES * len(item.terms)
    arrays = (item.keys, item.weights, item.vectors, item.semantic)
    return size + sum(array.nbytes for array in arrays if array is not None)


class ChangeSet:
    """What one call has added so far: items, or a buffer and spilled segments once there are many."""

    def __init__(self) -> None:
        self.thread = threading.get_ident()
        self.clear()

    def clear(self) -> None:
        """Drop everything; the caller removes spilled files."""
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
        """Whether it consists of items only."""
        return self.buffer is None and not self.segments

    def append(self, item: Item) -> None:
        """Append a checked item."""
        self.items.append(item)
        self.item_bytes += item_bytes(item)

    def use_buffer(self, new: Callable[[], Buffer]) -> Buffer:
        """The buffer of this call; its first use moves the items into it."""
        if self.buffer is None:
            self.buffer = new()
            for item in self.items:
                self.counts["replaced"] += add_item(self.buffer, item)
            self.items, self.item_bytes = [], 0
        return self.buffer


def count_documents(documents: Iterable[Document], advance: Callable[[int], Any]) -> Iterator[Document]:
    """Count a document when the next one is requested: by then it is indexed."""
    for document in documents:
        yield document
        advance(1)


def check_added(item: Document | Mapping[str, Any], new_id: Callable[[], str]) -> Document:
    """Validate a document passed to `Index.add`; one without an id gets a new one."""
    if isinstance(item, Document):
        return check_document(item)
    if not isinstance(item, Mapping):
        raise InputError(f"a document is a Document or a dict with id and text, not {type(item).__name__}")
    return make_document(item, new_id)
