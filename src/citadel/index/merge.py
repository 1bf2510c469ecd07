"""Merge segments list by list, without deleted documents, one chunk in memory at a time."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citadel.index.centroid_book import AnyCodebook
from citadel.index.documents import Row, renumbered
from citadel.index.growable import Spool
from citadel.index.id_table import id_hashes
from citadel.index.join import NAMES_PER_WINDOW, Names, join_names
from citadel.index.packing import POSTINGS_PER_BLOCK, WINDOW, block_sizes, list_groups
from citadel.index.quantize import Encoded, decode, encode
from citadel.index.segment import WHOLE_TEXT, Segment, deleted_passages
from citadel.index.segment_writer import StoredContents
from citadel.index.storage import Storage
from citadel.index.tombstones import Deleted
from citadel.types import Floats

CHUNK = 1 << 18  # postings in memory at a time; fewer under a small bound or with wide vectors
_COPIES = 16  # divisor of the memory bound: about five copies of a chunk are alive at once
_NAME_BYTES = 1600  # of memory per list name in a window: eight copies and two table entries
_SPOOLED = (  # sections that a merge also keeps in anonymous files
    *("LIST_STARTS", "TERM_OFFSETS", "TERM_BYTES", "KEYS"),
    *("BLOCK_DOCUMENTS", "BLOCK_OFFSETS", "ID_HASHES"),
)
_MANIFEST_BYTES = 1 << 16  # upper estimate of all other files
_DOCUMENTS = 10_000  # ids in memory at a time
FAN_IN = 6  # segments of a tier that are merged into one of the next
_GARBAGE = 0.3  # share of deleted documents above which a segment is rewritten


@dataclass(frozen=True)
class Piece:
    """Postings start … stop − 1 of a segment: whole lists, or whole blocks of one list."""

    source: Source
    start: int
    stop: int
    block: int  # first block
    sizes: NDArray[np.int64]  # postings per block
    lists: NDArray[np.uint32]  # [p], ascending; list numbers in the merged segment

    def documents(self) -> NDArray[np.int64]:
        """The passage numbers of the postings, in their segment [p]."""
        return self.source.segment.block_documents(self.block, self.block + len(self.sizes), self.sizes)

    def counts(self) -> NDArray[np.int64]:
        """The term counts of the postings (bm25) [p]."""
        return self.source.segment.block_counts(self.block, self.block + len(self.sizes), self.sizes)

    def kept(self) -> NDArray[np.bool_] | slice:
        """Which postings belong to live documents."""
        alive = self.source.passages.alive
        return slice(None) if alive is None else alive[self.documents()]


class Numbering:
    """The documents or passages of an input segment, and the numbers of the live ones in the merged one."""

    def __init__(self, count: int, deleted: NDArray[np.uint32], base: int, storage: Storage) -> None:
        self.count, self.base, self.live = count, base, count - len(deleted)
        self.alive: NDArray[np.bool_] | None = None  # [count]; None: all
        self._ranks: NDArray[np.uint32] | None = None  # [count]: live ones up to and including each
        if len(deleted):
            self._rank(deleted, storage)

    def _rank(self, deleted: NDArray[np.uint32], storage: Storage) -> None:
        alive, ranks, live = Spool(storage, np.bool_), Spool(storage, np.uint32), 0
        for start in range(0, self.count, WINDOW):
            stop = min(start + WINDOW, self.count)
            own = slice(*np.searchsorted(deleted, np.array([start, stop], np.uint32)).tolist())
            mask = np.ones(stop - start, np.bool_)
            mask[deleted[own] - np.uint32(start)] = False
            alive.append(mask)
            ranks.append(live + np.cumsum(mask))
            live += int(mask.sum())
        self.alive, self._ranks = alive.values(), ranks.values()

    def new_numbers(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """Numbers in the merged segment."""
        if self._ranks is None:
            return numbers + self.base
        return self._ranks[numbers] + np.int64(self.base - 1)

    def live_numbers(self, size: int = WINDOW) -> Iterator[NDArray[np.int64]]:
        """The numbers of the live ones, in parts of at most `size`."""
        for start in range(0, self.count, size):
            numbers = np.arange(start, min(start + size, self.count))
            yield numbers if self.alive is None else numbers[self.alive[start : start + size]]

    def live_between(self, first: int, stop: int) -> NDArray[np.int64]:
        """The numbers of the first-th … (stop − 1)-th live ones."""
        if self.alive is None or self._ranks is None:
            return np.arange(first, stop)
        begin, end = np.searchsorted(self._ranks, np.array([first + 1, stop], np.uint32)).tolist()
        numbers: NDArray[np.int64] = begin + np.flatnonzero(self.alive[begin : end + 1])
        return numbers


class Source:
    """An input segment of a merge; `base` and `passage_base` are its first numbers in the merged segment."""

    def __init__(
        self, segment: Segment, deleted: Deleted, base: int, storage: Storage, passage_base: int | None = None
    ) -> None:
        self.segment, gone = segment, deleted.documents
        self.starts = segment.list_starts if segment.meta.kind != "none" else np.zeros(1, np.int64)
        self.new_lists = np.zeros(0, np.uint32)  # [lists]: number in the merged segment, ascending
        self.documents = self.passages = Numbering(segment.documents, gone, base, storage)
        if segment.meta.has_long_documents or passage_base not in (None, base):
            first = base if passage_base is None else passage_base
            self.passages = Numbering(segment.passages, deleted_passages(segment, gone), first, storage)

    def live_lengths(self, first: int, stop: int, chunk: int) -> NDArray[np.int64]:
        """Postings of live documents in each of the lists first … stop − 1."""
        if self.passages.alive is None:
            return np.diff(self.starts[first : stop + 1])
        counts = np.zeros(stop - first, np.int64)
        for piece in self.pieces(first, stop, chunk):
            own = piece.lists[piece.kept()] - np.uint32(first)
            if len(own):
                counts[own[0] : own[-1] + 1] += np.bincount(own - own[0])
        return counts

    def pieces(self, first: int, stop: int, chunk: int = CHUNK) -> Iterator[Piece]:
        """Lists first … stop − 1, not renumbered, in pieces of about `chunk` postings."""
        for start in range(first, stop, WINDOW):
            lengths = np.diff(self.starts[start : min(start + WINDOW, stop) + 1])
            for begin, end in list_groups(lengths, chunk):
                own = start + begin
                if lengths[begin] > chunk:
                    yield from _parts(self, own, start + end, own, chunk)
                else:
                    yield _whole(self, own, start + end, np.arange(own, start + end, dtype=np.uint32))


class MergedContents:
    """Several segments as the contents of one (see `segment_writer.Contents`)."""

    def __init__(
        self,
        segments: Sequence[Segment],
        deleted: Sequence[Deleted],
        codec: str,
        codebook: AnyCodebook | None,
        old_codebook: AnyCodebook | None,
        memory: int,
        storage: Storage,
        words: StoredContents | None = None,
    ) -> None:
        """Merge segments; `words` are BM25 lists that take the place of theirs."""
        self._inputs, self._words, self._limits = (segments, deleted), words, (memory, storage)
        self.sources: list[Source] = []
        base = passage_base = 0
        for segment, gone in zip(segments, deleted, strict=True):
            source = Source(segment, gone, base, storage, passage_base)
            base, passage_base = base + source.documents.live, passage_base + source.passages.live
            self.sources.append(source)
        self._codebook, self._old_codebook = codebook, old_codebook
        meta = segments[0].meta
        width = max(meta.dimension * 4, meta.semantic_dimension * 4) + 32  # bytes per row while re-encoding
        rows = min(CHUNK, max(memory // (_COPIES * width), 8 * POSTINGS_PER_BLOCK))
        self._chunk = rows // POSTINGS_PER_BLOCK * POSTINGS_PER_BLOCK
        names = memory // (_NAME_BYTES * len(segments))
        self._join_lists(storage, min(max(names, 256), NAMES_PER_WINDOW))
        self.meta = replace(
            meta,
            documents=base,
            passages=passage_base,
            postings=int(self.list_lengths.sum()),
            codec=codec if meta.kind in ("vectors", "centroid") else meta.codec,
        )

    def _join_lists(self, storage: Storage, window: int) -> None:
        """Number the non-empty lists; a list that becomes empty gets the number of the next one."""
        segments = [source.segment for source in self.sources if source.segment.meta.kind != "none"]
        lengths, new_lists = Spool(storage, np.int64), [Spool(storage, np.uint32) for _ in segments]
        names, count = _NameSpool(storage), 0
        for union, parts in join_names(segments, window):
            total = np.zeros(len(union), np.int64)
            for source, part in zip(self.sources, parts, strict=True):
                total[part.positions] += source.live_lengths(part.first, part.stop, self._chunk)
            kept = total > 0
            numbers = count + np.cumsum(kept) - kept
            for spool, part in zip(new_lists, parts, strict=True):
                spool.append(numbers[part.positions])
            lengths.append(total[kept])
            names.append(union, kept)
            count += int(kept.sum())
        for source, spool in zip(self.sources, new_lists, strict=False):
            source.new_lists = spool.values()
        self.list_lengths, self.keys, self._names = lengths.values(), names.keys.values(), names

    def words(self) -> StoredContents | None:
        """The BM25 lists of the same documents."""
        own = [segment.words for segment in self._inputs[0] if segment.words]
        if self._words is not None or not own:
            return self._words
        return MergedContents(own, self._inputs[1], "int8", None, None, *self._limits)

    # -- documents

    def ids(self) -> Iterator[tuple[list[bytes], NDArray[np.uint64]]]:
        for source in self.sources:
            for numbers in source.documents.live_numbers(_DOCUMENTS):
                ids = source.segment.ids(numbers.tolist())
                yield [id.encode() for id in ids], id_hashes(ids)

    def document_rows(self) -> Iterator[Row]:
        """The rows of the merged document database."""
        new = itertools.count()
        for source in self.sources:
            for numbers in source.documents.live_numbers(_DOCUMENTS):
                for row in source.segment.store.rows(numbers.tolist()):
                    yield renumbered(row, next(new))

    def passage_counts(self) -> Iterator[NDArray[np.uint32]]:
        for source in self.sources:
            for numbers in source.documents.live_numbers():
                starts = source.segment.passage_starts
                yield (starts[numbers + 1] - starts[numbers]).astype(np.uint32)

    def passage_spans(self) -> Iterator[NDArray[np.uint32]]:
        for source in self.sources:
            if source.segment.meta.has_long_documents:
                spans = source.segment.file["PASSAGE_SPANS"]
                for numbers in source.passages.live_numbers():
                    if len(numbers):
                        first, stop = int(numbers[0]), int(numbers[-1]) + 1
                        own = spans.array("<u4", 2 * first, 2 * stop).reshape(-1, 2)
                        yield own[numbers - first]
            else:
                for numbers in source.documents.live_numbers():
                    yield np.tile(WHOLE_TEXT, (len(numbers), 1))

    def terms(self) -> tuple[NDArray[np.uint32], Iterable[NDArray[Any]]]:
        return self._names.lengths.values(), [self._names.octets.values()]

    def lengths(self) -> Iterator[NDArray[np.uint32]]:
        for source in self.sources:
            for numbers in source.documents.live_numbers():
                yield source.segment.lengths[numbers]

    @property
    def total_length(self) -> int:
        """Tokens of all documents (bm25)."""
        return sum(int(part.sum()) for part in self.lengths()) if self.meta.kind == "bm25" else 0

    # -- lists

    def rows(self, name: str) -> Iterator[tuple[NDArray[np.uint32], NDArray[Any]]]:
        from citadel._native import sort_by_key

        for pieces in self._chunks():
            kept = [piece.kept() for piece in pieces]
            lists = np.concatenate([piece.lists[rows] for piece, rows in zip(pieces, kept, strict=True)])
            values = np.concatenate(
                [self._values(piece, name)[rows] for piece, rows in zip(pieces, kept, strict=True)]
            )
            if len(pieces) > 1:
                order = sort_by_key(np.ascontiguousarray(lists))
                lists, values = np.take(lists, order), np.take(values, order, axis=0)
            yield lists, values

    def _values(self, piece: Piece, name: str) -> NDArray[Any]:
        segment = piece.source.segment
        if name == "DOCUMENTS":
            return piece.source.passages.new_numbers(piece.documents())
        if name == "COUNTS":
            return piece.counts()
        if name in ("CODES", "SCALES"):
            encoded = self._encoded(piece)
            return encoded.codes if name == "CODES" or encoded.scales is None else encoded.scales
        dtype = np.uint8 if name == "WEIGHTS" else np.float16
        return segment.file[name].array(dtype, piece.start, piece.stop)

    def _encoded(self, piece: Piece) -> Encoded:
        """The encoded vectors, in the merged segment's codec."""
        encoded = piece.source.segment.encoded(piece.start, piece.stop)
        if encoded.codec == self.meta.codec and self._codebook is self._old_codebook:
            return encoded
        lists = np.minimum(piece.lists, len(self.keys) - 1)  # lists that became empty may have no key
        keys = self.keys[lists]
        return encode(self.meta.codec, decode(encoded, keys, self._old_codebook), keys, self._codebook)

    def _chunks(self) -> Iterator[list[Piece]]:
        """Yield pieces to merge together: a run of lists from every segment, or parts of one list."""
        for first in range(0, len(self.list_lengths), WINDOW):
            stop = min(first + WINDOW, len(self.list_lengths))
            lengths = np.zeros(stop - first, np.int64)
            for source, (begin, end) in zip(self.sources, self._spans(first, stop), strict=True):
                own = source.new_lists[begin:end] - np.uint32(first)
                sizes = np.diff(source.starts[begin : end + 1])
                lengths += np.bincount(own, sizes, stop - first).astype(np.int64)
            for begin, end in list_groups(lengths, self._chunk):
                yield from self._pieces(first + begin, first + end, lengths[begin] > self._chunk)

    def _spans(self, first: int, stop: int) -> list[tuple[int, int]]:
        """The lists of each segment that go to the merged lists first … stop − 1."""
        bounds = np.array([first, stop], np.uint32)  # same type as new_lists, or numpy would convert those
        return [tuple(np.searchsorted(source.new_lists, bounds).tolist()) for source in self.sources]

    def _pieces(self, first: int, stop: int, by_part: bool) -> Iterator[list[Piece]]:
        spans = zip(self.sources, self._spans(first, stop), strict=True)
        if by_part:
            for source, (begin, end) in spans:
                yield from ([piece] for piece in _parts(source, begin, end, first, self._chunk))
        else:
            yield [_whole(source, begin, end, source.new_lists[begin:end]) for source, (begin, end) in spans]

    # -- tokens

    def token_counts(self) -> Iterator[NDArray[np.uint32]]:
        for source in self.sources:
            for numbers in source.passages.live_numbers():
                starts = source.segment.token_starts
                yield (starts[numbers + 1] - starts[numbers]).astype(np.uint32)

    def tokens(self, name: str) -> Iterator[NDArray[Any]]:
        for source in self.sources:
            for rows, kept in self._token_parts(source):
                yield _token_rows(source.segment, name, rows.start, rows.stop)[kept]

    def _token_parts(self, source: Source) -> Iterator[tuple[range, NDArray[np.bool_] | slice]]:
        """The tokens of a segment in chunks, and which of them belong to live passages."""
        total, starts, alive = source.segment.tokens, source.segment.token_starts, source.passages.alive
        for start in range(0, total, self._chunk):
            rows = range(start, min(start + self._chunk, total))
            if alive is None:
                yield rows, slice(None)
            else:
                owners = np.searchsorted(starts, np.arange(rows.start, rows.stop), side="right") - 1
                yield rows, alive[owners]

    # -- semantic

    def semantic(self, name: str) -> Iterator[NDArray[Any]]:
        for source in self.sources:
            alive = source.passages.alive
            for start in range(0, source.segment.passages, self._chunk):
                stop = min(start + self._chunk, source.segment.passages)
                encoded = source.segment.semantic(start, stop)
                rows = slice(None) if alive is None else alive[start:stop]
                yield (
                    encoded.codes[rows]
                    if name == "SEMANTIC_CODES" or encoded.scales is None
                    else encoded.scales[rows]
                )

    def semantic_vectors(self, start: int, stop: int) -> Floats:
        """Vectors of merged passages start … stop − 1."""
        parts = []
        for source in self.sources:
            own = source.passages
            low, high = max(start - own.base, 0), min(stop - own.base, own.live)
            if low < high:
                numbers = own.live_between(low, high)
                encoded = source.segment.semantic(int(numbers[0]), int(numbers[-1]) + 1)
                parts.append(decode(encoded[numbers - numbers[0]]))
        return np.concatenate(parts)


