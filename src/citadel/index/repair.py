"""Repair a damaged index: keep every readable document and list the others.

Damaged segments are rewritten without the damaged documents. If the lists of a segment are damaged but its
texts are intact, the lists are rebuilt from the texts. Otherwise the previous generation is used.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

import numpy as np

from citadel.encode.locate import model_name
from citadel.errors import CitadelError, CorruptIndexError, FingerprintError, RepairLossError, ResourceError
from citadel.index.buffer import Buffer, MemoryContents, expected_bytes, stored_codec
from citadel.index.centroid_book import AnyCodebook, CentroidBook, read_book
from citadel.index.changes import AnalysedDocument, Item, add_item, item_bytes
from citadel.index.check import (
    check_columns,
    check_documents,
    check_file,
    check_lists,
    check_tokens,
    check_words,
    is_whole,
)
from citadel.index.container import CitFile
from citadel.index.deletion import union_of
from citadel.index.documents import DocumentStore
from citadel.index.failures import resource_errors
from citadel.index.garbage import collect
from citadel.index.graph_file import check_graph
from citadel.index.manifest import Manifest, SegmentRecord, generations, read_manifest, write_manifest
from citadel.index.mapping import whole_files
from citadel.index.merge import MergedContents
from citadel.index.rekey import RekeyedContents, rekeyed
from citadel.index.segment import Segment
from citadel.index.segment_writer import write_contents
from citadel.index.snapshot import NOTHING_DELETED, Snapshot, matching_analyser
from citadel.index.spill import BUFFER_SHARE
from citadel.index.storage import Storage
from citadel.index.tombstones import Deleted, Extent, Tombstones, read_tombstones, write_tombstones
from citadel.settings import DEFAULT_MEMORY, Settings
from citadel.text.analyser import get_analyser
from citadel.types import Document, VectorBatch

T = TypeVar("T")
EncodeDocuments = Callable[[Iterable[Document]], Iterable[VectorBatch]]
_ROWS_PER_READ = 128
_DOCUMENTS_PER_SEGMENT = 8_192  # of a rebuilt segment
_ALL_TOKENS = (1 << 63) - 1


@dataclass(frozen=True)
class SegmentState:
    """State of a segment: `segment` if its lists are intact, `store` if its database opens."""

    record: SegmentRecord
    deleted: Deleted
    segment: Segment | None
    store: DocumentStore | None
    unreadable: tuple[int, ...]  # live documents whose rows are damaged
    is_whole: bool  # `segment` has no word lists if those are damaged

    @property
    def live(self) -> int:
        return self.record.documents - len(self.deleted.documents)

    @property
    def needs_rebuild(self) -> bool:
        """Whether its lists are damaged but texts can be read."""
        return self.segment is None and self.store is not None

    @property
    def lacks_words(self) -> bool:
        """Whether only its word lists are damaged, of all lists."""
        return self.segment is not None and self.segment.words is None and self.record.words is not None

    def live_readable(self) -> list[int]:
        """Numbers of the live documents with intact rows."""
        mask = self.deleted.alive(self.record.documents)
        mask[list(self.unreadable)] = False
        return [int(number) for number in np.flatnonzero(mask)]


@dataclass(frozen=True)
class RepairPlan:
    """What a repair does: nothing, rewrite segments, or return to an older generation."""

    generation: int  # the newest one
    action: str  # "none", "rewrite", "return" or "impossible"
    target: int | None = None  # of "return"
    kept: int = 0
    lost: int | None = 0  # documents; None when the number is unknown
    lost_ids: tuple[str, ...] = ()
    manifest: Manifest | None = None
    states: tuple[SegmentState, ...] = field(default=(), repr=False)

    @property
    def loses_documents(self) -> bool:
        """Whether documents or changes are lost."""
        return self.lost != 0


def plan_repair(storage: Storage, encode: EncodeDocuments | None = None) -> RepairPlan:
    """Read the newest generation and decide how to repair it, without changing anything."""
    with resource_errors(storage.location):
        numbers = generations(storage)
        newest = numbers[-1]
        if is_whole(storage, newest):
            return RepairPlan(newest, "none")
        older = next((number for number in reversed(numbers[:-1]) if is_whole(storage, number)), None)
        try:
            manifest = read_manifest(storage, newest)
            states = tuple(_states(storage, manifest))
        except CorruptIndexError:  # the manifest or the deletions
            return _plan_return(storage, newest, older)
        plan = _plan_rewrite(manifest, states, _can_rebuild(manifest.settings, encode))
        if plan.loses_documents and older is not None and _has_all(storage, older, manifest, plan):
            return RepairPlan(newest, "return", older, manifest.documents)
        if any(state.needs_rebuild for state in states):
            _require_encoder(manifest.settings, encode, storage.location)
        if any(state.lacks_words for state in states):
            matching_analyser(manifest.settings, storage.location)
        return plan


def repair(
    storage: Storage,
    accept_loss: bool = False,
    encode: EncodeDocuments | None = None,
    memory: int = DEFAULT_MEMORY,
) -> RepairPlan:
    """Repair the newest generation; raises RepairLossError if that loses documents.

    `accept_loss` repairs it nevertheless. `encode` is the model of the index, to rebuild lists from texts."""
    lock = storage.lock()
    try:
        plan = plan_repair(storage, encode)
        if plan.action == "impossible":
            raise CorruptIndexError(
                storage.location, "index", "no document can be saved: build the index again"
            )
        if plan.loses_documents and not accept_loss:
            raise RepairLossError(
                f"{storage.location}: {loss_message(plan)}; nothing was changed: repeat it with --yes"
            )
        if plan.action == "return":
            _return_to(storage, plan)
        elif plan.action == "rewrite":
            with resource_errors(storage.location):
                _rewrite(storage, plan, encode, memory)
        return plan
    finally:
        lock.release()


def loss_message(plan: RepairPlan, limit: int = 10) -> str:
    """Describe what a repair keeps and loses, with the first ids.

    >>> loss_message(RepairPlan(4, "rewrite", kept=9, lost=1, lost_ids=("d7",)))
    'repair keeps 9 documents and loses 1: d7'
    """
    if not plan.loses_documents:
        return f"repair keeps all {plan.kept:,} documents"
    if plan.lost is None:
        state = f"generation {plan.target} with {plan.kept:,} documents"
        return f"repair returns to {state} and loses what came after it"
    ids = ", ".join(plan.lost_ids[:limit]) or "their ids cannot be read"
    more = f", and {plan.lost - limit:,} more" if plan.lost > limit and plan.lost_ids else ""
    return f"repair keeps {plan.kept:,} documents and loses {plan.lost:,}: {ids}{more}"


# -- state of the segments


def _states(storage: Storage, manifest: Manifest) -> Iterator[SegmentState]:
    tombstones = _tombstones(storage, manifest)
    _codebook(storage, manifest)  # vectors cannot be decoded without it
    for record in manifest.segments:
        state = _state(storage, manifest.index_id, record, tombstones.get(_file_id(record), NOTHING_DELETED))
        yield _without_damaged_graph(storage, manifest.index_id, state)


def _without_damaged_graph(storage: Storage, index_id: str, state: SegmentState) -> SegmentState:
    """Drop a graph that is missing or damaged: `citadel optimize` builds it again."""
    if state.record.graph_file is None or not state.is_whole or state.segment is None:
        return state
    if _attempt(lambda: _is_graph_whole(storage, state.segment, index_id)):
        return state
    return replace(state, record=replace(state.record, graph_file=None))


def _state(storage: Storage, index_id: str, record: SegmentRecord, deleted: Deleted) -> SegmentState:
    opened = _attempt(lambda: _open(storage, record, index_id))
    segment = opened or _first_readable(storage, record, index_id)
    store = (
        segment.store
        if segment
        else _attempt(lambda: DocumentStore(storage, record.documents_file, index_id, record.documents))
    )
    if store is None:
        return SegmentState(record, deleted, None, None, (), is_whole=False)
    unreadable = tuple(_unreadable(store, np.flatnonzero(deleted.alive(record.documents)).tolist()))
    lists = segment if segment and _attempt(lambda: _check_segment(segment, storage)) else None
    is_whole = lists is not None and lists is opened and bool(_attempt(lambda: _check_store(lists, storage)))
    return SegmentState(record, deleted, lists, store, unreadable, is_whole)


def _first_readable(storage: Storage, record: SegmentRecord, index_id: str) -> Segment | None:
    """A segment without its columns, its word lists or both, which are made again from the documents."""
    columns, words = {"columns_file": None, "has_columns": False}, {"words": None}
    for dropped in (columns, words, columns | words):
        rest = replace(record, **dropped)
        segment = _attempt(partial(_open, storage, rest, index_id))
        if segment is not None:
            return segment
    return None


def _open(storage: Storage, record: SegmentRecord, index_id: str) -> Segment:
    """Open a segment and check its word lists."""
    segment = Segment(storage, record, index_id)
    check_words(segment, storage)
    return segment


def _is_graph_whole(storage: Storage, segment: Segment | None, index_id: str) -> bool:
    assert segment is not None  # the caller has it
    check_graph(storage, segment, index_id)
    return True


def _check_segment(segment: Segment, storage: Storage) -> bool:
    with whole_files([segment.file]):
        segment.file.check()
        check_lists(segment, storage)
        check_tokens(segment, None)
    return True


def _check_store(segment: Segment, storage: Storage) -> bool:
    with whole_files([segment.file]):
        check_file(storage, segment.record.documents_file)
        check_documents(segment)
        check_columns(segment, storage)
    return True


def _attempt(read: Callable[[], T]) -> T | None:
    """The result of `read`, or None if what it reads is damaged; a failing disk raises."""
    try:
        return read()
    except ResourceError:
        raise
    except (CitadelError, OSError):
        return None


def _unreadable(store: DocumentStore, numbers: Sequence[int]) -> Iterator[int]:
    for start in range(0, len(numbers), _ROWS_PER_READ):
        part = numbers[start : start + _ROWS_PER_READ]
        if _attempt(lambda part=part: list(store.rows(part))) is None:  # type: ignore[misc]
            yield from (n for n in part if _attempt(lambda n=n: list(store.rows([n]))) is None)  # type: ignore[misc]


def _tombstones(storage: Storage, manifest: Manifest) -> Tombstones:
    if manifest.deletions is None:
        return {}
    extents = {
        _file_id(record): Extent(record.documents, 1 << 32, _ALL_TOKENS) for record in manifest.segments
    }
    CitFile(storage, manifest.deletions, "tombstones", manifest.index_id).check()
    return read_tombstones(storage, manifest.deletions, manifest.index_id, extents)


def _codebook(storage: Storage, manifest: Manifest) -> AnyCodebook | None:
    record, lexical = manifest.codebook, manifest.settings.lexical
    if record is None or lexical is None:
        return None
    CitFile(storage, record, "codebook", manifest.index_id).check()
    return read_book(storage, record, manifest.index_id, lexical)


def _file_id(record: SegmentRecord) -> str:
    return record.file.name[4:-4]


# -- plans


def _plan_return(storage: Storage, newest: int, older: int | None) -> RepairPlan:
    kept = 0 if older is None else read_manifest(storage, older).documents
    if not kept:
        return RepairPlan(newest, "impossible")
    return RepairPlan(newest, "return", older, kept, lost=None)


def _can_rebuild(settings: Settings, encode: EncodeDocuments | None) -> bool:
    """Whether lists can be rebuilt, with the analyser or the model of the index."""
    if settings.analyser is not None:
        return get_analyser(settings.analyser, settings.fingerprint).fingerprint == settings.fingerprint
    return settings.model is not None and encode is not None


def _require_encoder(settings: Settings, encode: EncodeDocuments | None, location: str) -> None:
    """Raise FingerprintError if documents are lost only because their analyser or model is missing here."""
    if settings.analyser is not None:
        matching_analyser(settings, location)
    elif settings.model is not None and encode is None:
        raise FingerprintError(
            f"damaged lists can be rebuilt only with the model {model_name(settings.model)[:60]!r} "
            f"(fingerprint {settings.fingerprint[:12]}…): name its folder with --model DIR or CITADEL_MODEL",
            location,
        )


def _plan_rewrite(manifest: Manifest, states: tuple[SegmentState, ...], can_rebuild: bool) -> RepairPlan:
    lost, ids = 0, list[str]()
    for state in states:
        numbers, names = _lost(state, can_rebuild)
        lost += numbers
        ids += names
    kept = manifest.documents - lost
    action = "rewrite" if kept or not manifest.documents else "impossible"
    return RepairPlan(manifest.generation, action, None, kept, lost, tuple(ids), manifest, states)


def _lost(state: SegmentState, can_rebuild: bool) -> tuple[int, list[str]]:
    """The number of lost documents of a segment, and those of their ids that can be read."""
    if state.store is None or (state.segment is None and not can_rebuild):
        readable = state.live_readable() if state.store else []
        return state.live, [row[1] for row in state.store.rows(readable)] if state.store else []
    known = state.segment.ids(list(state.unreadable)) if state.segment else []
    return len(state.unreadable), known


def _has_all(storage: Storage, older: int, manifest: Manifest, plan: RepairPlan) -> bool:
    """Whether an older generation has the same documents, as before a merge."""
    before = Snapshot(storage, read_manifest(storage, older))
    same = len(before) == manifest.documents and len(plan.lost_ids) == plan.lost
    return same and len(before.locate(plan.lost_ids)) == len(plan.lost_ids)


# -- changes


def _return_to(storage: Storage, plan: RepairPlan) -> None:
    for number in reversed(generations(storage)):
        if plan.target is not None and number > plan.target:
            storage.remove(f"gen.{number:08d}")
    storage.sync()


def _rewrite(storage: Storage, plan: RepairPlan, encode: EncodeDocuments | None, memory: int) -> None:
    """Write the next generation from intact data and remove the damaged one."""
    manifest, records, tombstones = plan.manifest, list[SegmentRecord](), dict[str, Deleted]()
    assert manifest is not None
    rewriter = _Rewriter(storage, manifest.settings, _codebook(storage, manifest), encode, memory)
    for state in plan.states:
        if state.is_whole:
            records.append(state.record)
            if len(state.deleted.documents):
                tombstones[_file_id(state.record)] = state.deleted
        else:
            contents = rewriter.contents(state)
            records += [write_contents(storage, manifest.index_id, part) for part in contents]
    record = (
        write_tombstones(storage, manifest.index_id, uuid.uuid4().hex, tombstones) if tombstones else None
    )
    following = replace(
        manifest,
        generation=manifest.generation + 1,
        segments=tuple(records),
        deletions=record,
        deleted=sum(len(part.documents) for part in tombstones.values()),
    )
    storage.sync()
    write_manifest(storage, following)
    collect(storage, keep=1)


@dataclass(frozen=True)
class _Rewriter:
    """Makes the contents of new segments from the readable documents of damaged ones."""

    storage: Storage
    settings: Settings
    codebook: AnyCodebook | None
    encode: EncodeDocuments | None
    memory: int

    def contents(self, state: SegmentState) -> Iterator[MergedContents | MemoryContents | RekeyedContents]:
        """The readable documents of a damaged segment."""
        if state.store is None or not state.live_readable():
            return
        if state.segment is None:
            yield from self._rebuilt(state)
            return
        if state.lacks_words:
            yield from self._with_new_words(state, state.segment)
            return
        gone = Deleted(union_of(state.deleted.documents, np.array(state.unreadable, np.uint32)))
        if isinstance(self.codebook, CentroidBook) and not state.segment.meta.has_centroids:
            yield from rekeyed(state.segment, gone, self.codebook, None, self.memory, self.storage)
            return
        yield self._copied(state.segment, gone)

    def _copied(
        self, segment: Segment, gone: Deleted, words: MemoryContents | None = None
    ) -> MergedContents | RekeyedContents:
        if isinstance(self.codebook, CentroidBook) and not segment.meta.has_centroids:
            return RekeyedContents(
                segment, np.flatnonzero(gone.alive(segment.documents)), self.codebook, None, words
            )
        codec, books = stored_codec(self.settings, self.codebook), (self.codebook, self.codebook)
        return MergedContents([segment], [gone], codec, *books, self.memory, self.storage, words)

    def _with_new_words(
        self, state: SegmentState, segment: Segment
    ) -> Iterator[MergedContents | RekeyedContents]:
        """A segment with word lists from its texts, as several segments within the memory bound."""
        assert self.settings.words is not None and state.store is not None
        words, numbers = self.settings.words.settings(), list[int]()
        buffer, analyser = Buffer(words, None, None, self.memory), matching_analyser(words, "")
        for number in state.live_readable():
            [document] = state.store.get([number])
            is_full = buffer.bytes > self.memory // BUFFER_SHARE or len(numbers) >= _DOCUMENTS_PER_SEGMENT
            if numbers and is_full:
                yield self._copied(segment, _all_but(segment, numbers), buffer.contents(None))
                buffer, numbers = Buffer(words, None, None, self.memory), []
            buffer.add_terms(document, analyser.windows(document.encoded_text))
            numbers.append(number)
        if numbers:
            yield self._copied(segment, _all_but(segment, numbers), buffer.contents(None))

    def _rebuilt(self, state: SegmentState) -> Iterator[MemoryContents]:
        """Rebuild the lists of a segment from its texts, as segments within the memory bound."""
        limit = self.memory // BUFFER_SHARE
        buffer = Buffer(self.settings, self.codebook, None, self.memory)
        for item in self._items(state):
            is_full = buffer.bytes + _estimated_bytes(item) > limit or len(buffer) >= _DOCUMENTS_PER_SEGMENT
            if len(buffer) and is_full:
                yield buffer.contents(self.codebook)
                buffer = Buffer(self.settings, self.codebook, None, self.memory)
            add_item(buffer, item)
        if len(buffer):
            yield buffer.contents(self.codebook)

    def _items(self, state: SegmentState) -> Iterable[Item]:
        """The readable documents of a segment, analysed or encoded as they are read."""
        store = state.store
        assert store is not None
        # One at a time: a document may take as much memory as a whole batch of short ones.
        documents = (document for number in state.live_readable() for document in store.get([number]))
        if self.settings.router == "bm25":
            analyser = matching_analyser(self.settings, self.storage.location)
            return (AnalysedDocument(document, analyser) for document in documents)
        if self.settings.model is None or self.encode is None:
            return ()  # counted as lost in the plan
        return self.encode(documents)


def _all_but(segment: Segment, numbers: Sequence[int]) -> Deleted:
    mask = np.ones(segment.documents, np.bool_)
    mask[list(numbers)] = False
    return Deleted(np.flatnonzero(mask).astype(np.uint32))


def _estimated_bytes(item: Item) -> int:
    """Estimate the memory of an item in a buffer."""
    expected = expected_bytes(item.document) if isinstance(item, AnalysedDocument) else 0
    return max(item_bytes(item), expected)
