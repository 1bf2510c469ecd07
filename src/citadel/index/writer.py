"""The one writer of an index: takes documents in, spills them as segments, and commits generations."""

from __future__ import annotations

import contextlib
import logging
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from citadel.config import DEFAULT_MEMORY, SUBVECTOR, Settings
from citadel.errors import CorruptIndexError, FingerprintError, InputError, ResourceError, UsageError
from citadel.index.buffer import Buffer, MemoryContents, Sample, stored_codec
from citadel.index.codebook import SAMPLE_FLOOR, Codebook, read_codebook, train, write_codebook
from citadel.index.collect import collect
from citadel.index.documents import write_documents
from citadel.index.lists import write_segment
from citadel.index.manifest import (
    Build,
    SegmentRecord,
    write_manifest,
)
from citadel.index.merge import MergedContents, choose_merge
from citadel.index.retrain import sample_vectors
from citadel.index.segment import Segment, id_hashes
from citadel.index.snapshot import Snapshot, open_snapshot
from citadel.index.storage import Lock, Storage, resource_errors
from citadel.index.tombstones import Deleted, write_tombstones
from citadel.index.vectors import VectorBatch
from citadel.text.analyser import Analyser, get_analyser
from citadel.types import Document

KEPT_GENERATIONS = 2  # the newest and, for `check --repair`, the one before
_BUFFER_SHARE = 2  # of the memory bound that waits unsorted


