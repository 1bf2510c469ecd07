"""The writer of an index: adds, deletes, commits and merges.

Threads may share a writer. A mutex guards its state; streams are read and texts encoded outside of it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from citadel.errors import CorruptIndexError, InputError, OwnershipError, ResourceError, UsageError
from citadel.filter.tree import Filter
from citadel.index.buffer import expected_bytes, stored_codec
from citadel.index.changes import AnalysedDocument, ChangeSet, Item, add_item, check_item, is_long, item_bytes
from citadel.index.commit import GraphProgress, file_names
from citadel.index.deletion import NumberSet
from citadel.index.failures import resource_errors
from citadel.index.folder_lock import fork_message
from citadel.index.garbage import collect
from citadel.index.manifest import Build
from citadel.index.merge import merge_space
from citadel.index.metadata_update import write_updated
from citadel.index.object_store import ObjectStorage
from citadel.index.segment import Segment
from citadel.index.snapshot import Snapshot, matching_analyser, open_snapshot
from citadel.index.spill import SpillingWriter
from citadel.index.storage import Storage
from citadel.index.tombstones import Deleted
from citadel.settings import DEFAULT_MEMORY, GRAPH_FLOOR
from citadel.types import Document, VectorBatch

if TYPE_CHECKING:
    from citadel._native import Cancel

_ITEMS_SHARE, _ITEMS_LIMIT = 32, 4 << 20  # a call with more than memory / 32 uses its own buffer
_IDS_PER_LOOKUP = 10_000


class Writer(SpillingWriter):
    """Uncommitted changes to an index. Holds the lock from the first change to the commit."""

    graph_floor = GRAPH_FLOOR  # passages of a segment that gets a graph

    def __init__(
        self, storage: Storage, memory: int = DEFAULT_MEMORY, snapshot: Snapshot | None = None
    ) -> None:
        self._process, self._mutex = os.getpid(), threading.RLock()
        self.builds_graphs: bool | None = None  # remembered by the next commit; None: as the index remembers
        self._small = min(memory // _ITEMS_SHARE, _ITEMS_LIMIT)
        super().__init__(storage, memory, snapshot)
        _WRITERS.add(self)

    @property
    def changed(self) -> bool:
        """Whether there are uncommitted changes."""
        with self._mutex:
            return bool(self._pending or self._gone or self._counts or self._buffer.documents)

    def refresh(self) -> None:
        """Move to the newest generation, unless there are uncommitted changes."""
        with self._mutex:
            if self._lock is None:
                self._storage.reopen()
                self.snapshot = open_snapshot(self._storage, self.snapshot)
                self._reset()

    # -- ownership

    def begin(self) -> None:
        """Take the lock, move to the newest generation and remove files that a dead writer left."""
        if os.getpid() != self._process:
            raise OwnershipError(fork_message(self._storage.location))
        if self._lock is not None:
            return
        try:
            with resource_errors(self._storage.location):
                self._lock = self._storage.lock()
                newest = open_snapshot(self._storage, self.snapshot)
                if newest.manifest.index_id != self.snapshot.manifest.index_id:
                    raise OwnershipError(
                        f"{self._storage.location}: the index was replaced by another one; open it again"
                    )
                self.snapshot = newest
                self._reset()
                if not isinstance(self._storage, ObjectStorage):  # a lease may have been taken over
                    self._collect()
        except BaseException:
            self.release()
            raise

    def _collect(self, keep: int = 2) -> None:
        """Remove files of old generations while this writer owns the index; `check --repair` may use two."""
        if self._lock is not None:
            self._lock.check()
            collect(self._storage, keep, self._uncommitted_files(), self._lock.check)

    def _uncommitted_files(self) -> set[str]:
        spilled = [*self._pending, *(segment for call in self._calls for segment in call.segments)]
        names = {name for segment in spilled for name in file_names(segment)}
        return names | ({self._codebook_record.name} if self._codebook_record else set())

    def _release_if_idle(self) -> None:
        """Release the lock unless a running call needs it."""
        if not self._calls:
            self.release()

    # -- adding

    def add(self, documents: Iterable[Document]) -> int:
        """Add documents with text and return their number."""
        analyser = self._analyser()
        return self._add_items(AnalysedDocument(document, analyser) for document in documents)

    def add_vectors(self, batches: Iterable[VectorBatch]) -> int:
        """Add documents with given vectors and return their number."""
        if self.settings.words is not None:
            matching_analyser(self.settings, self._storage.location)
        return self._add_items(batches)

    def _add_items(self, items: Iterable[Item]) -> int:
        """Add all items of a stream.

        After an InputError the items before it are kept; any other exception drops all of them.
        """
        call, count, succeeded = self._start_call(), 0, False
        try:
            with resource_errors(self._storage.location):
                for item in items:
                    count += self._keep(call, item)
                self._finish_call(call)
            succeeded = True
        except InputError:
            with resource_errors(self._storage.location):
                self._finish_call(call)
            raise
        finally:
            self._end_call(call, succeeded)
        return count

    def _start_call(self) -> ChangeSet:
        with self._mutex:
            self.begin()
            call = ChangeSet()
            self._calls.append(call)
            return call

    def _end_call(self, call: ChangeSet, succeeded: bool) -> None:
        """Remove a call, and what it left if it failed."""
        with self._mutex:
            self._discard_call(call)
            self._calls = [each for each in self._calls if each is not call]
            if not succeeded and not self.changed and not self._calls:
                self.rollback()

    def _keep(self, call: ChangeSet, item: Item) -> int:
        """Add an item to a call and return its number of documents."""
        with self._mutex:
            self.begin()
            if call.buffer is not None or call.item_bytes + item_bytes(item) > self._small or is_long(item):
                call.use_buffer(self._new_buffer)
                self._spill_if_full(
                    call, expected_bytes(item.document) if isinstance(item, AnalysedDocument) else 0
                )
                call.counts["replaced"] += add_item(call.use_buffer(self._new_buffer), item)
            else:
                check_item(self._buffer, item)
                call.append(item)
            self._spill_if_full(call)
        return 1 if isinstance(item, AnalysedDocument) else len(item)

    def _finish_call(self, call: ChangeSet) -> None:
        """Move the documents of a call to the writer, for the next commit."""
        with self._mutex:
            self.begin()
            if not call.is_small or self._buffer.bytes + call.bytes > self._buffer_limit:
                self._spill()
            try:
                if call.is_small:
                    for item in call.items:
                        self._count("replaced", add_item(self._buffer, item))
                else:
                    self._adopt_call(call)
                for name, number in call.counts.items():
                    self._count(name, number)
                call.clear()
            except BaseException:  # partly moved: uncommitted changes are inconsistent
                self.rollback()
                raise

    def _adopt_call(self, call: ChangeSet) -> None:
        """Move the segments and the buffer of a call to the writer."""
        for segment in call.segments:
            gone = call.gone.get(segment.file_id, NumberSet())
            numbers = np.flatnonzero(Deleted(gone.values).alive(segment.documents))
            for start in range(0, len(numbers), _IDS_PER_LOOKUP):
                ids = segment.ids(numbers[start : start + _IDS_PER_LOOKUP].tolist())
                self._count("replaced", len(self._mark_deleted(ids)))
        self._pending += call.segments
        self._gone |= call.gone
        self._buffer = self._buffer if call.buffer is None else call.buffer

    def _discard_call(self, call: ChangeSet) -> None:
        """Drop the documents of a call and, while the lock is held, its spilled files."""
        segments = call.segments
        call.clear()
        with contextlib.suppress(OSError, OwnershipError):  # the next writer removes what is left
            if segments and self._lock is not None:
                self._lock.check()
                for segment in segments:
                    self._remove_segment(segment)

    def _own_calls(self) -> list[ChangeSet]:
        """The calls of this thread: a stream may commit, delete or roll back while it is read."""
        return [call for call in self._calls if call.thread == threading.get_ident()]

    # -- deleting

    def delete(self, ids: Iterable[str]) -> int:
        """Delete documents by id and return their number."""
        with self._mutex:
            self.begin()
            for call in self._own_calls():
                self._finish_call(call)
            unique = list(dict.fromkeys(ids))
            waiting = {id for id in unique if self._buffer.discard(id)}
            return len(waiting | self._mark_deleted(unique))

    def delete_matching(self, filter: Filter) -> int:
        """Delete the committed documents that match a filter, by the newest generation; return their number.

        Documents that were added since are not chosen, also if they replace one that matches."""
        with self._mutex:
            self.begin()
            for call in self._own_calls():
                self._finish_call(call)
            deleted = 0
            for segment, mask in self._choose(filter):
                gone = self._gone.get(segment.file_id, NumberSet())
                mask[gone.values] = False
                if numbers := np.flatnonzero(mask).tolist():
                    self._gone[segment.file_id] = gone.union(numbers)
                    deleted += len(numbers)
            return deleted

    def update_metadata(self, which: Filter | Sequence[str], values: Mapping[str, Any]) -> int:
        """Change metadata of committed documents, as a commit of its own; return their number."""
        with self._mutex:
            if self.changed or self._calls:
                raise UsageError(
                    f"{self._storage.location}: there are uncommitted changes; commit them before "
                    "update_metadata, which is a commit of its own"
                )
            self.begin()
            with self._all_or_nothing():
                chosen = self._choose(which)
                if count := sum(int(mask.sum()) for _, mask in chosen):
                    index_id = self.snapshot.manifest.index_id
                    segments = [
                        self._with_metadata(segment, mask, values, index_id) for segment, mask in chosen
                    ]
                    self._publish(segments)
            self._tidy(self._graph_floor)
            return count

    def _choose(self, which: Filter | Sequence[str]) -> list[tuple[Segment, NDArray[np.bool_]]]:
        """Each segment with the mask of the live documents chosen by a filter or by ids."""
        snapshot = self.snapshot
        if not isinstance(which, Sequence):
            with snapshot.whole():
                return [(segment, mask) for segment, _, mask in snapshot.live_allowed(which)]
        masks = {segment.file_id: np.zeros(segment.documents, bool) for segment in snapshot.segments}
        for segment, number in snapshot.locate(which).values():
            masks[segment.file_id][number] = True
        return [(segment, masks[segment.file_id]) for segment in snapshot.segments]

    def _with_metadata(
        self, segment: Segment, mask: NDArray[np.bool_], values: Mapping[str, Any], index_id: str
    ) -> Segment:
        if not mask.any():
            return segment
        self._require_lock()
        record = write_updated(self._storage, index_id, segment, mask, values)
        return Segment(self._storage, record, index_id)

    def count(self, name: str, number: int) -> None:
        """Increment a counter that `stats` shows, such as documents skipped."""
        with self._mutex:
            self.begin()
            if own := self._own_calls():
                own[-1].counts[name] += number
            else:
                self._count(name, number)

    # -- commit

    def commit(self, build: Build | None = None) -> Snapshot:
        """Make all changes durable as the next generation, then merge by tiers and collect garbage.

        With `build`, more commits follow: graphs are left to `optimize`."""
        with self._mutex:
            if self._lock is None and build is None and not self._changes_graphs:
                return self.snapshot
            self.begin()
            graphs = {"graphs": self.builds_graphs} if self._changes_graphs else {}
            with self._all_or_nothing():
                for call in self._own_calls():
                    self._finish_call(call)
                self._spill()
                if self._pending or self._gone or self._counts or build is not None or graphs:
                    self._publish([*self.snapshot.segments, *self._pending], build, **graphs)
            self._tidy(self._graph_floor if build is None else None)
            logging.getLogger("citadel").info("committed generation %d", self.snapshot.manifest.generation)
            return self.snapshot

    @contextlib.contextmanager
    def _all_or_nothing(self) -> Iterator[None]:
        """On failure, drop all changes and release the lock; the last generation is unchanged."""
        try:
            with resource_errors(self._storage.location):
                yield
        except BaseException:
            self.rollback()
            raise

    def _tidy(self, floor: int | None) -> None:
        """Merge, build graphs from `floor` passages on and collect garbage after a commit.

        Failures are logged, because the commit is durable."""
        try:
            with self._all_or_nothing():
                self._merge_by_tiers(floor)
                if floor is not None:
                    self._add_graphs(floor)
                self._collect()
                self._release_if_idle()
        except (ResourceError, OwnershipError) as error:
            logging.getLogger("citadel").warning(
                "the commit is durable, but merging is postponed: %s", str(error)
            )

    # -- merging

    def merge(self, retrain: bool = False) -> Snapshot:
        """Commit, then merge all segments into one; `retrain` trains a new codebook first."""
        with self._mutex:
            if retrain and self._calls:
                raise UsageError(
                    f"{self._storage.location}: the codebook cannot be retrained while documents are added; "
                    "wait until add has returned"
                )
            self.commit()
            self.begin()
            with self._all_or_nothing():
                segments, floor = self.snapshot.segments, self._graph_floor
                if retrain:
                    self._require_space(segments, [self.snapshot.deleted(segment) for segment in segments])
                old_codebook = self._retrain() if retrain else None
                if not self._is_merged or old_codebook:
                    self._merge(slice(0, len(segments)), floor, old_codebook)
                if floor is not None:
                    self._add_graphs(floor)
                self._collect(keep=1)
                self._release_if_idle()
            return self.snapshot

    def optimize(
        self, floor: int = GRAPH_FLOOR, progress: GraphProgress | None = None, cancel: Cancel | None = None
    ) -> int:
        """Commit, then build the graphs that segments of at least `floor` documents lack.

        From then on, commits and merges build graphs."""
        with self._mutex:
            self.commit()
            self.begin()
            with self._all_or_nothing():
                if self.snapshot.manifest.graphs is not True:
                    self._publish(self.snapshot.segments, graphs=True)
                built = self._add_graphs(floor, progress, cancel)
                self._collect()
                self._release_if_idle()
            return built

    @property
    def _changes_graphs(self) -> bool:
        """Whether the next commit must remember another choice about graphs."""
        return self.builds_graphs is not None and self.builds_graphs != self.snapshot.manifest.graphs

    @property
    def _graph_floor(self) -> int | None:
        """Passages of a segment that gets a graph; None for no graphs."""
        chosen = self.builds_graphs if self.builds_graphs is not None else self.snapshot.manifest.graphs
        if chosen is None:
            chosen = any(segment.record.graph_file for segment in self.snapshot.segments)
        return self.graph_floor if chosen else None

    @property
    def _is_merged(self) -> bool:
        """Whether a merge would change nothing."""
        segments = self.snapshot.segments
        codecs = {segment.meta.codec for segment in segments}
        is_coded = not codecs - {stored_codec(self.settings, self._codebook)}
        has_columns = all(segment.record.has_columns for segment in segments)
        return len(segments) < 2 and not self.snapshot.manifest.deleted and is_coded and has_columns

    def merge_space(self, retrain: bool = False) -> int:
        """Estimate the disk space that `merge` needs until old files are removed."""
        segments = self.snapshot.segments
        if self._is_merged and not retrain:
            return 0
        return merge_space(segments, [self.snapshot.deleted(segment) for segment in segments])

    # -- end

    def rollback(self) -> None:
        """Drop all uncommitted changes, including those of this thread's running calls."""
        with self._mutex:
            if os.getpid() != self._process:
                self._calls = []
                self._reset()  # the files belong to the parent
            elif self._lock is not None:
                for call in self._own_calls():
                    self._discard_call(call)
                self._reset()
                # What cannot be removed now is left to the next writer.
                with contextlib.suppress(OSError, CorruptIndexError, OwnershipError):
                    if not isinstance(self._storage, ObjectStorage):
                        self._collect()
                self._release_if_idle()


_WRITERS: weakref.WeakSet[Writer] = weakref.WeakSet()


def _after_fork() -> None:
    for writer in list(_WRITERS):
        writer._mutex = threading.RLock()  # another thread may have held it


os.register_at_fork(after_in_child=_after_fork)
