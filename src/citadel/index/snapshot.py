"""An open generation, which later commits do not change because its files are held open."""

from __future__ import annotations

import contextlib
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from citadel.errors import CorruptIndexError, FingerprintError, IndexNotFoundError
from citadel.filter.columns import check_types
from citadel.filter.tree import Filter
from citadel.index.centroid_book import AnyCodebook, CentroidBook, read_book
from citadel.index.codebook import Codebook
from citadel.index.documents import DocumentStore, Fields
from citadel.index.failures import resource_errors
from citadel.index.id_table import id_hashes
from citadel.index.manifest import Manifest, newest_manifest, read_manifest
from citadel.index.mapping import whole_files
from citadel.index.segment import Meta, Segment, deleted_passages, term_lists
from citadel.index.storage import Storage
from citadel.index.tombstones import Deleted, Extent, Tombstones, read_tombstones
from citadel.routing import get_router
from citadel.settings import Settings
from citadel.text.analyser import Analyser, get_analyser
from citadel.types import Document

if TYPE_CHECKING:
    from citadel._native import Cancel

T = TypeVar("T")
NOTHING_DELETED = Deleted(np.zeros(0, np.uint32))


class Snapshot:
    """An immutable view of an index, shared between threads."""

    centroids: CentroidBook | None = None
    is_ordered = True  # document numbers are in the order of the collection; false for a sharded index

    def __init__(
        self,
        storage: Storage,
        manifest: Manifest,
        previous: Snapshot | None = None,
        fresh: Sequence[Segment] = (),
    ) -> None:
        self.storage, self.manifest, self.settings = storage, manifest, manifest.settings
        self._open_segments([*(previous.segments if previous else ()), *fresh])
        self._use_book(self._read_book(previous))
        self.tombstones = self._read_tombstones()
        self._number()

    def _number(self) -> None:
        """Number the documents and passages of all segments consecutively."""
        self.has_long_documents = any(segment.meta.has_long_documents for segment in self.segments)
        documents = [segment.documents for segment in self.segments]
        passages = [segment.passages for segment in self.segments]
        self.bases = np.cumsum([0, *documents], dtype=np.int64)  # first document of a segment [segments + 1]
        self.passage_bases = np.cumsum([0, *passages], dtype=np.int64)  # its first passage [segments + 1]

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the path and the generation; the copy opens the same files."""
        return open_generation, (self.storage, self.manifest.index_id, self.manifest.generation)

    def _open_segments(self, already: Sequence[Segment]) -> None:
        """Open the segments, sharing those that are open already."""
        known = {segment.record: segment for segment in already}
        self.segments: list[Segment] = []
        for record in self.manifest.segments:
            segment = known.get(record) or Segment(self.storage, record, self.manifest.index_id)
            if (segment.words is None) != (self.settings.words is None):
                raise CorruptIndexError(
                    segment.name, "words", "its word lists do not fit the index's settings"
                )
            if not fits(segment.meta, self.manifest):
                raise CorruptIndexError(segment.name, "META", "it does not fit the index's router and fields")
            self.segments.append(segment)

    def _use_book(self, book: AnyCodebook | None) -> None:
        self.codebook = book if isinstance(book, Codebook) else None
        self.centroids = book if isinstance(book, CentroidBook) else None

    @property
    def book(self) -> AnyCodebook | None:
        """The codebook, of a product quantiser or of centroids."""
        return self.codebook or self.centroids

    def _read_book(self, previous: Snapshot | None) -> AnyCodebook | None:
        record, field = self.manifest.codebook, self.settings.lexical
        if record is None or field is None:
            return None
        if previous and previous.manifest.codebook == record:
            return previous.book
        return read_book(self.storage, record, self.manifest.index_id, field)

    def _read_tombstones(self) -> Tombstones:
        if self.manifest.deletions is None:
            return {}
        sizes = {segment.file_id: _extent(segment) for segment in self.segments}
        tombstones = read_tombstones(self.storage, self.manifest.deletions, self.manifest.index_id, sizes)
        if sum(len(part.documents) for part in tombstones.values()) != self.manifest.deleted:
            raise CorruptIndexError(
                self.manifest.deletions.name, "DELETED_DOCUMENTS", "its count differs from the manifest's"
            )
        return tombstones

    def whole(self) -> AbstractContextManager[None]:
        """A context that raises when a file was truncated or became unreadable within it."""
        return whole_files([segment.file for segment in self.segments])

    def deleted(self, segment: Segment) -> Deleted:
        """The deleted documents of a segment."""
        return self.tombstones.get(segment.file_id, NOTHING_DELETED)

    def __len__(self) -> int:
        return self.manifest.documents

    @cached_property
    def live_passages(self) -> int:
        """Passages of live documents."""
        deleted = (deleted_passages(segment, self.deleted(segment).documents) for segment in self.segments)
        return int(self.passage_bases[-1]) - sum(len(numbers) for numbers in deleted)

    def alive(self, segment: Segment) -> NDArray[np.bool_]:
        """Which passages of a segment belong to live documents."""
        return segment.spread(self.deleted(segment).alive(segment.documents))

    def owners(self, passages: NDArray[np.int64]) -> NDArray[np.int64]:
        """The index-wide document number of each index-wide passage number."""
        if not self.has_long_documents:
            return passages
        if len(self.segments) == 1:
            return self.segments[0].owners(passages)
        owners = np.empty_like(passages)
        parts = np.searchsorted(self.passage_bases, passages, side="right") - 1
        for part in np.unique(parts).tolist():
            mine = parts == part
            local = self.segments[part].owners(passages[mine] - self.passage_bases[part])
            owners[mine] = local + self.bases[part]
        return owners

    @property
    def parts(self) -> Sequence[Snapshot]:
        """The shards of a sharded index; otherwise the snapshot itself."""
        return [self]

    def positions(self, passages: NDArray[np.int64]) -> NDArray[np.int64]:
        """Numbers that order passages by their documents' positions in the collection."""
        return passages

    def document_positions(self, documents: NDArray[np.int64]) -> NDArray[np.int64]:
        """Numbers that order documents by their positions in the collection."""
        return documents

    def passages_of(self, document: int) -> range:
        """The index-wide passage numbers of an index-wide document number."""
        part = int(np.searchsorted(self.bases, document, side="right")) - 1
        own, base = self.segments[part].passages_of(document - int(self.bases[part])), self.passage_bases
        return range(own.start + int(base[part]), own.stop + int(base[part]))

    def span(self, passage: int) -> tuple[int, int] | None:
        """Where an index-wide passage number lies in its document's text; None: all of it."""
        part = int(np.searchsorted(self.passage_bases, passage, side="right")) - 1
        return self.segments[part].span(passage - int(self.passage_bases[part]))

    def locate(self, ids: Sequence[str]) -> dict[str, tuple[Segment, int]]:
        """Map each known, live id to its segment and number."""
        hashes, located = id_hashes(ids), {}
        for segment in self.segments:
            gone = self.deleted(segment).documents
            for id, number in segment.find(ids, hashes).items():
                position = int(np.searchsorted(gone, number))
                if position == len(gone) or gone[position] != number:
                    located[id] = (segment, number)
        return located

    def ids_with_white_space(self) -> Iterator[str]:
        """Yield the ids of live documents that have white space, which a TREC run cannot hold."""
        for segment in self.segments:
            deleted = self.deleted(segment).documents
            yield from (id for number, id in segment.ids_with_white_space() if number not in deleted)

    def get(self, id: str) -> Document | None:
        """The live document with this id."""
        located = self.locate([id]).get(id)
        return located[0].store.get([located[1]])[0] if located else None

    def ids(self, numbers: NDArray[np.int64]) -> list[str]:
        """The ids of documents by their index-wide numbers, in this order."""
        if len(self.segments) == 1:
            return self.segments[0].ids(numbers)
        by_number: dict[int, str] = {}
        for segment, base, part in self._by_segment(numbers):
            by_number |= dict(zip(part, segment.ids([number - base for number in part]), strict=True))
        return [by_number[number] for number in numbers.tolist()]

    def owner_ids(self, passages: NDArray[np.int64]) -> list[str]:
        """The ids of the documents of index-wide passage numbers, in this order."""
        return self.ids(self.owners(passages))

    def documents(self, numbers: NDArray[np.int64]) -> list[Document]:
        """The documents with these index-wide numbers, in this order."""
        return self._stored(numbers, DocumentStore.get)

    def fields(self, numbers: NDArray[np.int64], limit: int = sys.maxsize) -> list[Fields]:
        """Their id, title, text and metadata; title and text are cut after `limit` characters."""
        return self._stored(numbers, lambda store, part: store.fields(part, limit))

    def _stored(
        self, numbers: NDArray[np.int64], read: Callable[[DocumentStore, Iterable[int]], list[T]]
    ) -> list[T]:
        if len(self.segments) == 1:
            return read(self.segments[0].store, numbers.tolist())
        by_number: dict[int, T] = {}
        for segment, base, part in self._by_segment(numbers):
            by_number |= dict(zip(part, read(segment.store, (number - base for number in part)), strict=True))
        return [by_number[number] for number in numbers.tolist()]

    def _by_segment(self, numbers: NDArray[np.int64]) -> Iterator[tuple[Segment, int, list[int]]]:
        owners = np.searchsorted(self.bases, numbers, side="right") - 1
        for owner in np.unique(owners).tolist():
            yield self.segments[owner], int(self.bases[owner]), numbers[owners == owner].tolist()

    def text(self, passage: int, start: int, end: int) -> str:
        """Characters start … end − 1 of the text of an index-wide passage number's document."""
        part = int(np.searchsorted(self.passage_bases, passage, side="right")) - 1
        segment = self.segments[part]
        [document] = segment.owners(np.array([passage - self.passage_bases[part]])).tolist()
        return segment.store.part(document, start, end).document.text

    def allowed_passages(self, filter: Filter, cancel: Cancel | None = None) -> list[NDArray[np.bool_]]:
        """The passages of each segment whose documents match a filter."""
        pairs = zip(self.segments, self.allowed(filter, cancel), strict=True)
        return [segment.spread(mask) for segment, mask in pairs]

    def allowed(self, filter: Filter, cancel: Cancel | None = None) -> list[NDArray[np.bool_]]:
        """The documents of each segment that match a filter; deleted ones may be among them."""
        check_types(filter, [segment.columns.until(cancel) for segment in self.segments])
        return [segment.columns.mask(filter, cancel) for segment in self.segments]

    def live_allowed(
        self, filter: Filter | None, cancel: Cancel | None = None
    ) -> Iterator[tuple[Segment, int, NDArray[np.bool_]]]:
        """Each segment with its base and the mask of its live documents that match a filter."""
        masks = None if filter is None else self.allowed(filter, cancel)
        for position, segment in enumerate(self.segments):
            alive = self.deleted(segment).alive(segment.documents)
            yield segment, int(self.bases[position]), alive if masks is None else alive & masks[position]

    def live_numbers(self, segment: Segment) -> Iterable[int]:
        """The segment's numbers of its live documents."""
        numbers: list[int] = np.flatnonzero(self.deleted(segment).alive(segment.documents)).tolist()
        return numbers