class Writer:
    """Changes to one index that wait to be committed. Holds the lock from its first change to its commit."""

    def __init__(self, storage: Storage, memory: int = DEFAULT_MEMORY) -> None:
        self._storage, self._memory = storage, memory
        self._lock: Lock | None = None
        self.snapshot = open_snapshot(storage)
        self._reset()

    def _reset(self) -> None:
        """Forget all that waits."""
        self._pending: list[Segment] = []  # spilled, not yet in a generation
        self._gone: dict[str, set[int]] = {}  # deleted since the last commit, by segment
        self._counts: dict[str, int] = {}
        self._codebook, self._codebook_record = self.snapshot.codebook, self.snapshot.manifest.codebook
        field = self.settings.lexical
        wants_sample = field is not None and field.dimension and field.codec in SUBVECTOR and self._codebook is None
        self._sample = Sample(field.dimension) if wants_sample and field is not None else None
        self._buffer = Buffer(self.settings, self._codebook, self._sample)

    @property
    def settings(self) -> Settings:
        return self.snapshot.settings

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
                terms = analyser.terms(document.encoded_text)
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

    def _analyser(self) -> Analyser:
        if self.settings.router != "bm25" or self.settings.analyser is None:
            raise UsageError(
                f"{self._storage.location}: this index holds given vectors, so text cannot be added: give vectors"
            )
        analyser = get_analyser(self.settings.analyser)
        if analyser.fingerprint != self.settings.fingerprint:
            raise FingerprintError(
                f"{self._storage.location}: built with analyser {self.settings.fingerprint}, "
                f"this machine has {analyser.fingerprint}; install the same PyStemmer or build the index again"
            )
        return analyser

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
            gone = self._gone.get(segment.file_id, set())
            committed = set(self.snapshot.deleted(segment).documents.tolist()) if known else set()
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

    def _spill_if_full(self) -> None:
        if self._buffer.bytes > self._memory // _BUFFER_SHARE:
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
        self._buffer = Buffer(self.settings, self._codebook, self._sample)
        self._join_spills()

    def _join_spills(self) -> None:
        """Join spills by tiers as commits are, or a long stream would hold hundreds of files open."""
        while True:
            gone = [Deleted(np.array(sorted(self._gone.get(s.file_id, ())), np.uint32)) for s in self._pending]
            chosen = choose_merge(*_sizes(self._pending, gone))
            old = self._pending[chosen]
            if len(old) < 2:
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

    @property
    def _subvector(self) -> int:
        return SUBVECTOR[self.settings.lexical.codec] if self.settings.lexical else 1

    def _adopt(self, book: Codebook) -> None:
        """Write a codebook and use it from now on."""
        index_id = self.snapshot.manifest.index_id
        self._codebook_record = write_codebook(self._storage, index_id, uuid.uuid4().hex, book)
        field = self.settings.lexical
        assert field is not None
        self._codebook = read_codebook(self._storage, self._codebook_record, index_id, field.dimension, self._subvector)

    def _write(self, contents: MemoryContents | MergedContents) -> Segment:
        """Write lists and documents as two files and open them."""
        index_id, file_id = self.snapshot.manifest.index_id, uuid.uuid4().hex
        file = write_segment(self._storage, index_id, file_id, contents)
        documents = write_documents(self._storage, index_id, file_id, contents.document_rows())
        counts = (contents.meta.documents, contents.meta.postings, contents.total_length)
        return Segment(self._storage, SegmentRecord(file, documents, *counts), index_id)

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

    def _publish(self, segments: Sequence[Segment], build: Build | None = None, **changes: Any) -> None:
        """Write the next generation; nobody sees any of it before its manifest has its name."""
        manifest = self.snapshot.manifest
        tombstones = self._tombstones(segments)
        deleted = sum(len(part.documents) for part in tombstones.values())
        record = (
            write_tombstones(self._storage, manifest.index_id, uuid.uuid4().hex, tombstones) if tombstones else None
        )
        totals = {
            name: manifest.counts.get(name, 0) + self._counts.get(name, 0) for name in {*manifest.counts, *self._counts}
        }
        following = replace(
            manifest,
            generation=manifest.generation + 1,
            segments=tuple(segment.record for segment in segments),
            deletions=record,
            deleted=deleted,
            codebook=self._codebook_record,
            counts=totals,
            build=build or manifest.build,
            **changes,
        )
        self._storage.sync()  # the new files' names, before a manifest names them
        write_manifest(self._storage, following)
        self._advance(Snapshot(self._storage, following, self.snapshot, segments))

    def _advance(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self._pending, self._gone, self._counts = [], {}, {}

    def _tombstones(self, segments: Sequence[Segment]) -> dict[str, Deleted]:
        """All deletions of the generation to come, the old ones with the new."""
        found: dict[str, Deleted] = {}
        for segment in segments:
            before, fresh = self.snapshot.deleted(segment), self._gone.get(segment.file_id)
            if fresh:
                found[segment.file_id] = self._deleted(segment, before, sorted(fresh))
            elif len(before.documents):
                found[segment.file_id] = before
        return found

    def _deleted(self, segment: Segment, before: Deleted, fresh: Sequence[int]) -> Deleted:
        documents = np.union1d(before.documents, np.array(fresh, np.uint32)).astype(np.uint32)
        if self.settings.router != "bm25":
            return Deleted(documents)
        counts = np.zeros(segment.lists, np.int64)
        counts[before.term_ranks] += before.term_counts
        ranks = {term: rank for rank, term in enumerate(segment.terms)}
        analyser = self._analyser()
        for document in segment.store.get(fresh):
            for term in set(analyser.terms(document.encoded_text)):
                if term.encode() not in ranks:
                    raise CorruptIndexError(segment.name, "TERM_BYTES", f"it lacks a term of document {document.id!r}")
                counts[ranks[term.encode()]] += 1
        removed = before.removed_length + int(segment.lengths[list(fresh)].sum())
        used = np.flatnonzero(counts)
        return Deleted(documents, used.astype(np.uint32), counts[used].astype(np.uint32), removed)

    # -- merging -----------------------------------------------------------------------------------------------------

    def _merge_by_tiers(self) -> None:
        while True:
            segments = self.snapshot.segments
            chosen = choose_merge(*_sizes(segments, [self.snapshot.deleted(segment) for segment in segments]))
            if chosen.start == chosen.stop:
                return
            self._merge(chosen)

    def _merge(self, chosen: slice, old_codebook: Codebook | None = None) -> None:
        segments, old = self.snapshot.segments, self.snapshot.segments[chosen]
        merged = self._joined(old, [self.snapshot.deleted(segment) for segment in old], old_codebook)
        self._publish([*segments[: chosen.start], *merged, *segments[chosen.stop :]])

    def _joined(
        self, old: Sequence[Segment], deleted: Sequence[Deleted], old_codebook: Codebook | None = None
    ) -> list[Segment]:
        """One segment in place of several; none where all their documents are deleted."""
        if not sum(_sizes(old, deleted)[1]):
            return []
        codec, books = stored_codec(self.settings, self._codebook), (self._codebook, old_codebook or self._codebook)
        return [self._write(MergedContents(old, deleted, codec, *books, self._memory))]

    def merge(self, retrain: bool = False) -> Snapshot:
        """Commit what waits, then join all segments into one; `retrain` makes a new codebook first."""
        self.commit()
        self.begin()
        with self._all_or_nothing():
            everything, deleted = slice(0, len(self.snapshot.segments)), self.snapshot.manifest.deleted
            old_codebook = self._retrain() if retrain else None
            codecs = {segment.meta.codec for segment in self.snapshot.segments}
            if (
                len(self.snapshot.segments) > 1
                or deleted
                or old_codebook
                or codecs - {stored_codec(self.settings, self._codebook)}
            ):
                self._merge(everything, old_codebook)
            collect(self._storage, keep=1)
            self.release()
        return self.snapshot

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

    def release(self) -> None:
        """Give the lock back; what was not committed is dropped."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def rollback(self) -> None:
        """Drop every change that waits."""
        if self._lock is not None:
            self._reset()
            with contextlib.suppress(OSError, CorruptIndexError):  # what is left over, the next writer removes
                collect(self._storage)
            self.release()


def _sizes(segments: Sequence[Segment], deleted: Sequence[Deleted]) -> tuple[list[int], list[int]]:
    """How many documents each segment has, and how many of them are still there."""
    sizes = [segment.documents for segment in segments]
    return sizes, [size - len(gone.documents) for size, gone in zip(sizes, deleted, strict=True)]
