"""A synthetic index of any size with the scaled lists of a real one, to time queries at that size.

Only the lists that the queries read are generated, with random contents: each as long as the real list would
be if the collection grew to that many documents. Semantic vectors, if any, are generated for all documents.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citadel.index.centroids import Probe
from citadel.index.container import CitFile, FileRecord
from citadel.index.manifest import SegmentRecord
from citadel.index.segment import Meta, Segment
from citadel.index.segment_writer import row_names, write_segment
from citadel.index.snapshot import NOTHING_DELETED, Snapshot
from citadel.index.stats import list_lengths
from citadel.index.storage import FolderStorage
from citadel.types import Floats

CHUNK = 1 << 18  # postings or documents generated at a time
REPEATED = 0.2  # fraction of postings in the same document as the previous posting
_ID, _FILE = "0" * 32, "1" * 32
RowProgress = Callable[[int, int], Any]  # rows done, total rows


def _no_progress(done: int, total: int) -> None:
    """Ignore progress."""


class ScaledLists:
    """The contents of a synthetic segment."""

    def __init__(
        self,
        meta: Meta,
        keys: NDArray[np.uint32],
        sizes: NDArray[np.int64],
        progress: RowProgress = _no_progress,
    ) -> None:
        self.meta, self.keys, self.list_lengths = meta, keys, sizes
        self._progress, self._rows_done = progress, 0

    @property
    def total(self) -> int:
        """Number of rows of all sections."""
        lexical = len(row_names(self.meta)) if self.meta.kind != "none" else 0
        semantic = (1 + (self.meta.semantic_codec == "int8")) if self.meta.semantic_dimension else 0
        return lexical * self.meta.postings + semantic * self.meta.documents

    def _count(self, rows: int) -> None:
        self._rows_done += rows
        self._progress(self._rows_done, self.total)

    def rows(self, name: str) -> Iterator[tuple[NDArray[np.uint32], NDArray[Any]]]:
        for number, size in enumerate(self.list_lengths.tolist()):
            generator = np.random.default_rng((number, len(name)))
            numbers = _documents(generator, self.meta.documents, size) if name == "DOCUMENTS" else None
            for start in range(0, size, CHUNK):
                count = min(CHUNK, size - start)
                values = (
                    numbers[start : start + count]
                    if numbers is not None
                    else self._values(name, generator, count)
                )
                yield np.full(count, number, np.uint32), values
                self._count(count)

    def _values(self, name: str, generator: np.random.Generator, count: int) -> NDArray[Any]:
        if name == "SCALES":
            return np.full(count, 0.01, np.float16)
        if name == "VALUES":
            return generator.random(count, np.float32).astype(np.float16)
        if name == "WEIGHTS":
            return generator.integers(1, 255, count, np.uint8)
        return _codes(generator, self.meta.codec, count, self.meta.code_width)

    def semantic(self, name: str) -> Iterator[NDArray[Any]]:
        generator = np.random.default_rng(len(name))
        for start in range(0, self.meta.documents, CHUNK):
            count = min(CHUNK, self.meta.documents - start)
            if name == "SEMANTIC_SCALES":
                yield np.full(count, 0.01, np.float16)
            else:
                yield _codes(generator, self.meta.semantic_codec, count, self.meta.semantic_dimension)
            self._count(count)

    def semantic_vectors(self, start: int, stop: int) -> Floats:
        # Zeros: `random_probe` only reads their shape.
        return np.zeros((stop - start, self.meta.semantic_dimension), np.float32)

    def ids(self) -> Iterator[tuple[list[bytes], NDArray[np.uint64]]]:
        yield from ()

    def passage_counts(self) -> Iterator[NDArray[np.uint32]]:
        yield from ()

    def passage_spans(self) -> Iterator[NDArray[np.uint32]]:
        yield from ()

    def terms(self) -> tuple[NDArray[np.uint32], list[bytes]]:
        return np.zeros(0, np.uint32), []

    def lengths(self) -> Iterator[NDArray[np.uint32]]:
        yield from ()


def _documents(generator: np.random.Generator, documents: int, size: int) -> NDArray[np.uint32]:
    """Ascending document numbers of one list, some of them repeated."""
    drawn = np.sort(generator.integers(0, documents, size)).astype(np.uint32)
    repeated = np.flatnonzero(generator.random(max(size - 1, 0)) < REPEATED) + 1
    drawn[repeated] = drawn[repeated - 1]
    return np.maximum.accumulate(drawn)


def _codes(generator: np.random.Generator, codec: str, count: int, width: int) -> NDArray[Any]:
    if codec == "fp16":
        return generator.standard_normal((count, width), np.float32).astype(np.float16)
    codes = generator.integers(0, 256, (count, width), np.uint8)
    return codes.view(np.int8) if codec == "int8" else codes


def random_probe(read: Callable[[int, int], Floats], documents: int) -> Probe:
    """Groups of random documents, as large as those of `build_probe`: the same work at search time."""
    width = read(0, 1).shape[1]
    count = int(2 * np.sqrt(documents))
    generator = np.random.default_rng(0)
    starts = np.linspace(0, documents, count + 1).astype(np.uint64)
    centroids = generator.standard_normal((count, width), np.float32)
    return Probe(centroids, starts, generator.permutation(documents).astype(np.uint32))


class SyntheticSegment(Segment):
    """A segment without ids and texts of documents."""

    def __init__(self, file: CitFile, meta: Meta, lists: int) -> None:
        self.file, self.meta, self.name = file, meta, file.name
        self.documents, self.passages, self.lists = meta.documents, meta.passages, lists
        self.record = _record(self)


class SyntheticSnapshot(Snapshot):
    """A synthetic segment as a whole index, with the settings of the real one."""

    def __init__(self, segment: SyntheticSegment, like: Snapshot) -> None:
        self.segments, self.codebook, self.tombstones = [segment], like.codebook, {}
        self._number()
        self.settings, self.storage = like.settings, like.storage
        self.manifest = replace(like.manifest, segments=(segment.record,), deletions=None, deleted=0)

    def __len__(self) -> int:
        return self.segments[0].documents

    def deleted(self, segment: Segment) -> Any:
        return NOTHING_DELETED


def _record(segment: SyntheticSegment) -> SegmentRecord:
    """The segment's manifest record; there is no document store."""
    nothing = FileRecord("", 0, 0)
    return SegmentRecord(nothing, nothing, segment.documents, segment.meta.postings, 0)


def synthetic_index(
    like: Snapshot, documents: int, keys: Sequence[int], folder: str, progress: RowProgress = _no_progress
) -> SyntheticSnapshot:
    """Write an index of `documents` documents: the lists of `keys`, scaled from those of `like`."""
    lengths = list_lengths(like)
    chosen = sorted({int(key) for key in keys if lengths.get(int(key))})
    factor = documents / max(len(like), 1)
    sizes = np.array([max(1, round(lengths[key] * factor)) for key in chosen], np.int64)
    real = like.segments[0].meta
    meta = replace(real, documents=documents, passages=documents, postings=int(sizes.sum()))
    storage = FolderStorage(folder)
    storage.make()
    contents = ScaledLists(meta, np.array(chosen, np.uint32), sizes, progress)
    record = write_segment(storage, _ID, _FILE, contents, random_probe)
    return SyntheticSnapshot(
        SyntheticSegment(CitFile(storage, record, "segment", _ID), meta, len(chosen)), like
    )