def _token_rows(segment: Segment, name: str, start: int, stop: int) -> NDArray[Any]:
    if name == "TOKEN_CENTROIDS":
        return segment.token_centroids(start, stop).astype("<u2")
    encoded = segment.encoded(start, stop)
    return encoded.codes if name == "CODES" or encoded.scales is None else encoded.scales


class _NameSpool:
    """The names of merged lists: keys, or for bm25 terms as lengths and bytes."""

    def __init__(self, storage: Storage) -> None:
        self.keys, self.lengths = Spool(storage, np.uint32), Spool(storage, np.uint32)
        self.octets = Spool(storage, np.uint8)

    def append(self, names: Names, kept: NDArray[np.bool_]) -> None:
        if isinstance(names, np.ndarray):
            self.keys.append(names[kept])
            return
        terms = list(itertools.compress(names, kept.tolist()))
        self.lengths.append(np.fromiter(map(len, terms), np.uint32, len(terms)))
        self.octets.append(np.frombuffer(b"".join(terms), np.uint8))


def _whole(source: Source, first: int, stop: int, numbers: NDArray[np.uint32]) -> Piece:
    """Lists first … stop − 1 of a segment, renumbered to `numbers` [stop − first]."""
    lengths = np.diff(source.starts[first : stop + 1])
    start, end = source.starts[[first, stop]].tolist()
    lists = np.repeat(numbers, lengths)
    return Piece(source, start, end, source.segment.first_block(first), block_sizes(lengths), lists)


