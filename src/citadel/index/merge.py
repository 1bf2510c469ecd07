"""Merging segments: lists are joined key by key, deleted documents left out, in memory bounded by one chunk."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citadel.index.codebook import Codebook
from citadel.index.documents import Row, renumbered
from citadel.index.packing import POSTINGS_A_BLOCK, block_sizes, list_groups
from citadel.index.quantize import Encoded, decode, encode
from citadel.index.segment import Segment, id_hashes
from citadel.index.tombstones import Deleted
from citadel.types import Floats

CHUNK = 1 << 18  # postings in memory at a time, fewer where the bound or their width asks for it
_COPIES = 16  # a merge's share of the bound in rows: some five copies of a chunk are alive together
FAN_IN = 6  # segments of one tier that become one of the next
_GARBAGE = 0.3  # share of deleted documents from which a segment is rewritten


@dataclass(frozen=True)
class Piece:
    """Postings start … stop − 1 of a segment: some whole lists, or some whole blocks of one list."""

    source: Source
    start: int
    stop: int
    block: int  # the first of its blocks
    sizes: NDArray[np.int64]  # and how many postings each of them has
    lists: NDArray[np.uint32]  # [p], ascending, numbers in the merged segment

    def documents(self) -> NDArray[np.int64]:
        """The document numbers of the postings, in their segment [p]."""
        return self.source.segment.block_documents(self.block, self.block + len(self.sizes), self.sizes)

    def counts(self) -> NDArray[np.int64]:
        """The term counts of the postings (bm25) [p]."""
        return self.source.segment.block_counts(self.block, self.block + len(self.sizes), self.sizes)

    def kept(self) -> NDArray[np.bool_] | slice:
        """Which postings belong to documents that are still there."""
        return slice(None) if self.source.alive is None else self.source.alive[self.documents()]


class Source:
    """One segment on its way into a merge."""

    def __init__(self, segment: Segment, deleted: Deleted, base: int) -> None:
        self.segment, self.base = segment, base
        self.alive = deleted.alive(segment.documents) if len(deleted.documents) else None
        self.live = segment.documents - len(deleted.documents)
        self.starts = segment.list_starts if segment.meta.kind != "none" else np.zeros(1, np.int64)
        self.removed_length = deleted.removed_length
        self.new_lists = np.zeros(0, np.uint32)  # [lists]: where each list goes, ascending
        self._renumber = None if self.alive is None else np.cumsum(self.alive, dtype=np.uint32) - np.uint32(1)

    def new_numbers(self, documents: NDArray[np.int64]) -> NDArray[np.int64]:
        """Document numbers in the merged segment."""
        return documents + self.base if self._renumber is None else self._renumber[documents] + np.int64(self.base)

    def live_lengths(self) -> NDArray[np.int64]:
        """Postings of each list whose documents are still there [lists]."""
        lengths = np.diff(self.starts)
        if self.alive is None:
            return lengths
        counts = np.zeros(len(lengths), np.int64)
        for piece in self.pieces(np.arange(len(lengths), dtype=np.uint32)):
            own = piece.lists[piece.kept()]
            if len(own):
                counts[own[0] : own[-1] + 1] += np.bincount(own - own[0])
        return counts

    def pieces(self, lists: NDArray[np.uint32], chunk: int = CHUNK) -> Iterator[Piece]:
        """All postings in pieces of about `chunk`; `lists` is the number that each list shall have."""
        lengths = np.diff(self.starts)
        for first, stop in list_groups(lengths, chunk):
            if lengths[first] > chunk:
                yield from _parts(self, first, stop, int(lists[first]), chunk)
            else:
                yield _whole(self, first, stop, lists)

    def live_numbers(self) -> NDArray[np.int64]:
        return np.arange(self.segment.documents) if self.alive is None else np.flatnonzero(self.alive)


class MergedContents:
    """Several segments as the contents of one (see `lists.Contents`)."""

    def __init__(
        self,
        segments: Sequence[Segment],
        deleted: Sequence[Deleted],
        codec: str,
        codebook: Codebook | None,
        old_codebook: Codebook | None,
        memory: int,
    ) -> None:
        live = [segment.documents - len(gone.documents) for segment, gone in zip(segments, deleted, strict=True)]
        bases = [0, *itertools.accumulate(live)]
        self.sources = [Source(*parts) for parts in zip(segments, deleted, bases, strict=False)]
        self._codebook, self._old_codebook = codebook, old_codebook
        self._terms: list[bytes] = []
        meta = segments[0].meta
        width = max(meta.dimension * 4, meta.semantic_dimension * 4) + 32  # bytes a row may have while it is coded anew
        rows = min(CHUNK, max(memory // (_COPIES * width), 8 * POSTINGS_A_BLOCK))
        self._chunk = rows // POSTINGS_A_BLOCK * POSTINGS_A_BLOCK
        self.keys, self.list_lengths = (
            (np.zeros(0, np.uint32), np.zeros(0, np.int64)) if meta.kind == "none" else self._join_lists()
        )
        self.meta = replace(
            meta,
            documents=bases[-1],
            postings=int(self.list_lengths.sum()),
            codec=codec if meta.kind == "vectors" else meta.codec,
        )

    def _join_lists(self) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
        """Give every list that keeps a posting its place; those that lose all, the place of the next one."""
        bm25 = self.sources[0].segment.meta.kind == "bm25"
        names: list[Any] = [source.segment.terms if bm25 else source.segment.keys for source in self.sources]
        union: Any = sorted(set[bytes]().union(*names)) if bm25 else np.unique(np.concatenate(names))
        places = {term: place for place, term in enumerate(union)} if bm25 else {}
        total = np.zeros(len(union), np.int64)
        for source, own in zip(self.sources, names, strict=True):
            where = [places[term] for term in own] if bm25 else np.searchsorted(union, own)
            source.new_lists = np.array(where, np.int64).astype(np.uint32)
            total[source.new_lists] += source.live_lengths()
        kept = total > 0
        renumber: NDArray[np.uint32] = (np.cumsum(kept, dtype=np.int64) - kept).astype(np.uint32)
        for source in self.sources:
            source.new_lists = renumber[source.new_lists]
        if bm25:
            self._terms = [term for term, keep in zip(union, kept.tolist(), strict=True) if keep]
            return np.arange(len(self._terms), dtype=np.uint32), total[kept]
        return union[kept].astype(np.uint32), total[kept]

    # -- documents ---------------------------------------------------------------------------------------------------

    def ids(self) -> Iterator[tuple[list[bytes], NDArray[np.uint64]]]:
        for source in self.sources:
            numbers = source.live_numbers()
            for start in range(0, len(numbers), 10_000):
                ids = source.segment.ids(numbers[start : start + 10_000].tolist())
                yield [id.encode() for id in ids], id_hashes(ids)

    def document_rows(self) -> Iterator[Row]:
        """The rows of the merged documents' database."""
        new = itertools.count()
        for source in self.sources:
            numbers = source.live_numbers()
            for start in range(0, len(numbers), 10_000):
                for row in source.segment.store.rows(numbers[start : start + 10_000].tolist()):
                    yield renumbered(row, next(new))

    def terms(self) -> Sequence[bytes]:
        return self._terms

    def lengths(self) -> NDArray[np.uint32]:
        return np.concatenate([source.segment.lengths[source.live_numbers()] for source in self.sources])

    @property
    def total_length(self) -> int:
        """Tokens of all documents (bm25)."""
        return int(self.lengths().sum()) if self.meta.kind == "bm25" else 0

    # -- lists -------------------------------------------------------------------------------------------------------

    def rows(self, name: str) -> Iterator[tuple[NDArray[np.uint32], NDArray[Any]]]:
        from citadel._native import sort_by_key

        for pieces in self._chunks():
            kept = [piece.kept() for piece in pieces]
            lists = np.concatenate([piece.lists[rows] for piece, rows in zip(pieces, kept, strict=True)])
            values = np.concatenate([self._values(piece, name)[rows] for piece, rows in zip(pieces, kept, strict=True)])
            order = sort_by_key(np.ascontiguousarray(lists)) if len(pieces) > 1 else slice(None)
            yield lists[order], values[order]

    def _values(self, piece: Piece, name: str) -> NDArray[Any]:
        segment = piece.source.segment
        if name == "DOCUMENTS":
            return piece.source.new_numbers(piece.documents())
        if name == "COUNTS":
            return piece.counts()
        if name in ("CODES", "SCALES"):
            encoded = self._encoded(piece)
            return encoded.codes if name == "CODES" or encoded.scales is None else encoded.scales
        dtype = np.uint8 if name == "WEIGHTS" else np.float16
        return segment.file[name].array(dtype, piece.start, piece.stop)

    def _encoded(self, piece: Piece) -> Encoded:
        """The coded vectors, in the merged segment's codec."""
        encoded = piece.source.segment.encoded(piece.start, piece.stop)
        if encoded.codec == self.meta.codec and self._codebook is self._old_codebook:
            return encoded
        keys = np.append(self.keys, np.uint32(0))[piece.lists]  # lists that lost all postings have no key
        return encode(self.meta.codec, decode(encoded, keys, self._old_codebook), keys, self._codebook)

    def _chunks(self) -> Iterator[list[Piece]]:
        """Pieces that belong together: the same run of lists from every segment, or one list part by part."""
        lengths = np.zeros(len(self.keys) + 1, np.int64)
        for source in self.sources:
            lengths += np.bincount(source.new_lists, np.diff(source.starts), len(lengths)).astype(np.int64)
        for first, stop in list_groups(lengths[:-1], self._chunk):
            spans = [np.searchsorted(source.new_lists, [first, stop]).tolist() for source in self.sources]
            if lengths[first] > self._chunk:
                for source, (begin, end) in zip(self.sources, spans, strict=True):
                    yield from ([piece] for piece in _parts(source, begin, end, first, self._chunk))
            else:
                zipped = zip(self.sources, spans, strict=True)
                yield [_whole(source, begin, end, source.new_lists) for source, (begin, end) in zipped]

    # -- semantic ----------------------------------------------------------------------------------------------------

    def semantic(self, name: str) -> Iterator[NDArray[Any]]:
        for source in self.sources:
            for start in range(0, source.segment.documents, self._chunk):
                stop = min(start + self._chunk, source.segment.documents)
                encoded = source.segment.semantic(start, stop)
                rows = slice(None) if source.alive is None else source.alive[start:stop]
                yield (
                    encoded.codes[rows] if name == "SEMANTIC_CODES" or encoded.scales is None else encoded.scales[rows]
                )

    def semantic_vectors(self, start: int, stop: int) -> Floats:
        """Vectors of merged documents start … stop − 1."""
        parts = []
        for source in self.sources:
            low, high = max(start - source.base, 0), min(stop - source.base, source.live)
            if low < high:
                numbers = source.live_numbers()[low:high]
                encoded = source.segment.semantic(int(numbers[0]), int(numbers[-1]) + 1)
                parts.append(decode(encoded[numbers - numbers[0]]))
        return np.concatenate(parts)


