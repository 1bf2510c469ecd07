"""Publish generations: write segments and manifests, merge segments."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from citadel.errors import OwnershipError, ResourceError, UsageError
from citadel.index.buffer import MemoryContents, stored_codec
from citadel.index.centroid_book import AnyCodebook, CentroidBook, read_book, write_book
from citadel.index.container import CitFile
from citadel.index.deletion import NumberSet, extend_deleted, union_of
from citadel.index.graph_build import KeptGraph, build_graph, can_have_graph, graph_space
from citadel.index.graph_file import write_graph
from citadel.index.graph_merge import kept_graph
from citadel.index.manifest import Build, Manifest, newest_manifest, write_manifest
from citadel.index.mapping import whole_files
from citadel.index.merge import MergedContents, choose_merge, merge_space
from citadel.index.rekey import RekeyedContents, rekeyed
from citadel.index.segment import Segment, term_lists
from citadel.index.segment_writer import StoredContents, write_contents
from citadel.index.snapshot import Snapshot, matching_analyser, open_snapshot
from citadel.index.storage import Lock, Storage
from citadel.index.tombstones import Deleted, write_tombstones
from citadel.settings import SUBVECTOR, Settings, available_threads
from citadel.text.analyser import Analyser

if TYPE_CHECKING:
    from citadel._native import Cancel

THREADED_DOCUMENTS = 2048  # of a segment that is written by several threads,
THREADED_MEMORY = 1 << 27  # and the least memory bound: what they do at the same time takes some 20 MB more
_THREADS = 3  # documents, lists and the probe structure; on two cores, too

GraphProgress = Callable[[str, int], Any]  # the name of a segment and the number of its documents done


def _ignore(done: int) -> None:
    """No-op progress."""


class Publisher:
    """Holds the newest generation of an index and writes the next one."""

    def __init__(self, storage: Storage, memory: int, snapshot: Snapshot | None = None) -> None:
        self._storage, self._memory = storage, memory
        self._lock: Lock | None = None
        self.snapshot = open_snapshot(storage) if snapshot is None else snapshot
        self._forget()

    def _forget(self) -> None:
        """Drop uncommitted changes."""
        self._pending: list[Segment] = []  # spilled, not yet in a generation
        self._gone: dict[str, NumberSet] = {}  # deleted since the last commit, by segment
        self._counts: dict[str, int] = {}
        self._codebook, self._codebook_record = self.snapshot.book, self.snapshot.manifest.codebook

    @property
    def settings(self) -> Settings:
        return self.snapshot.settings

    def _analyser(self) -> Analyser:
        if self.settings.router != "bm25" or self.settings.analyser is None:
            raise UsageError(
                f"{self._storage.location}: this index holds given vectors, so text cannot be added: "
                "use add_vectors"
            )
        return matching_analyser(self.settings, self._storage.location)

    def release(self) -> None:
        """Release the lock."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    # -- segments

    def _write(self, contents: MemoryContents | MergedContents | RekeyedContents) -> Segment:
        """Write a segment and open it."""
        self._require_lock()
        index_id = self.snapshot.manifest.index_id
        record = write_contents(self._storage, index_id, contents, self._threads_for(contents))
        return Segment(self._storage, record, index_id)

    def _threads_for(self, contents: StoredContents) -> int:
        """Threads to write a segment with: one for a small segment, a merge, and where memory is short."""
        is_large = self._memory >= THREADED_MEMORY and contents.meta.documents >= THREADED_DOCUMENTS
        is_threaded = is_large and isinstance(contents, MemoryContents) and available_threads() > 1
        return _THREADS if is_threaded else 1

    @property
    def _subvector(self) -> int:
        return SUBVECTOR[self.settings.lexical.codec] if self.settings.lexical else 1

    def _adopt(self, book: AnyCodebook) -> None:
        """Write a codebook and use it for new segments."""
        index_id = self.snapshot.manifest.index_id
        self._codebook_record = write_book(self._storage, index_id, uuid.uuid4().hex, book)
        field = self.settings.lexical
        assert field is not None
        self._codebook = read_book(self._storage, self._codebook_record, index_id, field)

    # -- generations

    def _require_lock(self) -> None:
        assert self._lock is not None  # every change takes it first
        self._lock.check()

    def _require_newest(self) -> None:
        """Raise OwnershipError when another writer has committed since this one began."""
        self._require_lock()
        newest, own = newest_manifest(self._storage), self.snapshot.manifest
        if (newest.index_id, newest.generation) != (own.index_id, own.generation):
            raise self._overtaken()

    def _overtaken(self) -> OwnershipError:
        return OwnershipError(
            f"{self._storage.location}: another writer has committed since these changes began, "
            "so nothing was written; open the index again and add the changes again"
        )

    def _write_manifest(self, manifest: Manifest) -> None:
        self._require_newest()
        try:
            write_manifest(self._storage, manifest)
        except FileExistsError as error:  # manifests are never replaced
            raise self._overtaken() from error

    def _publish(self, segments: Sequence[Segment], build: Build | None = None, **changes: Any) -> None:
        """Write the next generation; it becomes visible when its manifest is renamed."""
        self._require_lock()
        manifest = self.snapshot.manifest
        tombstones = self._tombstones(segments)
        deleted = sum(len(part.documents) for part in tombstones.values())
        record = (
            write_tombstones(self._storage, manifest.index_id, uuid.uuid4().hex, tombstones)
            if tombstones
            else None
        )
        totals = {
            name: manifest.counts.get(name, 0) + self._counts.get(name, 0)
            for name in {*manifest.counts, *self._counts}
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
        self._storage.sync()  # file names must be durable before a manifest refers to them
        self._write_manifest(following)
        self._advance(Snapshot(self._storage, following, self.snapshot, segments))

    def _advance(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self._pending, self._gone, self._counts = [], {}, {}

    def _tombstones(self, segments: Sequence[Segment]) -> dict[str, Deleted]:
        """All deletions of the next generation, old and new."""
        tombstones: dict[str, Deleted] = {}
        for segment in segments:
            before, fresh = self.snapshot.deleted(segment), self._gone.get(segment.file_id)
            if fresh:
                tombstones[segment.file_id] = self._deleted(segment, before, fresh.values)
            elif len(before.documents):
                tombstones[segment.file_id] = before
        return tombstones

    def _deleted(self, segment: Segment, before: Deleted, fresh: NDArray[np.uint32]) -> Deleted:
        if (lists := term_lists(segment)) is not None:
            analyser = matching_analyser(self.settings, self._storage.location)
            with whole_files([segment.file, lists.file]):
                return extend_deleted(self._storage, lists, before, fresh, analyser)
        return Deleted(union_of(before.documents, fresh))

    # -- graphs

    def _add_graphs(
        self, floor: int, progress: GraphProgress | None = None, cancel: Cancel | None = None
    ) -> int:
        """Build the graphs that segments of at least `floor` documents lack; return their number.

        Each is published when it is finished, so that an interrupted run resumes with the next one."""
        built = 0
        for position, segment in enumerate(self.snapshot.segments):
            if segment.record.graph_file or segment.passages < floor or not can_have_graph(segment):
                continue
            report = (lambda done, name=segment.name: progress(name, done)) if progress else _ignore
            segments = list(self.snapshot.segments)
            segments[position] = self._with_graph(segment, None, report, cancel)
            self._publish(segments)
            built += 1
        return built

    def _with_graph(
        self,
        segment: Segment,
        kept: KeptGraph | None,
        report: Callable[[int], Any] = _ignore,
        cancel: Cancel | None = None,
    ) -> Segment:
        """Build and write the graph of a segment, without publishing it."""
        self._require_lock()
        self._require_bytes(graph_space(segment), "building a graph")
        threads, index_id = available_threads(), self.snapshot.manifest.index_id
        with whole_files([segment.file]):
            graph = build_graph(self._storage, segment, self._memory, threads, report, cancel, kept)
            file = write_graph(self._storage, index_id, segment, graph)
        return Segment(self._storage, replace(segment.record, graph_file=file), index_id)

    # -- merging

    def _merge_by_tiers(self, graph_floor: int | None) -> None:
        while True:
            segments = self.snapshot.segments
            chosen = choose_merge(
                *sizes_of(segments, [self.snapshot.deleted(segment) for segment in segments])
            )
            if chosen.start == chosen.stop:
                return
            self._merge(chosen, graph_floor)

    def _merge(self, chosen: slice, graph_floor: int | None, old_codebook: AnyCodebook | None = None) -> None:
        """Merge adjacent segments.

        With a floor, the largest of their graphs is kept and completed before the merged segment is
        published, so that searches do not lose it meanwhile."""
        segments, old = self.snapshot.segments, self.snapshot.segments[chosen]
        deleted = [self.snapshot.deleted(segment) for segment in old]
        self._require_space(old, deleted)
        merged = self._joined(old, deleted, old_codebook)
        if graph_floor is not None and merged and merged[0].passages >= graph_floor:
            kept = kept_graph(self._storage, self.snapshot.manifest.index_id, old, deleted)
            if kept is not None and can_have_graph(merged[0]):
                merged = [self._with_graph(merged[0], kept)]
        self._publish([*segments[: chosen.start], *merged, *segments[chosen.stop :]])

    def _require_space(self, old: Sequence[Segment], deleted: Sequence[Deleted]) -> None:
        """Raise ResourceError, before anything is written, when the disk has no room for a merge."""
        self._require_bytes(merge_space(old, deleted), "merging")

    def _require_bytes(self, needed: int, what: str) -> None:
        free = self._storage.free_space()
        if free is not None and free < needed:
            raise ResourceError(
                f"{self._storage.location}: {what} needs up to {needed / 1e6:,.1f} MB of disk space, "
                f"{free / 1e6:,.1f} MB are free; what was committed before is intact; make room"
            )

    def _joined(
        self, old: Sequence[Segment], deleted: Sequence[Deleted], old_codebook: AnyCodebook | None = None
    ) -> list[Segment]:
        """Merge segments into one, or none when all their documents are deleted."""
        if not sum(sizes_of(old, deleted)[1]):
            return []
        if isinstance(self._codebook, CentroidBook):
            return self._joined_tokens(old, deleted, old_codebook)
        codec = stored_codec(self.settings, self._codebook)
        books = (self._codebook, old_codebook or self._codebook)
        # A truncated file reads as zeros, which must not become a segment with good checksums.
        with whole_files(files_of(old)):
            return [self._write(MergedContents(old, deleted, codec, *books, self._memory, self._storage))]

    def _joined_tokens(
        self, old: Sequence[Segment], deleted: Sequence[Deleted], old_book: AnyCodebook | None
    ) -> list[Segment]:
        """Merge segments whose lists are those of centroids; tokens of other centroids get new ones first."""
        book, codec = self._codebook, stored_codec(self.settings, self._codebook)
        assert isinstance(book, CentroidBook)
        parts: list[tuple[Segment, Deleted]] = []
        rewritten: list[Segment] = []
        with whole_files(files_of(old)):
            for segment, gone in zip(old, deleted, strict=True):
                if segment.meta.has_centroids and old_book is None:
                    parts.append((segment, gone))
                    continue
                for contents in rekeyed(segment, gone, book, old_book, self._memory, self._storage):
                    rewritten.append(self._write(contents))
                    parts.append((rewritten[-1], Deleted(np.zeros(0, np.uint32))))
            if len(rewritten) == len(parts) == 1:
                return rewritten
            segments, gone_parts = [part[0] for part in parts], [part[1] for part in parts]
            books = (book, book)
            merged = self._write(
                MergedContents(segments, gone_parts, codec, *books, self._memory, self._storage)
            )
        for segment in rewritten:
            self._remove_segment(segment)
        return [merged]

    def _remove_segment(self, segment: Segment) -> None:
        """Remove the files of a segment that is in no generation."""
        segment.close()
        for name in file_names(segment):
            self._storage.remove(name)


def file_names(segment: Segment) -> list[str]:
    """The names of a segment's files."""
    return [record.name for record in segment.record.files()]


def sizes_of(segments: Sequence[Segment], deleted: Sequence[Deleted]) -> tuple[list[int], list[int]]:
    """Documents and live documents per segment."""
    sizes = [segment.documents for segment in segments]
    return sizes, [size - len(gone.documents) for size, gone in zip(sizes, deleted, strict=True)]


def files_of(segments: Sequence[Segment]) -> list[CitFile]:
    """The files with the lists of segments."""
    lists = [segment.words for segment in segments if segment.words]
    return [part.file for part in (*segments, *lists)]
