"""Verify an index: opening it checks its structure, a deep check reads every byte and every row."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from citadel.errors import CitadelError, CorruptIndexError, ResourceError
from citadel.filter.columns import ColumnsBuilder
from citadel.index.centroid_book import CentroidBook
from citadel.index.checksum import crc32c
from citadel.index.container import CitFile, FileRecord
from citadel.index.failures import resource_errors
from citadel.index.graph_file import check_graph
from citadel.index.id_table import id_hashes
from citadel.index.join import join_names
from citadel.index.manifest import generations, read_manifest
from citadel.index.mapping import require_whole, whole_files
from citadel.index.merge import Source
from citadel.index.packing import WINDOW
from citadel.index.segment import WHOLE_TEXT, Segment, term_lists
from citadel.index.sharded import ShardedSnapshot, open_newest, shard_of
from citadel.index.snapshot import NOTHING_DELETED, Snapshot
from citadel.index.storage import Storage

_CHUNK = 1 << 16  # postings in memory at a time


def check(storage: Storage, deep: bool = False, progress: Callable[[str], None] = lambda _: None) -> Snapshot:
    """Open the newest generation and return it; raises CorruptIndexError at the first damage.

    `deep` also reads every byte."""
    snapshot = open_newest(storage)
    if deep:
        with resource_errors(storage.location):
            for part in snapshot.parts:
                _read_all(part, progress)
            if isinstance(snapshot, ShardedSnapshot):
                _check_shards(snapshot)
    return snapshot


def _check_shards(snapshot: ShardedSnapshot) -> None:
    """Check that every document is in the shard of its id, and that no position is taken twice."""
    count = len(snapshot.shards)
    for number, shard in enumerate(snapshot.shards):
        shard.order.check()
        if (shard.positions[1:] <= shard.positions[:-1]).any():
            raise shard.order["ORDER"].corrupt("the positions do not ascend")
        for segment in shard.snapshot.segments:
            if (shard_of(segment.file["ID_HASHES"].array("<u8"), count) != number).any():
                raise CorruptIndexError(segment.name, "ID_HASHES", "a document belongs to another shard")
    positions = np.sort(np.concatenate([shard.positions for shard in snapshot.shards]))
    if (positions[1:] == positions[:-1]).any():
        raise CorruptIndexError(snapshot.root.name, "root manifest", "two documents have the same position")


def _read_all(snapshot: Snapshot, progress: Callable[[str], None] = lambda _: None) -> None:
    """Read every byte of a generation and every row of its documents."""
    storage, manifest = snapshot.storage, snapshot.manifest
    for segment in snapshot.segments:
        progress(segment.name)
        with whole_files([segment.file]):
            segment.file.check()
            check_file(storage, segment.record.documents_file)
            check_documents(segment)
            check_columns(segment, storage)
            check_passages(segment)
            check_lists(segment, storage)
            check_tokens(segment, snapshot.centroids)
            check_words(segment, storage)
            check_graph(storage, segment, manifest.index_id)
            _check_deletions(snapshot, segment)
    for record, kind in ((manifest.deletions, "tombstones"), (manifest.codebook, "codebook")):
        if record:
            progress(record.name)
            CitFile(storage, record, kind, manifest.index_id).check()


def check_new_files(snapshot: Snapshot, before: Snapshot) -> None:
    """Read every byte of the segments that are new since `before`, as a server does before it reloads."""
    known = {segment.record for segment in before.segments}
    with resource_errors(snapshot.storage.location):
        for segment in snapshot.segments:
            if segment.record not in known:
                segment.file.check()
                for record in segment.record.needed_files()[1:]:  # without its graph it is scanned
                    check_file(segment.storage, record)


def check_file(storage: Storage, record: FileRecord) -> None:
    """Compare a file's checksum with the manifest's."""
    view = storage.map(record.name)
    if crc32c(view) != record.crc:
        require_whole(view, record.name)
        raise CorruptIndexError(record.name, "file", "its checksum differs from the manifest's")


def check_documents(segment: Segment) -> None:
    """Check every row, and that segment and database have the same ids."""
    for start in range(0, segment.documents, 10_000):
        numbers = range(start, min(start + 10_000, segment.documents))
        ids = segment.ids(numbers)
        if [row[1] for row in segment.store.rows(numbers)] != ids:
            raise CorruptIndexError(segment.name, "ID_BYTES", "its ids differ from the documents'")
        if segment.find(ids, id_hashes(ids)) != dict(zip(ids, numbers, strict=True)):
            raise CorruptIndexError(segment.name, "ID_HASHES", "an id is not found by its hash")


def check_columns(segment: Segment, storage: Storage) -> None:
    """Check the columns file, and that it holds the metadata of the documents."""
    record = segment.record.columns_file
    if record is not None:
        check_file(storage, record)
        segment.columns.check()
    if not segment.record.has_columns:
        return
    builder = ColumnsBuilder()
    for metadata in segment.store.metadata(range(segment.documents)):
        builder.add(metadata)
    if not segment.columns.equals(builder.finish()):
        name = record.name if record else segment.name
        raise CorruptIndexError(name, "COLUMN_DATA", "it differs from the documents' metadata")


def check_passages(segment: Segment) -> None:
    """Check that every passage lies in the text of its document, and that a short one has all of it."""
    if not segment.meta.has_long_documents:
        return
    starts = segment.passage_starts
    spans = segment.file["PASSAGE_SPANS"].array("<u4").reshape(-1, 2).astype(np.int64)
    for number, _, _, text, _, _ in segment.store.rows(range(segment.documents)):
        own = spans[starts[number] : starts[number + 1]]
        is_whole = len(own) == 1 and own[0].tolist() == WHOLE_TEXT[0].tolist()
        if not is_whole and not (len(own) > 1 and (own[:, 0] < own[:, 1]).all() and own.max() <= len(text)):
            raise CorruptIndexError(segment.name, "PASSAGE_SPANS", f"a passage of document {number} is wrong")


def check_lists(segment: Segment, storage: Storage) -> None:
    """Check that keys ascend, and so do the document numbers of every list."""
    if segment.meta.kind == "none":
        return
    for _ in join_names([segment]):
        pass  # reading checks that keys ascend
    source = Source(segment, NOTHING_DELETED, 0, storage)
    last = (-1, -1)  # list and document of the previous posting
    for piece in source.pieces(0, segment.lists, _CHUNK):
        lists, numbers = piece.lists.astype(np.int64), piece.documents()
        if segment.meta.kind == "bm25":
            piece.counts()
        falls = (np.diff(numbers, prepend=last[1]) < 0) & (np.diff(lists, prepend=last[0]) == 0)
        if falls.any():
            raise CorruptIndexError(segment.name, "PACKED_DOCUMENTS", "the document numbers of a list fall")
        if len(lists):
            last = int(lists[-1]), int(numbers[-1])


def check_tokens(segment: Segment, book: CentroidBook | None) -> None:
    """Check that the tokens' centroids exist and that the lists hold the passages of their tokens."""
    if segment.meta.kind != "centroid":
        return
    starts, keys = segment.token_starts, segment.keys
    if book is not None and len(keys) and int(keys[-1]) >= len(book):
        raise CorruptIndexError(segment.name, "KEYS", f"centroid {keys[-1]} does not exist")
    lengths = np.zeros(len(keys), np.int64)
    for start in range(0, segment.passages, _CHUNK):
        stop = min(start + _CHUNK, segment.passages)
        own = starts[start : stop + 1]
        centroids = segment.token_centroids(int(own[0]), int(own[-1])).astype(np.int64)
        pairs = np.unique(np.repeat(np.arange(stop - start), np.diff(own)) << 32 | centroids)
        lists = np.searchsorted(keys, pairs & 0xFFFFFFFF)
        if not np.isin(pairs & 0xFFFFFFFF, keys).all():
            raise CorruptIndexError(segment.name, "TOKEN_CENTROIDS", "a token has a centroid without a list")
        lengths += np.bincount(lists, minlength=len(keys))
    if not np.array_equal(lengths, np.diff(segment.list_starts)):
        raise CorruptIndexError(segment.name, "LIST_STARTS", "the lists differ from the tokens' centroids")