def _parts(source: Source, first: int, stop: int, new_list: int, chunk: int) -> Iterator[Piece]:
    """The lists of a segment that become one merged list, in parts of whole blocks."""
    for own in range(first, stop):
        begin, end = source.starts[own : own + 2].tolist()
        for start in range(begin, end, chunk):
            size = min(chunk, end - start)
            block = source.segment.first_block(own) + (start - begin) // POSTINGS_PER_BLOCK
            lists = np.full(size, new_list, np.uint32)
            yield Piece(source, start, start + size, block, block_sizes(np.array([size])), lists)


def merge_space(segments: Sequence[Segment], deleted: Sequence[Deleted]) -> int:
    """Estimate the disk space that a merge needs until the old files are removed.

    This is the new segment, its documents twice (the database is built in a scratch folder, then copied)
    and the arrays that a merge keeps in anonymous files; deleted documents do not count.
    """
    needed = _MANIFEST_BYTES
    for segment, gone in zip(segments, deleted, strict=True):
        share = 1 - len(gone.documents) / max(segment.documents, 1)
        spooled = sum(len(segment.file[name].data) for name in _SPOOLED if name in segment.file)
        lists, documents = segment.record.file.length, segment.record.documents_file.length
        if segment.words:
            lists += segment.words.record.file.length
        needed += math.ceil(share * (lists + 2 * documents + spooled))
    return needed


