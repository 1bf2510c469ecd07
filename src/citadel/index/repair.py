"""Repair of a damaged index: keep every document that can be read, list those that cannot.

Damaged segments are rewritten without the damaged documents. Where the lists of a segment are damaged but its
texts are whole, the lists are built again from the texts. Where neither helps, the generation before is used.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

import numpy as np

from citadel.errors import CitadelError, CorruptIndexError, RepairLossError, ResourceError
from citadel.index.buffer import Buffer, MemoryContents, stored_codec
from citadel.index.check import check_documents, check_file, check_lists, is_whole
from citadel.index.codebook import Codebook, read_codebook
from citadel.index.container import CitFile
from citadel.index.deletion import union_of
from citadel.index.documents import DocumentStore, write_documents
from citadel.index.garbage import collect
from citadel.index.manifest import Manifest, SegmentRecord, generations, read_manifest, write_manifest
from citadel.index.mapping import whole_files
from citadel.index.merge import MergedContents
from citadel.index.segment import Segment
from citadel.index.segment_writer import write_segment
from citadel.index.snapshot import NOTHING_DELETED, Snapshot
from citadel.index.storage import Storage, resource_errors
from citadel.index.tombstones import Deleted, Extent, Tombstones, read_tombstones, write_tombstones
from citadel.settings import DEFAULT_MEMORY, SUBVECTOR
from citadel.text.analyser import get_analyser
from citadel.types import Document, VectorBatch

T = TypeVar("T")
EncodeDocuments = Callable[[Iterable[Document]], Iterable[VectorBatch]]
_ROWS_PER_READ = 128
_ALL_TOKENS = (1 << 63) - 1


@dataclass(frozen=True)
class SegmentState:
    """What is left of one segment: `segment` when its lists are whole, `store` when its database opens."""

    record: SegmentRecord
    deleted: Deleted
    segment: Segment | None
    store: DocumentStore | None
    unreadable: tuple[int, ...]  # live documents whose rows are damaged
    is_whole: bool

    @property
    def live(self) -> int:
        return self.record.documents - len(self.deleted.documents)

    def live_readable(self) -> list[int]:
        """Numbers of the live documents whose rows are whole."""
        mask = self.deleted.alive(self.record.documents)
        mask[list(self.unreadable)] = False
        return [int(number) for number in np.flatnonzero(mask)]


@dataclass(frozen=True)
class RepairPlan:
    """What a repair would do: nothing, rewrite segments, or return to the generation before."""

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
    """Read the newest generation and decide how to repair it; changes nothing."""
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
        plan = _plan_rewrite(manifest, states, encode)
        if plan.loses_documents and older is not None and _has_all(storage, older, manifest, plan):
            return RepairPlan(newest, "return", older, manifest.documents)
        return plan


def repair(
    storage: Storage,
    accept_loss: bool = False,
    encode: EncodeDocuments | None = None,
    memory: int = DEFAULT_MEMORY,
) -> RepairPlan:
    """Repair the newest generation; RepairLossError when documents would be lost and `accept_loss` is False."""
    lock = storage.lock()
    try:
        plan = plan_repair(storage, encode)
        if plan.action == "impossible":
            raise CorruptIndexError(storage.location, "index", "no document can be saved: build the index again")
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
    """What a repair loses, with the first ids.

    >>> loss_message(RepairPlan(4, "rewrite", kept=9, lost=1, lost_ids=("d7",)))
    'repair keeps 9 documents and loses 1: d7'
    """
    if not plan.loses_documents:
        return f"repair keeps all {plan.kept:,} documents"
    if plan.lost is None:
        return f"repair returns to generation {plan.target} with {plan.kept:,} documents and loses what came after it"
    ids = ", ".join(plan.lost_ids[:limit]) or "their ids cannot be read"
    more = f", and {plan.lost - limit:,} more" if plan.lost > limit and plan.lost_ids else ""
    return f"repair keeps {plan.kept:,} documents and loses {plan.lost:,}: {ids}{more}"


# -- reading what is left ----------------------------------------------------------------------------------------------


def _states(storage: Storage, manifest: Manifest) -> Iterator[SegmentState]:
    tombstones = _tombstones(storage, manifest)
    _codebook(storage, manifest)  # codes are worth nothing without it
    for record in manifest.segments:
        yield _state(storage, manifest.index_id, record, tombstones.get(_file_id(record), NOTHING_DELETED))


def _state(storage: Storage, index_id: str, record: SegmentRecord, deleted: Deleted) -> SegmentState:
    segment = _attempt(lambda: Segment(storage, record, index_id))
    store = (
        segment.store
        if segment
        else _attempt(lambda: DocumentStore(storage, record.documents_file, index_id, record.documents))
    )
    if store is None:
        return SegmentState(record, deleted, None, None, (), is_whole=False)
    unreadable = tuple(_unreadable(store, np.flatnonzero(deleted.alive(record.documents)).tolist()))
    lists = segment if segment and _attempt(lambda: _check_segment(segment, storage)) else None
    is_whole = lists is not None and bool(_attempt(lambda: _check_store(lists, storage)))
    return SegmentState(record, deleted, lists, store, unreadable, is_whole)


def _check_segment(segment: Segment, storage: Storage) -> bool:
    with whole_files([segment.file]):
        segment.file.check()
        check_lists(segment, storage)
    return True


def _check_store(segment: Segment, storage: Storage) -> bool:
    with whole_files([segment.file]):
        check_file(storage, segment.record.documents_file)
        check_documents(segment)
    return True


def _attempt(read: Callable[[], T]) -> T | None:
    """The result, or None when what is read is damaged; a failing disk is an error."""
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
    extents = {_file_id(record): Extent(record.documents, 1 << 32, _ALL_TOKENS) for record in manifest.segments}
    CitFile(storage, manifest.deletions, "tombstones", manifest.index_id).check()
    return read_tombstones(storage, manifest.deletions, manifest.index_id, extents)


def _codebook(storage: Storage, manifest: Manifest) -> Codebook | None:
    record, lexical = manifest.codebook, manifest.settings.lexical
    if record is None or lexical is None:
        return None
    CitFile(storage, record, "codebook", manifest.index_id).check()
    return read_codebook(storage, record, manifest.index_id, lexical.dimension, SUBVECTOR.get(lexical.codec, 1))


def _file_id(record: SegmentRecord) -> str:
    return record.file.name[4:-4]


# -- plans -------------------------------------------------------------------------------------------------------------


def _plan_return(storage: Storage, newest: int, older: int | None) -> RepairPlan:
    kept = 0 if older is None else read_manifest(storage, older).documents
    if not kept:
        return RepairPlan(newest, "impossible")
    return RepairPlan(newest, "return", older, kept, lost=None)


def _plan_rewrite(manifest: Manifest, states: tuple[SegmentState, ...], encode: EncodeDocuments | None) -> RepairPlan:
    can_rebuild = manifest.settings.router == "bm25" or (manifest.settings.model is not None and encode is not None)
    lost, ids = 0, list[str]()
    for state in states:
        numbers, names = _lost(state, can_rebuild)
        lost += numbers
        ids += names
    kept = manifest.documents - lost
    action = "rewrite" if kept or not manifest.documents else "impossible"
    return RepairPlan(manifest.generation, action, None, kept, lost, tuple(ids), manifest, states)


def _lost(state: SegmentState, can_rebuild: bool) -> tuple[int, list[str]]:
    """How many documents of a segment cannot be kept, and those of their ids that can be read."""
    if state.store is None or (state.segment is None and not can_rebuild):
        readable = state.live_readable() if state.store else []
        return state.live, [row[1] for row in state.store.rows(readable)] if state.store else []
    known = state.segment.ids(list(state.unreadable)) if state.segment else []
    return len(state.unreadable), known


def _has_all(storage: Storage, older: int, manifest: Manifest, plan: RepairPlan) -> bool:
    """Whether the generation before holds the same documents, as before a merge."""
    before = Snapshot(storage, read_manifest(storage, older))
    same = len(before) == manifest.documents and len(plan.lost_ids) == plan.lost
    return same and len(before.locate(plan.lost_ids)) == len(plan.lost_ids)


# -- changes -----------------------------------------------------------------------------------------------------------


def _return_to(storage: Storage, plan: RepairPlan) -> None:
    for number in reversed(generations(storage)):
        if plan.target is not None and number > plan.target:
            storage.remove(f"gen.{number:08d}")
    storage.sync()


def _rewrite(storage: Storage, plan: RepairPlan, encode: EncodeDocuments | None, memory: int) -> None:
    """Write the next generation from what is left and remove the damaged one."""
    manifest, records, tombstones = plan.manifest, list[SegmentRecord](), dict[str, Deleted]()
    assert manifest is not None
    codebook = _codebook(storage, manifest)
    for state in plan.states:
        if state.is_whole:
            records.append(state.record)
            if len(state.deleted.documents):
                tombstones[_file_id(state.record)] = state.deleted
        else:
            contents = _contents(storage, manifest, state, codebook, encode, memory)
            records += [_write(storage, manifest.index_id, part) for part in contents]
    record = write_tombstones(storage, manifest.index_id, uuid.uuid4().hex, tombstones) if tombstones else None
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


def _contents(
    storage: Storage,
    manifest: Manifest,
    state: SegmentState,
    codebook: Codebook | None,
    encode: EncodeDocuments | None,
    memory: int,
) -> Iterator[MergedContents | MemoryContents]:
    """The readable documents of a damaged segment."""
    if state.store is None or not state.live_readable():
        return
    if state.segment is None:
        yield from _rebuilt(manifest, state, codebook, encode, memory)
        return
    gone = Deleted(union_of(state.deleted.documents, np.array(state.unreadable, np.uint32)))
    codec = stored_codec(manifest.settings, codebook)
    yield MergedContents([state.segment], [gone], codec, codebook, codebook, memory, storage)


def _rebuilt(
    manifest: Manifest,
    state: SegmentState,
    codebook: Codebook | None,
    encode: EncodeDocuments | None,
    memory: int,
) -> Iterator[MemoryContents]:
    """The lists of a segment, built again from its texts."""
    settings, numbers = manifest.settings, state.live_readable()
    assert state.store is not None
    for start in range(0, len(numbers), _ROWS_PER_READ * 64):
        buffer = Buffer(settings, codebook, None, memory)
        documents = state.store.get(numbers[start : start + _ROWS_PER_READ * 64])
        if settings.router == "bm25" and settings.analyser is not None:
            analyser = get_analyser(settings.analyser)
            for document in documents:
                buffer.add_terms(document, analyser.windows(document.encoded_text))
        elif encode is not None:
            for batch in encode(documents):
                buffer.add_batch(batch)
        if len(buffer):
            yield buffer.contents(codebook)


def _write(storage: Storage, index_id: str, contents: MemoryContents | MergedContents) -> SegmentRecord:
    file_id = uuid.uuid4().hex
    file = write_segment(storage, index_id, file_id, contents)
    documents = write_documents(storage, index_id, file_id, contents.document_rows())
    return SegmentRecord(file, documents, contents.meta.documents, contents.meta.postings, contents.total_length)