def _extent(segment: Segment) -> Extent:
    lists = term_lists(segment)
    if lists is None:
        return Extent(segment.documents)
    return Extent(segment.documents, lists.lists, lists.record.total_length)


def fits(meta: Meta, manifest: Manifest) -> bool:
    """Whether a segment matches the index settings; int8 is allowed from before the codebook."""
    lexical, semantic = manifest.settings.lexical, manifest.settings.semantic
    if meta.kind != get_router(manifest.settings.router).kind:
        return False
    if meta.dimension != (lexical.dimension if lexical else 0):
        return False
    if meta.semantic_dimension != (semantic.dimension if semantic else 0):
        return False
    if semantic and meta.semantic_codec != semantic.codec:
        return False
    if meta.kind not in ("vectors", "centroid") or lexical is None:
        return True
    needs_book = manifest.settings.has_codebook
    is_untrained = needs_book and meta.codec == "int8" and not meta.has_centroids
    return is_untrained or (meta.codec == lexical.codec and (not needs_book or manifest.codebook is not None))


def matching_analyser(settings: Settings, location: str) -> Analyser:
    """The analyser of an index with words; raises FingerprintError if it makes other terms here."""
    settings = settings.words.settings() if settings.words else settings
    assert settings.analyser is not None  # the manifest of a bm25 index has one
    analyser = get_analyser(settings.analyser, settings.fingerprint)
    if analyser.fingerprint != settings.fingerprint:
        raise FingerprintError(
            f"{location}: built with analyser {settings.fingerprint}, this machine has "
            f"{analyser.fingerprint}; install the same PyStemmer or build the index again"
        )
    return analyser