def _whole(source: Source, first: int, stop: int, numbers: NDArray[np.uint32]) -> Piece:
    """Lists first … stop − 1 of a segment."""
    lengths = np.diff(source.starts[first : stop + 1])
    start, end = source.starts[[first, stop]].tolist()
    lists = np.repeat(numbers[first:stop], lengths)
    return Piece(source, start, end, source.segment.first_block(first), block_sizes(lengths), lists)


def _parts(source: Source, first: int, stop: int, new_list: int, chunk: int) -> Iterator[Piece]:
    """The lists of a segment that go to one merged list, in parts of whole blocks."""
    for own in range(first, stop):
        begin, end = source.starts[own : own + 2].tolist()
        for start in range(begin, end, chunk):
            size = min(chunk, end - start)
            block = source.segment.first_block(own) + (start - begin) // POSTINGS_A_BLOCK
            lists = np.full(size, new_list, np.uint32)
            yield Piece(source, start, start + size, block, block_sizes(np.array([size])), lists)


def choose_merge(sizes: Sequence[int], live: Sequence[int]) -> slice:
    """Which neighbouring segments a commit should merge now; an empty slice when all tiers are in order.

    A tier holds segments of FAN_IN^t … FAN_IN^(t+1) − 1 live documents. Only neighbours are merged, so that documents
    keep their order and equal scores their ranks.

    >>> choose_merge([1] * 6, [1] * 6)
    slice(0, 6, None)
    >>> choose_merge([100, 1, 1], [100, 1, 1])
    slice(0, 0, None)
    >>> choose_merge([9, 100], [9, 60])
    slice(1, 2, None)
    """
    tiers = [_tier(count) for count in live]
    for tier in sorted(set(tiers)):
        run: list[int] = []  # places of this tier with nothing larger between them
        for place, found in enumerate([*tiers, tier + 1]):
            if found == tier:
                run.append(place)
            elif found > tier:
                if len(run) >= FAN_IN:
                    return slice(run[0], run[-1] + 1)
                run = []
    for place, (size, left) in enumerate(zip(sizes, live, strict=True)):
        if size - left > _GARBAGE * size:
            return slice(place, place + 1)
    return slice(0, 0)


def _tier(documents: int) -> int:
    tier = 0
    while documents >= FAN_IN:
        documents //= FAN_IN
        tier += 1
    return tier
