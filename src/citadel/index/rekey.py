"""Give the tokens of a segment new centroids: its lists change, so it is written anew, in parts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citadel.index.centroid_book import AnyCodebook, CentroidBook
from citadel.index.documents import Row, renumbered
from citadel.index.id_table import id_hashes
from citadel.index.merge import MergedContents
from citadel.index.packing import is_first_of_pair, ranges
from citadel.index.quantize import Encoded, decode
from citadel.index.segment import WHOLE_TEXT, Segment
from citadel.index.segment_writer import StoredContents
from citadel.index.storage import Storage
from citadel.index.tombstones import Deleted
from citadel.types import Floats, Keys

_COPIES = 8  # divisor of the memory bound: vectors, residuals and buckets of the tokens are alive at once
_ROWS = 1 << 15  # tokens decoded at a time


def rekeyed(
    segment: Segment,
    deleted: Deleted,
    book: CentroidBook,
    old_book: AnyCodebook | None,
    memory: int,
    storage: Storage,
) -> Iterator[RekeyedContents]:
    """The live documents of a segment under the centroids of `book`, in parts within the memory bound."""
    live = np.flatnonzero(deleted.alive(segment.documents))
    ends = segment.token_starts[segment.passage_starts[1:]]  # tokens up to each document
    limit = max(memory // (_COPIES * 4 * max(segment.meta.dimension, 1)), 1)
    parts = np.searchsorted(np.arange(limit, segment.tokens + limit, limit), ends[live])
    for part in np.unique(parts):
        chosen = live[parts == part]
        yield RekeyedContents(segment, chosen, book, old_book, words_of(segment, chosen, memory, storage))


def words_of(
    segment: Segment, documents: NDArray[np.int64], memory: int, storage: Storage
) -> MergedContents | None:
    """The BM25 lists of some documents of a segment; None without such lists."""
    if segment.words is None:
        return None
    is_other = np.ones(segment.documents, bool)
    is_other[documents] = False
    others = Deleted(np.flatnonzero(is_other).astype(np.uint32))
    return MergedContents([segment.words], [others], "int8", None, None, memory, storage)


def _parts_of(encoded: Encoded) -> tuple[NDArray[Any], NDArray[Any]]:
    assert encoded.scales is not None
    return encoded.codes, encoded.scales


class RekeyedContents:
    """Some documents of a segment, with new centroids (see `segment_writer.Contents`)."""

    def __init__(
        self,
        segment: Segment,
        documents: NDArray[np.int64],
        book: CentroidBook,
        old_book: AnyCodebook | None,
        words: StoredContents | None = None,
    ) -> None:
        self._words = words
        self._segment, self._documents, self._book, self._old_book = segment, documents, book, old_book
        starts = segment.passage_starts
        counts = (starts[documents + 1] - starts[documents]).astype(np.int64)
        self._passages = np.repeat(starts[documents], counts) + ranges(counts)  # [r]
        self._counts = counts.astype(np.uint32)
        tokens = segment.token_starts
        sizes = tokens[self._passages + 1] - tokens[self._passages]
        self._sizes = sizes.astype(np.uint32)
        self._tokens = np.repeat(tokens[self._passages], sizes) + ranges(sizes)  # [P]
        self._owners = np.repeat(np.arange(len(self._passages), dtype=np.uint32), sizes)  # [P]
        self._code()
        self.meta = replace(
            segment.meta,
            documents=len(documents),
            passages=len(self._passages),
            postings=int(self.list_lengths.sum()),
            codec=f"residual{book.bits}" if book.bits else "int8",
            has_centroids=True,
        )

    def _code(self) -> None:
        keys, coded = [], []
        for start in range(0, max(len(self._tokens), 1), _ROWS):
            encoded, old_keys = self._stored(start, min(start + _ROWS, len(self._tokens)))
            vectors = decode(encoded, old_keys, self._old_book)
            keys.append(self._book.nearest(vectors))
            coded.append(self._book.encode(vectors, keys[-1]) if self._book.bits else _parts_of(encoded))
        self._columns = {
            "TOKEN_CENTROIDS": np.concatenate(keys).astype("<u2"),
            "CODES": np.concatenate([codes for codes, _ in coded]),
            "SCALES": np.concatenate([scales for _, scales in coded]),
        }
        centroids = np.concatenate(keys)
        order = np.argsort(centroids, kind="stable")
        self._order = order[is_first_of_pair(centroids[order], self._owners[order])]
        ordered = centroids[self._order]
        starts = np.flatnonzero(np.diff(ordered, prepend=~ordered[:1]))
        self.keys, self.list_lengths = ordered[starts], np.diff(starts, append=len(ordered))

    def _stored(self, start: int, stop: int) -> tuple[Encoded, Keys]:
        """Some of the chosen tokens as they are stored, and their old centroids."""
        rows = self._tokens[start:stop]
        first, last = (int(rows[0]), int(rows[-1]) + 1) if len(rows) else (0, 0)
        encoded = self._segment.encoded(first, last)[rows - first]
        return encoded, self._segment.token_centroids(first, last)[rows - first]

    def ids(self) -> Iterator[tuple[list[bytes], NDArray[np.uint64]]]:
        ids = self._segment.ids(self._documents.tolist())
        yield [id.encode() for id in ids], id_hashes(ids)

    def document_rows(self) -> Iterator[Row]:
        """The rows of the document database."""
        for new, row in enumerate(self._segment.store.rows(self._documents.tolist())):
            yield renumbered(row, new)

    @property
    def total_length(self) -> int:
        return 0

    def words(self) -> StoredContents | None:
        """The BM25 lists of the same documents."""
        return self._words

    def passage_counts(self) -> Iterator[NDArray[np.uint32]]:
        yield self._counts

    def passage_spans(self) -> Iterator[NDArray[np.uint32]]:
        if self._segment.meta.has_long_documents:
            yield self._segment.file["PASSAGE_SPANS"].array("<u4").reshape(-1, 2)[self._passages]
        else:
            yield np.tile(WHOLE_TEXT, (len(self._passages), 1))

    def terms(self) -> tuple[NDArray[np.uint32], Iterable[NDArray[Any]]]:
        return np.zeros(0, np.uint32), []

    def lengths(self) -> Iterator[NDArray[np.uint32]]:
        yield from ()

    def rows(self, name: str) -> Iterator[tuple[NDArray[np.uint32], NDArray[Any]]]:
        lists = np.repeat(np.arange(len(self.keys), dtype=np.uint32), self.list_lengths)
        if name == "DOCUMENTS":
            yield lists, self._owners[self._order]

    def token_counts(self) -> Iterator[NDArray[np.uint32]]:
        yield self._sizes

    def tokens(self, name: str) -> Iterator[NDArray[Any]]:
        yield self._columns[name]

    def semantic(self, name: str) -> Iterator[NDArray[Any]]:
        yield from ()

    def semantic_vectors(self, start: int, stop: int) -> Floats:
        raise AssertionError("a centroid segment has no semantic vectors")
