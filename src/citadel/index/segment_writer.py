"""Write a segment, from the write buffer or from a merge, one section after the other."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from functools import partial
from typing import Any, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from citadel.index.background import Background
from citadel.index.centroids import PROBE_FLOOR, Probe, build_probe
from citadel.index.columns_file import DocumentsDraft
from citadel.index.container import CitWriter, FileRecord
from citadel.index.documents import Row, database_draft
from citadel.index.growable import Spool
from citadel.index.manifest import SegmentRecord, WordsRecord
from citadel.index.packing import POSTINGS_PER_BLOCK, WINDOW, blocks_of, windows
from citadel.index.segment import Meta
from citadel.index.storage import Storage
from citadel.types import Floats

_PADDING = bytes(8)  # lets a decoder load eight bytes at any offset
Hashes = NDArray[np.uint64]
_SORTED_IDS = 1 << 17  # id hashes sorted at a time
_ID_SECTIONS = ("ID_OFFSETS", "ID_BYTES", "ID_HASHES", "ID_NUMBERS")


class Contents(Protocol):
    """The contents of a segment. Rows come in chunks; only a chunk of a single list ends inside it."""

    meta: Meta
    keys: NDArray[np.uint32]  # [K]; not read for bm25
    list_lengths: NDArray[np.int64]  # [K]

    def ids(self) -> Iterator[tuple[list[bytes], NDArray[np.uint64]]]: ...
    def passage_counts(self) -> Iterator[NDArray[np.uint32]]:
        """Passages per document, in chunks."""
        ...

    def passage_spans(self) -> Iterator[NDArray[np.uint32]]:
        """First character and end of each passage in its document's text [r, 2], in chunks."""
        ...

    def terms(self) -> tuple[NDArray[np.uint32], Iterable[NDArray[Any] | bytes]]:
        """Bytes per term [K], and the bytes of all terms in chunks (bm25)."""
        ...

    def lengths(self) -> Iterator[NDArray[np.uint32]]:
        """Tokens per document, in chunks (bm25)."""
        ...

    def rows(self, name: str) -> Iterator[tuple[NDArray[np.uint32], NDArray[Any]]]:
        """Chunks of a section: (list of each posting [p], ascending, its value [p, …])."""
        ...

    def semantic(self, name: str) -> Iterator[NDArray[Any]]: ...
    def semantic_vectors(self, start: int, stop: int) -> Floats: ...


class TokenContents(Contents, Protocol):
    """Contents of a centroid segment."""

    def token_counts(self) -> Iterator[NDArray[np.uint32]]:
        """Tokens per passage, in chunks."""
        ...

    def tokens(self, name: str) -> Iterator[NDArray[Any]]:
        """Chunks of a section with one row per token, in token order."""
        ...


class StoredContents(Contents, Protocol):
    """Contents of a segment with a document database."""

    @property
    def total_length(self) -> int: ...
    def document_rows(self) -> Iterator[Row]: ...
    def words(self) -> StoredContents | None:
        """The BM25 lists of the same documents; None for an index without them."""
        ...


BuildProbe = Callable[[Callable[[int, int], Floats], int], Probe]


def write_segment(
    storage: Storage,
    index_id: str,
    file_id: str,
    contents: Contents,
    probe: BuildProbe = build_probe,
    kind: str = "segment",
    background: Background | None = None,
) -> FileRecord:
    """Write all sections of a segment, of `words` all but ids; `probe` builds the probe structure.

    An error of work in the background ends it before the next section.
    """
    names = section_names(contents.meta, contents.meta.passages >= PROBE_FLOOR)
    build: Callable[[], Probe] = partial(probe, contents.semantic_vectors, contents.meta.passages)
    if background is not None and "PROBE_STARTS" in names:
        build = background.start(build)
    sections = len(names) - (len(_ID_SECTIONS) if kind == "words" else 0)
    check = None if background is None else background.check
    writer = CitWriter(storage, kind, index_id, file_id, sections, check)
    try:
        writer.section("META", json.dumps(_stored(contents.meta)).encode())
        if kind == "segment":
            _write_ids(writer, contents, storage)
        if contents.meta.has_long_documents:
            writer.stream("PASSAGE_STARTS", _starts(contents.passage_counts()))
            writer.stream("PASSAGE_SPANS", contents.passage_spans())
        if contents.meta.kind != "none":
            _write_lists(writer, contents, storage)
        if contents.meta.kind == "centroid":
            _write_tokens(writer, cast(TokenContents, contents))
        if contents.meta.semantic_dimension:
            _write_semantic(writer, contents, build)
        return writer.finish()
    except BaseException:
        writer.file.abandon()
        raise


