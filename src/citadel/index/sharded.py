"""A sharded index as one snapshot: the segments of all shards, searched as those of a single index.

BM25 statistics, filters, explanations and listings read the segments of a snapshot, so they are
collection-wide without further work. Only ties differ: an engine breaks them by number, and numbers follow
the shards. `positions` gives the order of the collection instead (`search/position_order.py`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citadel.errors import CorruptIndexError, IndexNotFoundError
from citadel.index.centroid_book import AnyCodebook, same_book
from citadel.index.container import CitFile
from citadel.index.failures import resource_errors
from citadel.index.manifest import Manifest, read_manifest
from citadel.index.mapping import whole_files
from citadel.index.root_manifest import RootManifest, ShardRecord, is_root, newest_root, read_root
from citadel.index.snapshot import Snapshot, open_snapshot
from citadel.index.storage import Storage
from citadel.settings import Settings


@dataclass(frozen=True)
class Shard:
    """An open shard; `positions` has the position of each document in the collection, ascending."""

    record: ShardRecord
    snapshot: Snapshot
    order: CitFile
    positions: NDArray[np.uint64]  # [documents, also deleted ones]


def open_shard(storage: Storage, record: ShardRecord, settings: Settings) -> Shard:
    """Open a shard of a root; raises CorruptIndexError unless it is the one that the root names."""
    inner = storage.inside(record.name)
    try:
        manifest = read_manifest(inner, record.generation)
        if manifest.index_id != record.index or manifest.settings != settings:
            raise _corrupt(record, "it belongs to another index")
        if manifest.documents != record.documents:
            raise _corrupt(record, "its number of documents differs from the root manifest's")
        snapshot = Snapshot(inner, manifest)
        order = CitFile(inner, record.order, "order", record.index)
    except FileNotFoundError as error:
        raise _corrupt(record, "a file of the shard is missing") from error
    return Shard(record, snapshot, order, order["ORDER"].sized("<u8", int(snapshot.bases[-1])))


def _corrupt(record: ShardRecord, problem: str) -> CorruptIndexError:
    return CorruptIndexError(record.name, "shard", problem)


class ShardedSnapshot(Snapshot):
    """All shards of a root as one immutable snapshot."""

    is_ordered = False

    def __init__(self, storage: Storage, root: RootManifest, previous: ShardedSnapshot | None = None) -> None:
        self.storage, self.settings, self.root = storage, root.settings, root
        known = {shard.record: shard for shard in previous.shards} if previous else {}
        self.shards: list[Shard] = [
            known.get(record) or open_shard(storage, record, root.settings) for record in root.shards
        ]
        self.segments = [segment for part in self.parts for segment in part.segments]
        self.tombstones = {name: gone for part in self.parts for name, gone in part.tombstones.items()}
        self._use_book(self._common_book())
        self.manifest = self._manifest()
        self._shard_bases = np.cumsum([0, *(len(shard.positions) for shard in self.shards)], dtype=np.int64)
        self._number()

    def _common_book(self) -> AnyCodebook | None:
        first = self.parts[0].book
        for record, part in zip(self.root.shards, self.parts, strict=True):
            if not same_book(first, part.book):
                raise _corrupt(record, "its codebook differs from that of the first shard")
        return first

    def _manifest(self) -> Manifest:
        """The manifest of an index with the segments of all shards."""
        root, records = self.root, tuple(segment.record for segment in self.segments)
        deleted = sum(part.manifest.deleted for part in self.parts)
        codebook = self.parts[0].manifest.codebook
        return Manifest(
            root.root_id, root.generation, root.settings, records, None, deleted, codebook, root.counts
        )

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the path and the generation; the copy opens the same shards."""
        return _open_generation, (self.storage, self.root.root_id, self.root.generation)

    @property
    def parts(self) -> Sequence[Snapshot]:
        """The shards."""
        return [shard.snapshot for shard in self.shards]

    def whole(self) -> AbstractContextManager[None]:
        """A context that raises when a file of a shard was truncated or became unreadable within it."""
        return whole_files([segment.file for segment in self.segments] + [one.order for one in self.shards])

    def positions(self, passages: NDArray[np.int64]) -> NDArray[np.int64]:
        """The position in the collection of the document of each passage."""
        return self.document_positions(self.owners(passages))

    def document_positions(self, documents: NDArray[np.int64]) -> NDArray[np.int64]:
        """The position in the collection of each document."""
        positions = np.empty(len(documents), np.int64)
        owners = np.searchsorted(self._shard_bases, documents, side="right") - 1
        for owner in np.unique(owners).tolist():
            mine = owners == owner
            positions[mine] = self.shards[owner].positions[documents[mine] - self._shard_bases[owner]]
        return positions


def open_newest(storage: Storage, previous: Snapshot | None = None) -> Snapshot:
    """Open the newest generation of an index or of a sharded index."""
    with resource_errors(storage.location):
        sharded = is_root(storage)
    if not sharded:
        return open_snapshot(storage, previous)
    before = previous if isinstance(previous, ShardedSnapshot) else None
    with resource_errors(storage.location):
        root = newest_root(storage)
        while True:
            if before is not None and before.root == root:
                return before
            try:
                return ShardedSnapshot(storage, root, before)
            except CorruptIndexError:
                newer = newest_root(storage)
                if newer.generation == root.generation:
                    raise
                root = newer


def _open_generation(storage: Storage, root_id: str, generation: int) -> ShardedSnapshot:
    """Open the generation of a pickled snapshot."""
    with contextlib.suppress(FileNotFoundError), resource_errors(storage.location):
        root = read_root(storage, generation)
        if root.root_id == root_id:
            return ShardedSnapshot(storage, root)
    raise IndexNotFoundError(
        f"{storage.location}: generation {generation} was removed; open the index again for the newest one"
    )


def shard_of(hashes: Sequence[int] | NDArray[np.uint64], shards: int) -> NDArray[np.int64]:
    """The shard of each document, by the hash of its id.

    >>> shard_of([7, 8], 4).tolist()
    [3, 0]
    """
    return (np.asarray(hashes, np.uint64) % np.uint64(shards)).astype(np.int64)
