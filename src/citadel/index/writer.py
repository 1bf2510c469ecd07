"""The one writer of an index: takes documents in, spills them as segments, and commits generations.

Threads may share a writer. A mutex guards all of its state; streams are read and texts encoded outside of it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import weakref
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from citadel.errors import CorruptIndexError, InputError, OwnershipError, ResourceError, UsageError
from citadel.index.buffer import Buffer, expected_bytes, stored_codec
from citadel.index.changes import AnalysedDocument, ChangeSet, Item, add_item, check_item, is_long, item_bytes
from citadel.index.codebook import SAMPLE_FLOOR, Codebook, train
from citadel.index.codebook_sample import CodebookSample, sample_vectors
from citadel.index.commit import Publisher, sizes_of
from citadel.index.deletion import NumberSet
from citadel.index.garbage import KEPT_GENERATIONS, collect
from citadel.index.manifest import Build
from citadel.index.merge import choose_merge, merge_space
from citadel.index.segment import Segment, id_hashes
from citadel.index.snapshot import Snapshot, open_snapshot
from citadel.index.storage import Storage, forked, resource_errors
from citadel.index.tombstones import Deleted
from citadel.settings import DEFAULT_MEMORY, SUBVECTOR
from citadel.types import Document, VectorBatch

_BUFFER_SHARE = 2  # of the memory bound that waits unsorted
_ITEMS_SHARE, _ITEMS_LIMIT = 32, 4 << 20  # of the memory bound that a call keeps before it uses a buffer of its own
_IDS_PER_LOOKUP = 10_000


class Writer(Publisher):
    """Changes to one index that wait to be committed. Holds the lock from its first change to its commit."""

    def __init__(self, storage: Storage, memory: int = DEFAULT_MEMORY, snapshot: Snapshot | None = None) -> None:
        self._process, self._mutex = os.getpid(), threading.RLock()
        self._calls: list[ChangeSet] = []  # of `add` calls that have not returned
        self._small = min(memory // _ITEMS_SHARE, _ITEMS_LIMIT)
        super().__init__(storage, memory, snapshot)
        self._reset()
        _WRITERS.add(self)

    def _reset(self) -> None:
        """Forget all that waits; documents of running calls stay."""
        codebook = (self._codebook, self._codebook_record)
        self._forget()
        if self._calls:  # their codes may need it
            self._codebook, self._codebook_record = codebook
        field = self.settings.lexical
        wants_sample = field is not None and field.dimension and field.codec in SUBVECTOR and self._codebook is None
        self._sample = CodebookSample(field.dimension) if wants_sample and field is not None else None
        self._buffer = self._new_buffer()

    def _new_buffer(self) -> Buffer:
        return Buffer(self.settings, self._codebook, self._sample, self._memory)

    @property
    def changed(self) -> bool:
        """Whether anything waits to be committed."""
        with self._mutex:
            return bool(self._pending or self._gone or self._counts or self._buffer.documents)

    def refresh(self) -> None:
        """Move to the newest generation, unless changes of our own wait."""
        with self._mutex:
            if self._lock is None:
                self._storage.reopen()
                self.snapshot = open_snapshot(self._storage, self.snapshot)
                self._reset()

    # -- ownership ---------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Take the lock; the generation may have moved on since we looked, and a dead writer may have left files."""
        if os.getpid() != self._process:
            raise OwnershipError(forked(self._storage.location))
        if self._lock is not None:
            return
        try:
            with resource_errors(self._storage.location):
                self._lock = self._storage.lock()
                newest = open_snapshot(self._storage, self.snapshot)
                if newest.manifest.index_id != self.snapshot.manifest.index_id:
                    raise OwnershipError(
                        f"{self._storage.location}: another index was put in this one's place; open it again"
                    )
                self.snapshot = newest
                self._reset()
                self._collect()
        except BaseException:
            self.release()
            raise

    def _collect(self, keep: int = KEPT_GENERATIONS) -> None:
        """Remove files that no kept generation names, as long as this writer owns the index."""
        if self._lock is not None:
            self._lock.check()
            collect(self._storage, keep, self._uncommitted_files())

    def _uncommitted_files(self) -> set[str]:
        spilled = [*self._pending, *(segment for call in self._calls for segment in call.segments)]
        names = {name for segment in spilled for name in _file_names(segment)}
        return names | ({self._codebook_record.name} if self._codebook_record else set())

    def _release_if_idle(self) -> None:
        """Give the lock back unless a running call still needs it."""
        if not self._calls:
            self.release()

    # -- adding ------------------------------------------------------------------------------------------------------

    def add(self, documents: Iterable[Document]) -> int:
        """Add documents with text; the number taken in."""
        analyser = self._analyser()
        return self._take_in(AnalysedDocument(document, analyser) for document in documents)

    def add_vectors(self, batches: Iterable[VectorBatch]) -> int:
        """Add documents with given vectors; the number taken in."""
        return self._take_in(batches)

    def _take_in(self, items: Iterable[Item]) -> int:
        """Add all items of a stream; after a refused document those before it, after any other failure none."""
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
        """Drop what a failed call has left."""
        with self._mutex:
            self._drop_call(call)
            self._calls = [each for each in self._calls if each is not call]
            if not succeeded and not self.changed and not self._calls:
                self.rollback()

    def _keep(self, call: ChangeSet, item: Item) -> int:
        """Add an item to its call; the number of its documents."""
        with self._mutex:
            self.begin()
            if call.buffer is not None or call.item_bytes + item_bytes(item) > self._small or is_long(item):
                call.use_buffer(self._new_buffer)
                self._spill_if_full(call, expected_bytes(item.document) if isinstance(item, AnalysedDocument) else 0)
                call.counts["replaced"] += add_item(call.use_buffer(self._new_buffer), item)
            else:
                check_item(self._buffer, item)
                call.append(item)
            self._spill_if_full(call)
        return 1 if isinstance(item, AnalysedDocument) else len(item)

    def _finish_call(self, call: ChangeSet) -> None:
        """Let the documents of a call wait for the next commit, together with those of earlier calls."""
        with self._mutex:
            self.begin()
            if not call.is_small or self._buffer.bytes + call.bytes > self._memory // _BUFFER_SHARE:
                self._spill()
            try:
                if call.is_small:
                    for item in call.items:
                        self._count("replaced", add_item(self._buffer, item))
                else:
                    self._adopt_call(call)
                for what, how_many in call.counts.items():
                    self._count(what, how_many)
                call.clear()
            except BaseException:  # half of it is in: nothing that waits can be trusted
                self.rollback()
                raise

    def _adopt_call(self, call: ChangeSet) -> None:
        """The segments and the buffer of a call become those of the writer."""
        for segment in call.segments:
            gone = call.gone.get(segment.file_id, NumberSet())
            numbers = np.flatnonzero(Deleted(gone.values).alive(segment.documents))
            for start in range(0, len(numbers), _IDS_PER_LOOKUP):
                ids = segment.ids(numbers[start : start + _IDS_PER_LOOKUP].tolist())
                self._count("replaced", len(self._bury(ids)))
        self._pending += call.segments
        self._gone |= call.gone
        self._buffer = self._buffer if call.buffer is None else call.buffer

    def _drop_call(self, call: ChangeSet) -> None:
        """Forget the documents of a call and remove its spilled files, if they are still ours to remove."""
        segments = call.segments
        call.clear()
        with contextlib.suppress(OSError, OwnershipError):  # the next writer removes what is left
            if segments and self._lock is not None:
                self._lock.check()
                for segment in segments:
                    self._remove_segment(segment)

    def _own_calls(self) -> list[ChangeSet]:
        """The calls that this thread is in: a stream may commit, delete or roll back while it is read."""
        return [call for call in self._calls if call.thread == threading.get_ident()]

    # -- deleting ----------------------------------------------------------------------------------------------------

    def delete(self, ids: Iterable[str]) -> int:
        """Delete documents by id and return their number."""
        with self._mutex:
            self.begin()
            for call in self._own_calls():
                self._finish_call(call)
            unique = list(dict.fromkeys(ids))
            waiting = {id for id in unique if self._buffer.discard(id)}
            return len(waiting | self._bury(unique))

    def _bury(self, ids: Sequence[str]) -> set[str]:
        """Mark ids in written segments as deleted; those that were in one."""
        segments = [*self.snapshot.segments, *self._pending]
        return self._mark(ids, segments, self._gone) if segments else set()

    def _mark(self, ids: Sequence[str], segments: Sequence[Segment], marks: dict[str, NumberSet]) -> set[str]:
        hashes = id_hashes(ids)
        marked: set[str] = set()
        for segment in segments:
            known = segment.find(ids, hashes)
            gone = marks.get(segment.file_id, NumberSet())
            committed = NumberSet(self.snapshot.deleted(segment).documents)
            fresh = {id: number for id, number in known.items() if number not in committed and number not in gone}
            if fresh:
                marks[segment.file_id] = gone.union(fresh.values())
                marked.update(fresh)
        return marked

    def _count(self, what: str, how_many: int) -> None:
        if how_many:
            self._counts[what] = self._counts.get(what, 0) + int(how_many)

    def count(self, what: str, how_many: int) -> None:
        """Add to a running figure that `stats` shows (documents skipped, cut)."""
        with self._mutex:
            self.begin()
            if own := self._own_calls():
                own[-1].counts[what] += how_many
            else:
                self._count(what, how_many)

    # -- spilling ----------------------------------------------------------------------------------------------------

    def _spill_if_full(self, call: ChangeSet, coming: int = 0) -> None:
        """Keep what waits, in this call, in others and before them, within its share of the memory bound."""
        limit = self._memory // _BUFFER_SHARE
        if coming + self._buffer.bytes + sum(each.bytes for each in self._calls) <= limit:
            return
        if self._buffer.bytes >= call.bytes:
            self._spill()
        elif coming + call.bytes > limit // (2 * len(self._calls)):  # smaller ones leave it to a larger call
            self._spill_call(call)

    def _spill_call(self, call: ChangeSet) -> None:
        """Write what a call holds in memory as a segment of its own."""
        buffer = call.use_buffer(self._new_buffer)
        self._train_if_ready()
        call.counts["replaced"] += len(self._mark(list(buffer.numbers), call.segments, call.gone))
        if len(buffer):
            call.segments.append(self._write(buffer.contents(self._codebook)))
        call.buffer = self._new_buffer()
        self._join_spills(call.segments, call.gone)

    def _spill(self) -> None:
        """Write what waits in memory as a segment of the generation to come; if that fails, it still waits."""
        if not self._buffer.documents:
            return
        self._train_if_ready()
        segment = self._write(self._buffer.contents(self._codebook)) if len(self._buffer) else None
        self._count("replaced", len(self._bury(list(self._buffer.numbers))))
        if segment is not None:
            self._pending.append(segment)
        self._buffer = self._new_buffer()
        self._join_spills(self._pending, self._gone)

    def _join_spills(self, segments: list[Segment], marks: dict[str, NumberSet]) -> None:
        """Join spills by tiers as commits are, or a long stream would hold hundreds of files open."""
        while True:
            gone = [Deleted(marks.get(each.file_id, NumberSet()).values) for each in segments]
            chosen = choose_merge(*sizes_of(segments, gone))
            old = segments[chosen]
            if len(old) < 2:
                return
            try:
                self._require_space(old, gone[chosen])
            except ResourceError as error:  # more files stay open, but the commit may still have room
                logging.getLogger("citadel").warning("merging has to wait: %s", str(error))
                return
            segments[chosen] = self._joined(old, gone[chosen])
            for segment in old:
                marks.pop(segment.file_id, None)
                self._remove_segment(segment)

    def _remove_segment(self, segment: Segment) -> None:
        """Remove the files of a segment that no generation names."""
        segment.close()
        for name in _file_names(segment):
            self._storage.remove(name)

    def _train_if_ready(self) -> None:
        """Train the codebook as soon as this spill and the segments before it hold enough vectors."""
        if self._sample is None or self._codebook is not None:
            return
        before = sum(segment.meta.postings for segment in [*self.snapshot.segments, *self._pending])
        if before + len(self._sample) < SAMPLE_FLOOR:
            return
        vectors, keys = sample_vectors(self.snapshot.segments)
        if len(keys) + len(self._sample) >= SAMPLE_FLOOR:
            if len(keys):
                self._sample.add(vectors, keys)
            self._adopt(train(self._sample.vectors, self._sample.keys, self._subvector))
            self._sample = None

    # -- commit ------------------------------------------------------------------------------------------------------

    def commit(self, build: Build | None = None) -> Snapshot:
        """Make every change durable as the next generation, then merge by tiers and collect what is not needed."""
        with self._mutex:
            if self._lock is None and build is None:
                return self.snapshot
            self.begin()
            with self._all_or_nothing():
                for call in self._own_calls():
                    self._finish_call(call)
                self._spill()
                if self._pending or self._gone or self._counts or build is not None:
                    self._publish([*self.snapshot.segments, *self._pending], build)
            self._tidy()
            return self.snapshot

    @contextlib.contextmanager
    def _all_or_nothing(self) -> Iterator[None]:
        """After a failure nothing waits, nothing is locked, and the last generation is unchanged."""
        try:
            with resource_errors(self._storage.location):
                yield
        except BaseException:
            self.rollback()
            raise

    def _tidy(self) -> None:
        """Merge and collect after a commit, which is durable: a failure here is logged, not raised."""
        try:
            with self._all_or_nothing():
                self._merge_by_tiers()
                self._collect()
                self._release_if_idle()
        except (ResourceError, OwnershipError) as error:
            logging.getLogger("citadel").warning("the commit is durable, but merging has to wait: %s", str(error))

    # -- merging -----------------------------------------------------------------------------------------------------

    def merge(self, retrain: bool = False) -> Snapshot:
        """Commit what waits, then join all segments into one; `retrain` makes a new codebook first."""
        with self._mutex:
            if retrain and self._calls:
                raise UsageError(
                    f"{self._storage.location}: documents are being added, so the codebook cannot be retrained now; "
                    "wait until add has returned"
                )
            self.commit()
            self.begin()
            with self._all_or_nothing():
                segments = self.snapshot.segments
                if retrain:
                    self._require_space(segments, [self.snapshot.deleted(segment) for segment in segments])
                old_codebook = self._retrain() if retrain else None
                if not self._is_merged or old_codebook:
                    self._merge(slice(0, len(segments)), old_codebook)
                self._collect(keep=1)
                self._release_if_idle()
            return self.snapshot

    @property
    def _is_merged(self) -> bool:
        """Whether a merge would change nothing."""
        segments = self.snapshot.segments
        codecs = {segment.meta.codec for segment in segments}
        is_coded = not codecs - {stored_codec(self.settings, self._codebook)}
        return len(segments) < 2 and not self.snapshot.manifest.deleted and is_coded

    def merge_space(self, retrain: bool = False) -> int:
        """Bytes of disk space that `merge` may take until the old files are removed."""
        segments = self.snapshot.segments
        if self._is_merged and not retrain:
            return 0
        return merge_space(segments, [self.snapshot.deleted(segment) for segment in segments])

    def _retrain(self) -> Codebook | None:
        """A codebook from the vectors as they are stored now; the one it replaces."""
        if self.settings.lexical is None or self.settings.lexical.codec not in SUBVECTOR:
            raise UsageError(f"{self._storage.location}: only an index with codec pq2 or pq1 has a codebook to retrain")
        vectors, keys = sample_vectors(self.snapshot.segments, self._codebook)
        if len(keys) < SAMPLE_FLOOR:
            raise UsageError(
                f"{self._storage.location}: {len(keys)} vectors are too few for a codebook, {SAMPLE_FLOOR} are needed"
            )
        old = self._codebook
        self._adopt(train(vectors, keys, self._subvector))
        return old or self._codebook

    # -- end ---------------------------------------------------------------------------------------------------------

    def rollback(self) -> None:
        """Drop every change that waits, and those of a call that this thread is in."""
        with self._mutex:
            if os.getpid() != self._process:
                self._calls = []
                self._reset()  # the files are the parent's
            elif self._lock is not None:
                for call in self._own_calls():
                    self._drop_call(call)
                self._reset()
                with contextlib.suppress(OSError, CorruptIndexError, OwnershipError):  # left to the next writer
                    self._collect()
                self._release_if_idle()


def _file_names(segment: Segment) -> tuple[str, str]:
    return segment.record.file.name, segment.record.documents_file.name


_WRITERS: weakref.WeakSet[Writer] = weakref.WeakSet()


def _after_fork() -> None:
    for writer in list(_WRITERS):
        writer._mutex = threading.RLock()  # another thread may have held it


os.register_at_fork(after_in_child=_after_fork)