def check_words(segment: Segment, storage: Storage) -> None:
    """Read every byte of the BM25 lists beside a model's, and check them."""
    words = segment.words
    if words is None:
        return
    with whole_files([words.file]):
        words.file.check()
        check_lists(words, storage)
        if int(words.lengths.sum(dtype=np.int64)) != words.record.total_length:
            raise CorruptIndexError(words.name, "LENGTHS", "its sum differs from the manifest's")


def _check_deletions(snapshot: Snapshot, segment: Segment) -> None:
    """Check that the deletions subtract the terms and tokens of the deleted documents (bm25)."""
    deleted, record = snapshot.deleted(segment), snapshot.manifest.deletions
    lists = term_lists(segment)
    if lists is None or record is None or not len(deleted.documents):
        return
    segment = lists
    if int(segment.lengths[deleted.documents].sum(dtype=np.int64)) != deleted.removed_length:
        raise CorruptIndexError(
            record.name, "REMOVED_LENGTHS", "it differs from the deleted documents' lengths"
        )
    source = Source(segment, deleted, 0, snapshot.storage)
    for first in range(0, segment.lists, WINDOW):
        stop = min(first + WINDOW, segment.lists)
        counts = np.diff(source.starts[first : stop + 1]) - source.live_lengths(first, stop, _CHUNK)
        ranks = np.flatnonzero(counts)
        part = slice(*np.searchsorted(deleted.term_ranks, np.array([first, stop], np.uint32)).tolist())
        same = np.array_equal(ranks + first, deleted.term_ranks[part])
        if not same or not np.array_equal(counts[ranks], deleted.term_counts[part]):
            raise CorruptIndexError(
                record.name, "TERM_COUNTS", "it differs from the deleted documents' terms"
            )


def whole_generations(storage: Storage) -> list[int]:
    """The generations that pass a deep check, oldest first."""
    return [number for number in generations(storage) if is_whole(storage, number)]


def is_whole(storage: Storage, number: int) -> bool:
    """Whether a generation passes a deep check."""
    try:
        with resource_errors(storage.location):  # a failing disk is not a damaged generation
            _read_all(Snapshot(storage, read_manifest(storage, number)))
    except ResourceError:
        raise
    except (CitadelError, OSError):
        return False
    return True
