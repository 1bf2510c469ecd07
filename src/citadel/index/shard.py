"""Split an index into a sharded index: documents go to shards by the hash of their id."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from citadel.errors import InputError, ResourceError, UsageError
from citadel.index.centroid_book import AnyCodebook, write_book
from citadel.index.container import CitWriter, FileRecord
from citadel.index.failures import resource_errors
from citadel.index.folder_lock import LOCK
from citadel.index.id_table import id_hashes
from citadel.index.manifest import Manifest, SegmentRecord, generations, write_manifest
from citadel.index.merge import MergedContents, merge_space
from citadel.index.root_manifest import (
    MAX_SHARDS,
    PREFIX,
    SHARD_PREFIX,
    RootManifest,
    ShardRecord,
    read_root,
    root_generations,
    write_root,
)
from citadel.index.segment import Segment
from citadel.index.segment_writer import write_contents
from citadel.index.sharded import ShardedSnapshot, shard_of
from citadel.index.snapshot import Snapshot
from citadel.index.storage import TEMPORARY, Storage
from citadel.index.tombstones import Deleted
from citadel.index.writer import Writer
from citadel.settings import DEFAULT_MEMORY, GRAPH_FLOOR, Settings
from citadel.text.parse import shorten

Owners = dict[str, NDArray[np.int16]]  # by segment: the shard of each document, -1 for a deleted one
_IDS = 10_000  # in memory at a time
_KEPT = 2  # generations


def shard_index(
    source: Snapshot,
    target: Storage,
    shards: int,
    *,
    memory: int = DEFAULT_MEMORY,
    overwrite: bool = False,
    graph: bool | None = None,
    progress: Callable[[int], object] = lambda done: None,
) -> RootManifest:
    """Write an index as a sharded index of `shards` shards into another folder.

    Vectors, weights and codebook are copied, so scores stay the same to the last bit. `graph` builds graphs
    for large shards; by default if the index has graphs. `progress` is called with the number of documents
    written.
    """
    _check(source, target, shards, overwrite)
    with resource_errors(target.location):
        target.make()
        lock = target.lock()
        try:
            collect_shards(target)  # left by a run that died
            _require_space(source, target)
            root = _write(source, target, shards, memory, graph, progress)
            lock.check()
            write_root(target, root)
            collect_shards(target)
        finally:
            lock.release()
    return root


def _check(source: Snapshot, target: Storage, shards: int, overwrite: bool) -> None:
    if isinstance(shards, bool) or not isinstance(shards, int) or not 1 <= shards <= MAX_SHARDS:
        raise UsageError(f"an index is split into 1 to {MAX_SHARDS} shards, not {shards!r}")
    if isinstance(source, ShardedSnapshot):
        raise UsageError(f"{source.storage.location}: the index is sharded already; split the original")
    refuse_foreign(target)
    if root_generations(target) and not overwrite:
        raise UsageError(
            f"{target.location}: there is a sharded index already; name another folder, or pass --overwrite"
        )


def refuse_foreign(target: Storage) -> None:
    """Raise InputError when a folder holds something other than a sharded index."""
    names = target.names()
    own = (PREFIX, SHARD_PREFIX, ".")
    foreign = [name for name in names if not name.startswith(own) and name != LOCK]
    if foreign:
        what = "an index" if generations(target) else shorten(foreign[0])
        raise InputError(f"the folder holds {what}: name a new or an empty folder", target.location)


def _require_space(source: Snapshot, target: Storage) -> None:
    needed = merge_space(source.segments, [source.deleted(segment) for segment in source.segments])
    free = target.free_space()
    if free is not None and free < needed:
        raise ResourceError(
            f"{target.location}: the shards need up to {needed / 1e6:,.1f} MB of disk space, "
            f"{free / 1e6:,.1f} MB are free; make room"
        )


def _write(
    source: Snapshot,
    target: Storage,
    shards: int,
    memory: int,
    graph: bool | None,
    progress: Callable[[int], object],
) -> RootManifest:
    """Write all shards and make them durable."""
    builds_graphs = any(segment.record.graph_file for segment in source.segments) if graph is None else graph
    with source.whole():
        owners = {segment.file_id: _owners(source, segment, shards) for segment in source.segments}
        records = []
        for number in range(shards):
            records.append(_write_shard(source, target, owners, number, memory, builds_graphs))
            progress(records[-1].documents)
    target.sync()
    numbers = root_generations(target)
    generation = (numbers[-1] if numbers else 0) + 1
    counts = dict(source.manifest.counts)
    return RootManifest(uuid.uuid4().hex, generation, source.settings, tuple(records), counts)


def _owners(source: Snapshot, segment: Segment, shards: int) -> NDArray[np.int16]:
    owners = np.empty(segment.documents, np.int16)
    for start in range(0, segment.documents, _IDS):
        numbers = range(start, min(start + _IDS, segment.documents))
        owners[start : numbers.stop] = shard_of(id_hashes(segment.ids(numbers)), shards)
    owners[source.deleted(segment).documents] = -1
    return owners


def _write_shard(
    source: Snapshot, target: Storage, owners: Owners, number: int, memory: int, builds_graphs: bool
) -> ShardRecord:
    name, index_id = f"{SHARD_PREFIX}{uuid.uuid4().hex}", uuid.uuid4().hex
    storage = target.inside(name)
    storage.make()
    segments = tuple(_segments(source, storage, index_id, owners, number, memory))
    positions = _positions(source, owners, number)
    generation, order = publish_shard(
        storage, index_id, source.settings, segments, source.book, positions, memory, builds_graphs
    )
    documents = sum(segment.documents for segment in segments)
    return ShardRecord(name, index_id, generation, documents, order)


def publish_shard(
    storage: Storage,
    index_id: str,
    settings: Settings,
    segments: tuple[SegmentRecord, ...],
    codebook: AnyCodebook | None,
    positions: Iterator[NDArray[np.uint64]] | Sequence[NDArray[np.uint64]],
    memory: int,
    builds_graphs: bool,
) -> tuple[int, FileRecord]:
    """Write codebook, order and manifest of a shard and its graphs; return its generation and order file."""
    book = None if codebook is None else write_book(storage, index_id, uuid.uuid4().hex, codebook)
    order = write_order(storage, index_id, positions)
    storage.sync()  # file names must be durable before a manifest refers to them
    write_manifest(storage, Manifest(index_id, 1, settings, segments, codebook=book))
    if not builds_graphs:
        return 1, order
    writer = Writer(storage, memory)
    writer.optimize(GRAPH_FLOOR)
    return writer.snapshot.manifest.generation, order


def _segments(
    source: Snapshot, storage: Storage, index_id: str, owners: Owners, number: int, memory: int
) -> Iterator[SegmentRecord]:
    """Write the documents of a shard: one segment for adjacent segments of one codec, so codes are copied."""
    for codec, group in itertools.groupby(source.segments, lambda segment: segment.meta.codec):
        segments = list(group)
        others = [owners[segment.file_id] != number for segment in segments]
        if not all(mask.all() for mask in others):
            gone = [Deleted(np.flatnonzero(mask).astype(np.uint32)) for mask in others]
            books = (source.book, source.book)
            yield write_contents(
                storage, index_id, MergedContents(segments, gone, codec, *books, memory, storage)
            )


def _positions(source: Snapshot, owners: Owners, number: int) -> Iterator[NDArray[np.uint64]]:
    for segment, base in zip(source.segments, source.bases[:-1].tolist(), strict=True):
        yield (base + np.flatnonzero(owners[segment.file_id] == number)).astype("<u8")


def write_order(
    storage: Storage, index_id: str, positions: Iterator[NDArray[np.uint64]] | Sequence[NDArray[np.uint64]]
) -> FileRecord:
    """Write the positions of a shard's documents in the collection, ascending."""
    writer = CitWriter(storage, "order", index_id, uuid.uuid4().hex, sections=1)
    writer.stream("ORDER", positions)
    return writer.finish()


def collect_shards(storage: Storage) -> None:
    """Remove all but the newest generations of a root, and shards that belong to none.

    Manifests go first, so that none ever refers to a missing shard."""
    numbers = root_generations(storage)
    for number in numbers[:-_KEPT]:
        storage.remove(f"{PREFIX}{number:08d}")
    if numbers[:-_KEPT]:
        storage.sync()
    needed = {shard.name for number in numbers[-_KEPT:] for shard in read_root(storage, number).shards}
    for name in storage.names():
        is_unfinished = name.startswith(PREFIX) and name.endswith(TEMPORARY)
        if is_unfinished or (name.startswith(SHARD_PREFIX) and name not in needed):
            storage.remove(name)