def choose_merge(sizes: Sequence[int], live: Sequence[int]) -> slice:
    """Choose the adjacent segments to merge after a commit; an empty slice for none.

    A tier holds segments of FAN_IN^t … FAN_IN^(t+1) − 1 live documents. Only adjacent segments are merged, so
    that documents keep their order and ties their ranks.

    >>> choose_merge([1] * 6, [1] * 6)
    slice(0, 6, None)
    >>> choose_merge([100, 1, 1], [100, 1, 1])
    slice(0, 0, None)
    >>> choose_merge([9, 100], [9, 60])
    slice(1, 2, None)
    """
    tiers = [_tier(count) for count in live]
    for tier in sorted(set(tiers)):
        run: list[int] = []  # positions of this tier without a larger segment in between
        for position, current in enumerate([*tiers, tier + 1]):
            if current == tier:
                run.append(position)
            elif current > tier:
                if len(run) >= FAN_IN:
                    return slice(run[0], run[-1] + 1)
                run = []
    for position, (size, left) in enumerate(zip(sizes, live, strict=True)):
        if size - left > _GARBAGE * size:
            return slice(position, position + 1)
    return slice(0, 0)


def _tier(documents: int) -> int:
    tier = 0
    while documents >= FAN_IN:
        documents //= FAN_IN
        tier += 1
    return tier
