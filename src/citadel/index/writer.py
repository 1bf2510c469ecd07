"""The one writer of an index: takes documents in, spills them as segments, and commits generations."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable, Iterator, Sequence

from citadel.config import DEFAULT_MEMORY, SUBVECTOR
from citadel.errors import CorruptIndexError, InputError, ResourceError, UsageError
from citadel.index.buffer import Buffer, expected_bytes, stored_codec
from citadel.index.codebook import SAMPLE_FLOOR, Codebook, train
from citadel.index.collect import collect
from citadel.index.deletion import NumberSet
from citadel.index.manifest import Build
from citadel.index.merge import choose_merge, merge_space
from citadel.index.publish import Publisher, sizes_of
from citadel.index.retrain import sample_vectors
from citadel.index.sample import Sample
from citadel.index.segment import id_hashes
from citadel.index.snapshot import Snapshot, open_snapshot
from citadel.index.storage import Storage, resource_errors
from citadel.index.tombstones import Deleted
from citadel.index.vectors import VectorBatch
from citadel.types import Document

KEPT_GENERATIONS = 2  # the newest and, for `check --repair`, the one before
_BUFFER_SHARE = 2  # of the memory bound that waits unsorted


class Writer(Publisher):
    """Changes to one index that wait to be committed. Holds the lock from its first change to its commit."""

    def __init__(self, storage: Storage, memory: int = DEFAULT_MEMORY) -> None:
        super().__init__(storage, memory)
        self._reset()

    def _reset(self) -> None:
        """Forget all that waits."""
        self._forget()
        field = self.settings.lexical
        wants_sample = field is not None and field.dimension and field.codec in SUBVECTOR and self._codebook is None
        self._sample = Sample(field.dimension) if wants_sample and field is not None else None
        self._buffer = Buffer(self.settings, self._codebook, self._sample, self._memory)

    @property
    def changed(self) -> bool:
        """Whether anything waits to be committed."""
        return bool(self._pending or self._gone or self._counts or self._buffer.documents)

    def refresh(self) -> None:
        """Move to the newest generation, unless changes of our own wait."""
        if self._lock is None:
            self.snapshot = open_snapshot(self._storage, self.snapshot)
            self._reset()

    # -- changes -----------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Take the lock; the generation may have moved on since we looked, and a dead writer may have left files."""
        if self._lock is not None:
            return
        try:
            with resource_errors(self._storage.location):
                self._lock = self._storage.lock()
                newest = open_snapshot(self._storage, self.snapshot)
                if newest.manifest.index_id != self.snapshot.manifest.index_id:
                    raise UsageError(
                        f"{self._storage.location}: another index was put in this one's place; open it again"
                    )
                self.snapshot = newest
                self._reset()
                collect(self._storage)
        except BaseException:
            self.release()
            raise

    def add(self, documents: Iterable[Document]) -> int:
        """Add documents with text; how many were taken in."""
        analyser, count = self._analyser(), 0
        with self._refusing():
            for document in documents:
                self.begin()  # each time: the stream itself may commit
                self._spill_if_full(expected_bytes(document))
                terms = analyser.windows(document.encoded_text)
                self._count("replaced", self._buffer.add_terms(document, terms))
                self._spill_if_full()
                count += 1
        return count

    @contextlib.contextmanager
    def _refusing(self) -> Iterator[None]:
        """A refused document changes nothing; any other failure may leave half a change, so all of them are dropped."""
        try:
            self.begin()
            with resource_errors(self._storage.location):
                yield
        except InputError:
            if not self.changed:
                self.release()
            raise
        except BaseException:
            self.rollback()
            raise

    def add_vectors(self, batches: Iterable[VectorBatch]) -> int:
        """Add documents with given vectors; how many were taken in."""
        count = 0
        with self._refusing():
            for batch in batches:
                self.begin()
                self._count("replaced", self._buffer.add_batch(batch))
                self._spill_if_full()
                count += len(batch)
        return count

    def delete(self, ids: Iterable[str]) -> int:
        """Delete documents by id; how many there were."""
        self.begin()
        unique = list(dict.fromkeys(ids))
        waiting = {id for id in unique if self._buffer.discard(id)}
        return len(waiting | self._bury(unique))

    def _bury(self, ids: Sequence[str]) -> set[str]:
        """Mark ids in written segments as deleted; those that were there."""
        hashes = id_hashes(ids)
        found: set[str] = set()
        for segment in [*self.snapshot.segments, *self._pending]:
            known = segment.find(ids, hashes)
            gone = self._gone.get(segment.file_id, NumberSet())
            committed = NumberSet(self.snapshot.deleted(segment).documents)
            fresh = {id: number for id, number in known.items() if number not in committed and number not in gone}
            if fresh:
                self._gone[segment.file_id] = gone.union(fresh.values())
                found.update(fresh)
        return found

    def _count(self, what: str, how_many: int) -> None:
        if how_many:
            self._counts[what] = self._counts.get(what, 0) + int(how_many)

    def count(self, what: str, how_many: int) -> None:
        """Add to a running figure that `stats` shows (documents skipped, cut)."""
        self.begin()
        self._count(what, how_many)

    # -- spilling ----------------------------------------------------------------------------------------------------

    def _spill_if_full(self, coming: int = 0) -> None:
        if self._buffer.bytes + coming > self._memory // _BUFFER_SHARE:
            with self._all_or_nothing():  # a spill that fails has used its buffer up
                self._spill()

    def _spill(self) -> None:
        """Write what waits in memory as a segment of the generation to come."""
        if not self._buffer.documents:
            return
        self._train_if_ready()
        self._count("replaced", len(self._bury(list(self._buffer.numbers))))
        if len(self._buffer):
            contents = self._buffer.contents(self._codebook)
            self._pending.append(self._write(contents))
        self._buffer = Buffer(self.settings, self._codebook, self._sample, self._memory)
        self._join_spills()

    def _join_spills(self) -> None:
        """Join spills by tiers as commits are, or a long stream would hold hundreds of files open."""
        while True:
            gone = [Deleted(self._gone.get(s.file_id, NumberSet()).values) for s in self._pending]
            chosen = choose_merge(*sizes_of(self._pending, gone))
            old = self._pending[chosen]
            if len(old) < 2:
                return
            try:
                self._require_space(old, gone[chosen])
            except ResourceError as error:  # more files stay open, but the commit may still have room
                logging.getLogger("citadel").warning("merging has to wait: %s", error)
                return
            self._pending[chosen] = self._joined(old, gone[chosen])
            for segment in old:
                self._gone.pop(segment.file_id, None)
                segment.close()
                self._storage.remove(segment.record.file.name)
                self._storage.remove(segment.record.documents_file.name)

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
        if self._lock is None and build is None:
            return self.snapshot
        self.begin()
        with self._all_or_nothing():
            self._spill()
            if self._pending or self._gone or self._counts or build is not None:
                self._publish([*self.snapshot.segments, *self._pending], build)
        self._tidy()
        return self.snapshot

    @contextlib.contextmanager
    def _all_or_nothing(self) -> Iterator[None]:
        """After a failure nothing waits, nothing is locked, and the last generation stands."""
        try:
            with resource_errors(self._storage.location):
                yield
        except BaseException:
            self.rollback()
            raise

    def _tidy(self) -> None:
        """Merge and collect after a commit. That one is durable: a full disk here is told, not raised."""
        try:
            with self._all_or_nothing():
                self._merge_by_tiers()
                collect(self._storage)
                self.release()
        except ResourceError as error:
            logging.getLogger("citadel").warning("the commit is durable, but merging has to wait: %s", error)

    # -- merging -----------------------------------------------------------------------------------------------------

    def merge(self, retrain: bool = False) -> Snapshot:
        """Commit what waits, then join all segments into one; `retrain` makes a new codebook first."""
        self.commit()
        self.begin()
        with self._all_or_nothing():
            segments = self.snapshot.segments
            if retrain:
                self._require_space(segments, [self.snapshot.deleted(segment) for segment in segments])
            old_codebook = self._retrain() if retrain else None
            if not self._is_merged or old_codebook:
                self._merge(slice(0, len(segments)), old_codebook)
            collect(self._storage, keep=1)
            self.release()
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
        """Drop every change that waits."""
        if self._lock is not None:
            self._reset()
            with contextlib.suppress(OSError, CorruptIndexError):  # what is left over, the next writer removes
                collect(self._storage)
            self.release()