def open_snapshot(storage: Storage, previous: Snapshot | None = None) -> Snapshot:
    """Open the newest generation; if it is removed meanwhile, its successor."""
    with resource_errors(storage.location):
        manifest = newest_manifest(storage)
        while True:
            try:
                return Snapshot(storage, manifest, previous)
            except CorruptIndexError:
                newer = newest_manifest(storage)
                if newer.generation == manifest.generation:
                    raise
                manifest = newer


_PICKLED: weakref.WeakValueDictionary[tuple[str, str, int], Snapshot] = weakref.WeakValueDictionary()


def open_generation(storage: Storage, index_id: str, generation: int) -> Snapshot:
    """Open the generation of a pickled snapshot; copies in one process share it."""
    key = (storage.location, index_id, generation)
    snapshot = _PICKLED.get(key)
    if snapshot is None:
        with resource_errors(storage.location):
            snapshot = Snapshot(storage, _manifest_of(storage, index_id, generation))
        _PICKLED[key] = snapshot
    return snapshot


def _manifest_of(storage: Storage, index_id: str, generation: int) -> Manifest:
    with contextlib.suppress(FileNotFoundError):
        manifest = read_manifest(storage, generation)
        if manifest.index_id == index_id:
            return manifest
    raise IndexNotFoundError(
        f"{storage.location}: generation {generation} was removed; open the index again for the newest one"
    )
