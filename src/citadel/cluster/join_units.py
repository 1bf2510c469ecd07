"""Join the finished units of a shard into an index, the shard."""

from __future__ import annotations

import itertools
import uuid
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from citadel.cluster.encode_unit import EncodedUnit, open_unit
from citadel.cluster.job import Job, digest
from citadel.errors import CorruptIndexError
from citadel.index.failures import resource_errors
from citadel.index.manifest import SegmentRecord
from citadel.index.merge import MergedContents
from citadel.index.root_manifest import SHARD_PREFIX, ShardRecord
from citadel.index.segment import Segment
from citadel.index.segment_writer import write_contents
from citadel.index.shard import publish_shard
from citadel.index.storage import Storage
from citadel.index.tombstones import Deleted
from citadel.settings import Settings

_MERGED_AT_ONCE = 64  # segments


class JoinedShard(NamedTuple):
    """A shard with its settings and counts."""

    record: ShardRecord
    settings: Settings
    counts: dict[str, int]


def join_units(job: Job, shard: int, keys: Sequence[str], settings: Settings) -> JoinedShard:
    """Write a shard from its units, in order; of documents with one id, the last remains.

    The folder's name derives from job and units, so a repeated attempt replaces an unfinished one."""
    name = SHARD_PREFIX + digest(job.key, str(shard), *keys)
    with resource_errors(job.root):
        units = [_open(job, key) for key in keys]
        job.target.remove(name)
        storage = job.target.inside(name)
        storage.make()
        index_id = uuid.uuid4().hex
        segments = [segment for unit in units for segment in unit.snapshot.segments]
        gone = replaced(segments)
        records = _merged(storage, index_id, segments, gone, job.memory)
        generation, order = publish_shard(
            storage, index_id, settings, records, None, _positions(units, gone), job.memory, job.graph
        )
    counts = Counter[str]()
    for unit in units:
        counts.update(unit.snapshot.manifest.counts)
    counts["replaced"] += sum(map(len, gone))
    documents = sum(record.documents for record in records)
    return JoinedShard(ShardRecord(name, index_id, generation, documents, order), settings, dict(counts))


def _open(job: Job, key: str) -> EncodedUnit:
    try:
        return open_unit(job, key)
    except (CorruptIndexError, FileNotFoundError) as error:
        job.work.remove(f"unit-{key}")
        reason = f"a unit was damaged and is removed ({error}); rerun the same command to encode it again"
        raise CorruptIndexError(f"unit-{key}", "unit", reason) from error


def replaced(segments: Sequence[Segment]) -> list[NDArray[np.uint32]]:
    """Per segment, the documents whose id occurs again later."""
    if not segments:
        return []
    hashes = np.concatenate([segment.file["ID_HASHES"].array("<u8") for segment in segments])
    numbers = np.concatenate([segment.file["ID_NUMBERS"].array("<u4") for segment in segments])
    owners = np.repeat(np.arange(len(segments)), [segment.documents for segment in segments])
    order = np.lexsort((numbers, owners, hashes))
    starts = np.flatnonzero(np.r_[True, hashes[order][1:] != hashes[order][:-1]])
    gone: list[list[int]] = [[] for _ in segments]
    for start, stop in itertools.pairwise([*starts.tolist(), len(order)]):
        if stop - start > 1:
            run = [(int(owners[i]), int(numbers[i])) for i in order[start:stop].tolist()]
            for owner, number in _earlier(segments, run):
                gone[owner].append(number)
    return [np.array(sorted(each), np.uint32) for each in gone]


def _earlier(segments: Sequence[Segment], run: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Of documents with one hash, in order, those whose id occurs again."""
    last: dict[str, tuple[int, int]] = {}
    earlier = []
    for owner, number in run:
        [id] = segments[owner].ids([number])
        if id in last:
            earlier.append(last[id])
        last[id] = (owner, number)
    return earlier


def _positions(units: Sequence[EncodedUnit], gone: Sequence[NDArray[np.uint32]]) -> list[NDArray[np.uint64]]:
    """The positions of the documents that remain."""
    kept, rest = [], iter(gone)
    for unit in units:
        for segment, base in zip(unit.snapshot.segments, unit.snapshot.bases.tolist(), strict=False):
            alive = np.ones(segment.documents, np.bool_)
            alive[next(rest)] = False
            kept.append(unit.positions[base : base + segment.documents][alive])
    return kept


def _merged(
    storage: Storage,
    index_id: str,
    segments: Sequence[Segment],
    gone: Sequence[NDArray[np.uint32]],
    memory: int,
) -> tuple[SegmentRecord, ...]:
    """Merge segments into one, at most _MERGED_AT_ONCE at a time."""
    deleted, temporary = [Deleted(numbers) for numbers in gone], list[SegmentRecord]()
    while True:
        parts = [
            (segments[start : start + _MERGED_AT_ONCE], deleted[start : start + _MERGED_AT_ONCE])
            for start in range(0, len(segments), _MERGED_AT_ONCE)
        ]
        records = [
            write_contents(
                storage, index_id, MergedContents(own, dead, own[0].meta.codec, None, None, memory, storage)
            )
            for own, dead in parts
            if sum(segment.documents for segment in own) > sum(len(each.documents) for each in dead)
        ]
        for record in (file for one in temporary for file in one.files()):
            storage.remove(record.name)
        if len(records) <= 1:
            return tuple(records)
        temporary, segments = records, [Segment(storage, record, index_id) for record in records]
        deleted = [Deleted(np.zeros(0, np.uint32)) for _ in segments]
