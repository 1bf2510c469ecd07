"""Tombstones: deleted documents and, for bm25, their share of the collection statistics."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from citadel.index.container import CitFile, CitWriter, FileRecord
from citadel.index.storage import Storage

_NONE = np.zeros(0, np.uint32)


@dataclass(frozen=True)
class Deleted:
    """The deleted documents of a segment, with their terms and tokens (bm25).

    >>> Deleted(np.array([0, 9], np.uint32)).bitmap(10).tolist()
    [1, 2]
    """

    documents: NDArray[np.uint32]  # ascending
    term_ranks: NDArray[np.uint32] = field(default_factory=lambda: _NONE)
    term_counts: NDArray[np.uint32] = field(default_factory=lambda: _NONE)
    removed_length: int = 0

    def bitmap(self, documents: int) -> NDArray[np.uint8]:
        """One bit per document, lowest first."""
        return np.packbits(~self.alive(documents), bitorder="little")

    def alive(self, documents: int) -> NDArray[np.bool_]:
        """Whether each document is live [documents]."""
        mask = np.ones(documents, bool)
        mask[self.documents] = False
        return mask


Tombstones = Mapping[str, Deleted]  # by the segment's file id


def write_tombstones(storage: Storage, index_id: str, file_id: str, tombstones: Tombstones) -> FileRecord:
    """Write the deletions of all segments as one file."""
    parts = list(tombstones.values())
    writer = CitWriter(storage, "tombstones", index_id, file_id, sections=8)
    writer.section("META", json.dumps({"documents": sum(len(part.documents) for part in parts)}).encode())
    writer.section("SEGMENTS", b"".join(bytes.fromhex(segment) for segment in tombstones))
    writer.section("DELETED_STARTS", _starts([len(part.documents) for part in parts]))
    writer.section("DELETED_DOCUMENTS", *(part.documents for part in parts))
    writer.section("TERM_STARTS", _starts([len(part.term_ranks) for part in parts]))
    writer.section("TERM_RANKS", *(part.term_ranks for part in parts))
    writer.section("TERM_COUNTS", *(part.term_counts for part in parts))
    writer.section("REMOVED_LENGTHS", np.array([part.removed_length for part in parts], "<u8"))
    return writer.finish()


def _starts(lengths: list[int]) -> NDArray[np.uint64]:
    return np.concatenate([[0], np.cumsum(np.array(lengths, np.uint64))]).astype("<u8")


class Extent(NamedTuple):
    """Upper bounds on what can be deleted from a segment."""

    documents: int
    lists: int = 0  # bm25: terms
    tokens: int = 0  # bm25


def read_tombstones(
    storage: Storage, record: FileRecord, index_id: str, segments: Mapping[str, Extent]
) -> Tombstones:
    """Read the deletions and check them against their segments."""
    file = CitFile(storage, record, "tombstones", index_id)
    raw = file["SEGMENTS"].array(np.uint8).tobytes()
    names = [raw[i : i + 16].hex() for i in range(0, len(raw), 16)]
    if len(set(names)) != len(names) or not set(names) <= segments.keys():
        raise file["SEGMENTS"].corrupt("it names a segment that does not exist, or one twice")
    documents = _split(file, "DELETED_STARTS", "DELETED_DOCUMENTS", len(names))
    ranks = _split(file, "TERM_STARTS", "TERM_RANKS", len(names))
    counts = _split(file, "TERM_STARTS", "TERM_COUNTS", len(names))
    lengths = file["REMOVED_LENGTHS"].sized("<u8", len(names)).tolist()
    parts = [Deleted(*part) for part in zip(documents, ranks, counts, lengths, strict=True)]
    for name, part in zip(names, parts, strict=True):
        _check_part(file, part, segments[name])
    return dict(zip(names, parts, strict=True))


def _check_part(file: CitFile, part: Deleted, extent: Extent) -> None:
    """Check that deleted documents and terms exist, are distinct and within the segment's totals."""
    if not _ascend(part.documents, extent.documents):
        raise file["DELETED_DOCUMENTS"].corrupt("it names a document that does not exist, or one twice")
    if not _ascend(part.term_ranks, extent.lists):
        raise file["TERM_RANKS"].corrupt("it names a term that does not exist, or one twice")
    counts = part.term_counts
    if len(counts) and not 0 < counts.min() <= counts.max() <= len(part.documents):
        raise file["TERM_COUNTS"].corrupt("a term loses no document, or more than are deleted")
    if part.removed_length > extent.tokens:
        raise file["REMOVED_LENGTHS"].corrupt("more tokens are deleted than the segment has")


def _ascend(numbers: NDArray[np.uint32], limit: int) -> bool:
    """Whether numbers ascend strictly and are below a limit."""
    return not len(numbers) or (int(numbers[-1]) < limit and bool((numbers[1:] > numbers[:-1]).all()))


def _split(file: CitFile, starts_name: str, name: str, parts: int) -> list[NDArray[np.uint32]]:
    starts = file[starts_name].sized("<u8", parts + 1).astype(np.int64)
    values = file[name].array("<u4").copy()  # a copy: truncating the file later must not restore documents
    if starts[0] != 0 or starts[-1] != len(values) or (np.diff(starts) < 0).any():
        raise file[starts_name].corrupt("the parts do not follow each other")
    return [values[start:stop] for start, stop in zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True)]
