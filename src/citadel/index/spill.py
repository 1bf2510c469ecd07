"""Spilling: a full write buffer is written as a segment before the commit."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import numpy as np

from citadel.errors import ResourceError, UsageError
from citadel.index.buffer import Buffer
from citadel.index.centroid_book import AnyCodebook
from citadel.index.centroid_train import train_centroids
from citadel.index.changes import ChangeSet
from citadel.index.codebook import SAMPLE_FLOOR, train
from citadel.index.codebook_sample import (
    CodebookSample,
    choose_rows,
    sample_vectors,
    token_limit,
    token_sample,
)
from citadel.index.commit import Publisher, sizes_of
from citadel.index.deletion import NumberSet
from citadel.index.id_table import id_hashes
from citadel.index.merge import choose_merge
from citadel.index.segment import Segment
from citadel.index.snapshot import Snapshot
from citadel.index.storage import Storage
from citadel.index.tombstones import Deleted
from citadel.settings import RESIDUAL_BITS, SUBVECTOR

BUFFER_SHARE = 2  # divisor of the memory bound; the rest is for sorting and writing


class SpillingWriter(Publisher):
    """A publisher that keeps uncommitted documents in memory up to a bound, then in segments."""

    def __init__(self, storage: Storage, memory: int, snapshot: Snapshot | None = None) -> None:
        self._calls: list[ChangeSet] = []  # of `add` calls that have not returned
        self._buffer_limit = memory // BUFFER_SHARE
        super().__init__(storage, memory, snapshot)
        self._reset()

    def _reset(self) -> None:
        """Drop uncommitted changes except those of running calls."""
        codebook = (self._codebook, self._codebook_record)
        self._forget()
        if self._calls:  # their vectors may be encoded with it
            self._codebook, self._codebook_record = codebook
        field = self.settings.lexical
        wants_sample = (
            field is not None and field.dimension and field.codec in SUBVECTOR and self._codebook is None
        )
        self._sample = CodebookSample(field.dimension) if wants_sample and field is not None else None
        self._buffer = self._new_buffer()

    def _new_buffer(self) -> Buffer:
        return Buffer(self.settings, self._codebook, self._sample, self._memory)

    # -- spilling

    def _spill_if_full(self, call: ChangeSet, expected: int = 0) -> None:
        """Spill the buffer or this call when uncommitted documents exceed the memory bound."""
        limit = self._buffer_limit
        if expected + self._buffer.bytes + sum(each.bytes for each in self._calls) <= limit:
            return
        if self._buffer.bytes >= call.bytes:
            self._spill()
        elif expected + call.bytes > limit // (2 * len(self._calls)):
            self._spill_call(call)  # smaller calls leave spilling to larger ones

    def _spill_call(self, call: ChangeSet) -> None:
        """Write the documents of a call as a segment."""
        buffer = call.use_buffer(self._new_buffer)
        self._train_if_ready(buffer)
        call.counts["replaced"] += len(self._mark(list(buffer.numbers), call.segments, call.gone))
        if len(buffer):
            call.segments.append(self._write(buffer.contents(self._codebook)))
        call.buffer = self._new_buffer()
        self._join_spills(call.segments, call.gone)

    def _spill(self) -> None:
        """Write the buffer as a segment of the next generation; it is kept if writing fails."""
        if not self._buffer.documents:
            return
        self._train_if_ready(self._buffer)
        segment = self._write(self._buffer.contents(self._codebook)) if len(self._buffer) else None
        self._count("replaced", len(self._mark_deleted(list(self._buffer.numbers))))
        if segment is not None:
            self._pending.append(segment)
        self._buffer = self._new_buffer()
        self._join_spills(self._pending, self._gone)

    def _join_spills(self, segments: list[Segment], marks: dict[str, NumberSet]) -> None:
        """Merge spilled segments by tiers, to bound the number of open files."""
        while True:
            gone = [Deleted(marks.get(each.file_id, NumberSet()).values) for each in segments]
            chosen = choose_merge(*sizes_of(segments, gone))
            old = segments[chosen]
            if len(old) < 2:
                return
            try:
                self._require_space(old, gone[chosen])
            except ResourceError as error:  # the commit itself may still fit
                logging.getLogger("citadel").warning("merging is postponed: %s", str(error))
                return
            segments[chosen] = self._joined(old, gone[chosen])
            for segment in old:
                marks.pop(segment.file_id, None)
                self._remove_segment(segment)

    def _train_if_ready(self, buffer: Buffer) -> None:
        """Train the codebook once the sample or buffer and the committed segments have enough vectors."""
        if self.settings.router == "centroid" and self._codebook is None:
            self._train_centroids(buffer)
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

    def _retrain(self) -> AnyCodebook | None:
        """Train a codebook on the stored vectors and return the one that it replaces."""
        if self.settings.router == "centroid":
            return self._retrain_centroids()
        if self.settings.lexical is None or self.settings.lexical.codec not in SUBVECTOR:
            raise UsageError(
                f"{self._storage.location}: only the codecs pq2 and pq1 and the router centroid have a "
                "codebook to retrain"
            )
        vectors, keys = sample_vectors(self.snapshot.segments, self.snapshot.codebook)
        if len(keys) < SAMPLE_FLOOR:
            raise self._too_few(len(keys))
        old = self._codebook
        self._adopt(train(vectors, keys, self._subvector))
        return old or self._codebook

    @property
    def _bits(self) -> int:
        """Bits per dimension of a residual; 0 for int8."""
        field = self.settings.lexical
        return RESIDUAL_BITS.get(field.codec, 0) if field is not None else 0

    def _train_centroids(self, buffer: Buffer) -> None:
        """Train centroids once the buffer and the segments without centroids have enough vectors."""
        segments = [*self.snapshot.segments, *self._pending]
        stored = sum(segment.tokens for segment in segments)
        total = stored + buffer.num_vectors
        if total < SAMPLE_FLOOR or not buffer.num_vectors:
            return
        limit = min(token_limit(self._memory, buffer.settings), total)
        share = limit / total
        parts = [buffer.vectors(choose_rows(buffer.num_vectors, share))]
        parts += [token_sample(segment, share, None) for segment in segments if segment.tokens]
        self._adopt(train_centroids(np.concatenate(parts), total, self._bits))

    def _retrain_centroids(self) -> AnyCodebook | None:
        """Train centroids on the stored vectors and return those that they replace."""
        segments, book = self.snapshot.segments, self.snapshot.centroids
        total = sum(segment.tokens for segment in segments)
        if total < SAMPLE_FLOOR:
            raise self._too_few(total)
        share = min(token_limit(self._memory, self.settings), total) / total
        parts = [token_sample(segment, share, book) for segment in segments if segment.tokens]
        self._adopt(train_centroids(np.concatenate(parts), total, self._bits))
        return book or self._codebook

    def _too_few(self, count: int) -> UsageError:
        return UsageError(
            f"{self._storage.location}: {count} vectors are too few for a codebook: {SAMPLE_FLOOR} are needed"
        )

    # -- replaced and deleted documents

    def _mark_deleted(self, ids: Sequence[str]) -> set[str]:
        """Mark ids as deleted in written segments and return those that were live."""
        segments = [*self.snapshot.segments, *self._pending]
        return self._mark(ids, segments, self._gone) if segments else set()

    def _mark(self, ids: Sequence[str], segments: Sequence[Segment], marks: dict[str, NumberSet]) -> set[str]:
        hashes = id_hashes(ids)
        marked: set[str] = set()
        for segment in segments:
            known = segment.find(ids, hashes)
            gone = marks.get(segment.file_id, NumberSet())
            committed = NumberSet(self.snapshot.deleted(segment).documents)
            fresh = {
                id: number for id, number in known.items() if number not in committed and number not in gone
            }
            if fresh:
                marks[segment.file_id] = gone.union(fresh.values())
                marked.update(fresh)
        return marked

    def _count(self, name: str, number: int) -> None:
        if number:
            self._counts[name] = self._counts.get(name, 0) + int(number)