def write_contents(
    storage: Storage, index_id: str, contents: StoredContents, threads: int = 1
) -> SegmentRecord:
    """Write a segment and its document database under a new id.

    With several threads, the database and the probe structure are built while the lists are written; the
    order of durable changes is the same.
    """
    file_id = uuid.uuid4().hex
    with database_draft(storage) as path, Background(threads) as background:
        rows = background.stoppable(contents.document_rows())
        draft = DocumentsDraft(path, index_id, file_id, rows)
        built = background.start(draft.build)
        file = write_segment(storage, index_id, file_id, contents, background=background)
        words = _write_words(storage, index_id, file_id, contents, background)
        built()
        documents, columns = draft.write(storage)
    counts = (contents.meta.documents, contents.meta.postings, contents.total_length)
    return SegmentRecord(file, documents, *counts, columns, has_columns=True, words=words)


def _write_words(
    storage: Storage, index_id: str, file_id: str, contents: StoredContents, background: Background
) -> WordsRecord | None:
    words = contents.words()
    if words is None:
        return None
    file = write_segment(storage, index_id, file_id, words, kind="words", background=background)
    return WordsRecord(file, words.meta.postings, words.total_length)


def section_names(meta: Meta, probe: bool = False) -> list[str]:
    """The sections of a segment of this kind."""
    names = ["META", *_ID_SECTIONS]
    names += ["PASSAGE_STARTS", "PASSAGE_SPANS"] if meta.has_long_documents else []
    if meta.kind != "none":
        names += ["LIST_STARTS", "BLOCK_STARTS", "PACKED_DOCUMENTS", "BLOCK_DOCUMENTS", "BLOCK_OFFSETS"]
        names += row_names(meta)
    if meta.kind == "centroid":
        names += ["TOKEN_STARTS", *token_names(meta)]
    if meta.semantic_dimension:
        names += ["SEMANTIC_CODES"] + (["SEMANTIC_SCALES"] if meta.semantic_codec == "int8" else [])
        names += ["PROBE_CENTROIDS", "PROBE_STARTS", "PROBE_DOCUMENTS"] if probe else []
    return names


def row_names(meta: Meta) -> list[str]:
    """The sections with one row per posting, and those that name the lists."""
    if meta.kind == "bm25":
        return ["TERM_OFFSETS", "TERM_BYTES", "LENGTHS", "PACKED_COUNTS", "COUNT_OFFSETS"]
    if meta.kind == "sparse":
        return ["KEYS", "VALUES"]
    if meta.kind == "centroid":
        return ["KEYS"]
    weights = ["WEIGHTS"] if meta.weight_step else []
    return ["KEYS", *weights, "CODES"] + (["SCALES"] if meta.codec == "int8" else [])


def token_names(meta: Meta) -> list[str]:
    """The sections with one row per token, in token order (centroid)."""
    return ["TOKEN_CENTROIDS", "CODES", "SCALES"] if meta.has_centroids else ["CODES", "SCALES"]


def _stored(meta: Meta) -> dict[str, Any]:
    return {name: value for name, value in asdict(meta).items() if name != "has_centroids"}


def _write_ids(writer: CitWriter, contents: Contents, storage: Storage) -> None:
    lengths, hashes, numbers = Spool(storage, "<u4"), Spool(storage, "<u8"), Spool(storage, "<u4")

    def octets() -> Iterator[bytes]:
        for ids, hashed in contents.ids():
            lengths.append(np.fromiter(map(len, ids), np.uint32, len(ids)))
            hashes.append(hashed)
            yield b"".join(ids)

    writer.stream("ID_BYTES", octets())
    writer.stream("ID_OFFSETS", _starts(windows(lengths.values())))
    writer.stream("ID_HASHES", _sorted_hashes(hashes.values(), numbers))
    writer.section("ID_NUMBERS", numbers.values())


def _sorted_hashes(hashes: Hashes, numbers: Spool, limit: int = _SORTED_IDS) -> Iterator[Hashes]:
    """Yield sorted hashes, about `limit` at a time, and append their document numbers to `numbers`."""
    bits = (len(hashes) // limit).bit_length()  # hashes are uniform, so groups by leading bits are too
    for group in range(1 << bits):
        documents = _documents_of(hashes, bits, group)
        own = hashes[documents]
        order = np.argsort(own, kind="stable")
        numbers.append(documents[order])
        yield own[order].astype("<u8", copy=False)


def _documents_of(hashes: Hashes, bits: int, group: int) -> NDArray[np.int64]:
    """The documents, ascending, whose hashes start with the bits of `group`."""
    if not bits:
        return np.arange(len(hashes))
    shift, wanted = np.uint64(64 - bits), np.uint64(group)
    parts = zip(range(0, len(hashes), WINDOW), windows(hashes), strict=True)
    return np.concatenate([start + np.flatnonzero(part >> shift == wanted) for start, part in parts])


def _starts(lengths: Iterable[NDArray[Any]]) -> Iterator[NDArray[np.int64]]:
    """0, then the running sum of lengths that come in parts."""
    total = 0
    yield np.zeros(1, "<i8")
    for part in lengths:
        if len(part):
            ends = total + np.cumsum(part, dtype="<i8")
            total = int(ends[-1])
            yield ends


def _write_lists(writer: CitWriter, contents: Contents, storage: Storage) -> None:
    from citadel._native import pack, pack_counts

    lengths = contents.list_lengths
    writer.stream("LIST_STARTS", _starts(windows(lengths)))
    writer.stream("BLOCK_STARTS", _starts(np.asarray(blocks_of(part)) for part in windows(lengths)))
    packer = ListPacker(pack, storage)
    writer.stream("PACKED_DOCUMENTS", packer.stream(contents.rows("DOCUMENTS")))
    writer.section("BLOCK_DOCUMENTS", packer.firsts())
    writer.section("BLOCK_OFFSETS", packer.offsets())
    if contents.meta.kind == "bm25":
        _write_terms(writer, contents)
        counter = ListPacker(lambda values, starts: (None, *pack_counts(values, starts)), storage)
        writer.stream("PACKED_COUNTS", counter.stream(contents.rows("COUNTS")))
        writer.section("COUNT_OFFSETS", counter.offsets())
        return
    writer.section("KEYS", contents.keys)
    for name in row_names(contents.meta)[1:]:
        writer.stream(name, (values for _, values in contents.rows(name)))


def _write_tokens(writer: CitWriter, contents: TokenContents) -> None:
    writer.stream("TOKEN_STARTS", _starts(contents.token_counts()))
    for name in token_names(contents.meta):
        writer.stream(name, contents.tokens(name))


def _write_terms(writer: CitWriter, contents: Contents) -> None:
    lengths, octets = contents.terms()
    writer.stream("TERM_OFFSETS", _starts(windows(lengths)))
    writer.stream("TERM_BYTES", octets)
    writer.stream("LENGTHS", (part.astype("<u4", copy=False) for part in contents.lengths()))


def _write_semantic(writer: CitWriter, contents: Contents, build: Callable[[], Probe]) -> None:
    writer.stream("SEMANTIC_CODES", contents.semantic("SEMANTIC_CODES"))
    if contents.meta.semantic_codec == "int8":
        writer.stream("SEMANTIC_SCALES", contents.semantic("SEMANTIC_SCALES"))
    if contents.meta.passages >= PROBE_FLOOR:
        probe = build()
        writer.section("PROBE_CENTROIDS", probe.centroids)
        writer.section("PROBE_STARTS", probe.starts)
        writer.section("PROBE_DOCUMENTS", probe.documents)


Pack = Callable[
    [NDArray[np.uint32], NDArray[np.uint64]],
    tuple[NDArray[np.uint32] | None, NDArray[np.uint64], NDArray[np.uint8]],
]


class ListPacker:
    """Packs lists that come in chunks; an incomplete block of the last list waits for the next."""

    def __init__(self, pack: Pack, storage: Storage) -> None:
        self._pack = pack
        self._firsts, self._offsets = Spool(storage, "<u4"), Spool(storage, "<u8")
        self._length = 0
        self._waiting = (np.zeros(0, np.uint32), np.zeros(0, np.uint32))

    def stream(self, rows: Iterable[tuple[NDArray[np.uint32], NDArray[Any]]]) -> Iterator[bytes]:
        """The packed bytes of (lists, values) chunks."""
        for lists, values in rows:
            yield from self._add(lists, values.astype(np.uint32, copy=False))
        yield from self._emit(*self._waiting)
        yield _PADDING

    def _add(self, lists: NDArray[np.uint32], values: NDArray[np.uint32]) -> Iterator[bytes]:
        if len(self._waiting[0]):
            lists, values = (
                np.concatenate([self._waiting[0], lists]),
                np.concatenate([self._waiting[1], values]),
            )
        if not len(lists):
            return
        open_from = int(np.searchsorted(lists, lists[-1]))  # the last list may continue in the next chunk
        whole = open_from + (len(lists) - open_from) // POSTINGS_PER_BLOCK * POSTINGS_PER_BLOCK
        self._waiting = (lists[whole:], values[whole:])
        yield from self._emit(lists[:whole], values[:whole])

    def _emit(self, lists: NDArray[np.uint32], values: NDArray[np.uint32]) -> Iterator[bytes]:
        if not len(lists):
            return
        borders = np.flatnonzero(np.diff(lists)) + 1
        starts = np.concatenate([[0], borders, [len(lists)]]).astype(np.uint64)
        firsts, offsets, packed = self._pack(np.ascontiguousarray(values), starts)
        if firsts is not None:
            self._firsts.append(firsts)
        self._offsets.append(offsets[:-1] + np.uint64(self._length))
        size = int(offsets[-1])  # the rest is padding
        self._length += size
        yield packed[:size].tobytes()

    def firsts(self) -> NDArray[np.uint32]:
        """The first document of each block."""
        return self._firsts.values()

    def offsets(self) -> NDArray[np.uint64]:
        """The start of each block, and the end of the last."""
        self._offsets.append(np.array([self._length], np.uint64))
        return self._offsets.values()
