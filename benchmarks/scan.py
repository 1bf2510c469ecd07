"""Token scan of one query at MS MARCO size: native engine, numpy reference, and one pass over the same bytes.

8.84 M documents, 8 query keys, 1.66 M postings of 32 dimensions, one thread, top 1000; then 16 k postings
over the same documents, to show that no work is proportional to the corpus. The floor sums every byte that
the scan reads (document numbers, codes, scales) as 64-bit words in one pass. Runs alternate over several
copies of the lists, so that none of them finds its data in the caches.

    python benchmarks/scan.py [--postings 1660000] [--rounds 15]
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from common import alternate, one_core, report
from numpy.typing import NDArray

from citadel.index import codebook as codebooks
from citadel.index.container import CitFile, FileRecord
from citadel.index.manifest import SegmentRecord
from citadel.index.quantize import encode
from citadel.index.segment import Meta, Segment
from citadel.index.segment_writer import write_segment
from citadel.index.snapshot import NOTHING_DELETED, Snapshot
from citadel.index.storage import FolderStorage
from citadel.search.cpu import CpuEngine
from citadel.search.plan import Options, Plan
from citadel.search.reference import ReferenceEngine
from citadel.settings import Field, Settings

DOCUMENTS, KEYS, DIMENSION, K = 8_841_823, 8, 32, 1000
SCANNED = ("PACKED_DOCUMENTS", "BLOCK_DOCUMENTS", "BLOCK_OFFSETS", "CODES", "SCALES")
INDEX_ID = "0" * 32
COPIES = 6


class ScanLists:
    """Long lists over all documents as a segment; one posting in five repeats its document."""

    def __init__(self, postings: int, codec: str, seed: int = 0) -> None:
        generator = np.random.default_rng(seed)
        size = postings // KEYS
        self.meta = Meta(DOCUMENTS, size * KEYS, "vectors", DIMENSION, codec, 0.02, 0, "int8", DOCUMENTS)
        self.keys = np.arange(KEYS, dtype=np.uint32)
        self.list_lengths = np.full(KEYS, size, np.int64)
        self._lists = np.repeat(self.keys, size)
        drawn = [np.sort(generator.integers(0, DOCUMENTS, size)) for _ in range(KEYS)]
        for documents in drawn:
            repeated = np.flatnonzero(generator.random(size - 1) < 0.2) + 1
            documents[repeated] = documents[repeated - 1]
        vectors = generator.standard_normal((size * KEYS, DIMENSION), dtype=np.float32)
        self.book = codebooks.train(vectors[:65_536], self._lists[:65_536], 4) if codec == "pq2" else None
        coded = encode(codec, vectors, self._lists, self.book)
        self._rows: dict[str, NDArray[Any]] = {
            "DOCUMENTS": np.concatenate(drawn).astype(np.uint32),
            "WEIGHTS": generator.integers(1, 255, size * KEYS).astype(np.uint8),
            "CODES": coded.codes,
        }
        if coded.scales is not None:
            self._rows["SCALES"] = coded.scales

    def rows(self, name: str) -> Iterator[tuple[NDArray[np.uint32], NDArray[Any]]]:
        yield self._lists, self._rows[name]

    def ids(self) -> Iterator[tuple[list[bytes], NDArray[np.uint64]]]:
        yield from ()  # unused here, and 8.84 M ids take longer to write than everything else

    def passage_counts(self) -> Iterator[NDArray[np.uint32]]:
        yield from ()

    def passage_spans(self) -> Iterator[NDArray[np.uint32]]:
        yield from ()

    def terms(self) -> tuple[NDArray[np.uint32], list[bytes]]:
        return np.zeros(0, np.uint32), []

    def lengths(self) -> Iterator[NDArray[np.uint32]]:
        yield from ()

    def semantic(self, name: str) -> Iterator[NDArray[Any]]:
        yield from ()

    def semantic_vectors(self, start: int, stop: int) -> NDArray[np.float32]:
        return np.zeros((stop - start, 0), np.float32)


class BareSegment(Segment):
    """A segment without ids and texts of documents."""

    def __init__(self, file: CitFile, meta: Meta) -> None:
        self.file, self.meta, self.name = file, meta, file.name
        self.documents, self.passages = meta.documents, meta.passages
        self.lists = len(file["KEYS"].data) // 4
        nothing = FileRecord("", 0, 0)
        self.record = SegmentRecord(nothing, nothing, meta.documents, meta.postings)


class BareSnapshot(Snapshot):
    """A bare segment as a whole index."""

    def __init__(self, segment: Segment, book: codebooks.Codebook | None) -> None:
        self.segments, self.codebook, self.tombstones = [segment], book, {}
        self._number()
        self.settings = Settings("dynamic", "bench", Field(DIMENSION, segment.meta.codec))

    def __len__(self) -> int:
        return self.segments[0].documents

    def deleted(self, segment: Segment) -> Any:
        return NOTHING_DELETED


def copies_of(folder: str, postings: int, codec: str) -> list[BareSnapshot]:
    """The same lists in several files."""
    contents = ScanLists(postings, codec)
    return [snapshot_of(f"{folder}/{copy}", contents, postings, codec) for copy in range(COPIES)]


def snapshot_of(folder: str, contents: ScanLists, postings: int, codec: str) -> BareSnapshot:
    storage = FolderStorage(folder)
    record = write_segment(
        storage, INDEX_ID, hashlib.md5(f"{postings}{codec}".encode()).hexdigest(), contents
    )
    return BareSnapshot(
        BareSegment(CitFile(storage, record, "segment", INDEX_ID), contents.meta), contents.book
    )


def searches(snapshots: list[BareSnapshot]) -> dict[str, Callable[[], Any]]:
    """The engines and the floor over copies of one snapshot; each call uses the next copy."""
    generator = np.random.default_rng(1)
    vectors = generator.standard_normal((KEYS, DIMENSION), dtype=np.float32)
    plan = Plan(np.arange(KEYS, dtype=np.uint32), np.ones(KEYS, np.float32), vectors)
    options, reference = Options(K), ReferenceEngine(snapshots[0], True, (0, 0))
    natives = [CpuEngine(snapshot, True, (0, 0), 1) for snapshot in snapshots]
    queries, slow = [native.prepare(plan) for native in natives], reference.prepare(plan)
    a, b = natives[0].search(queries[0], options), reference.search(slow, options)
    assert a.numbers.tolist() == b.numbers.tolist() and a.scores.tolist() == b.scores.tolist(), (
        "the engines differ"
    )
    words = [[_words(data) for data in scanned(snapshot)] for snapshot in snapshots]
    turn, pass_ = itertools.cycle(zip(natives, queries, strict=True)), itertools.cycle(words)

    def native() -> Any:
        engine, query = next(turn)
        return engine.search(query, options)

    return {
        "native": native,
        "reference": lambda: reference.search(slow, options),
        "floor": lambda: sum(int(part.sum()) for part in next(pass_)),
    }


def scanned(snapshot: BareSnapshot) -> list[NDArray[np.uint8]]:
    """The sections that a scan reads."""
    file = snapshot.segments[0].file
    return [file[name].data for name in SCANNED if name in file]


def _words(data: NDArray[np.uint8]) -> NDArray[np.uint64]:
    return data[: len(data) // 8 * 8].view(np.uint64)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--postings", type=int, default=1_660_000)
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    one_core()
    cases = [
        ("int8", options.postings),
        ("pq2", options.postings),
        ("fp16", options.postings),
        ("int8", options.postings // 100),
    ]
    with tempfile.TemporaryDirectory() as folder:
        snapshots = {case: copies_of(folder, case[1], case[0]) for case in cases}
        runs = {(case, name): run for case in cases for name, run in searches(snapshots[case]).items()}
        slow = alternate({name: run for name, run in runs.items() if name[1] == "reference"}, 3)
        times = (
            alternate({name: run for name, run in runs.items() if name[1] != "reference"}, options.rounds)
            | slow
        )
    base = times[cases[0], "native"]
    rows = []
    for case in cases:
        native, reference, floor = (times[case, name] for name in ("native", "reference", "floor"))
        size = sum(len(data) for data in scanned(snapshots[case][0]))
        rows.append(
            [
                case[0],
                case[1],
                native * 1e3,
                native / case[1] * 1e9,
                reference * 1e3,
                reference / native,
                size / 1e6,
                floor * 1e3,
                size / floor / 1e9,
                native / floor,
                base / native,
            ]
        )
    columns = [
        "codec",
        "postings",
        "native ms",
        "ns/posting",
        "numpy ms",
        "numpy ÷ native",
        "MB",
        "floor ms",
        "floor GB/s",
        "native ÷ floor",
        "int8 ÷ this",
    ]
    title = f"token scan, {DOCUMENTS:,} documents, {KEYS} keys, {DIMENSION}-d, one thread, top {K}"
    report("scan", title, columns, rows)


if __name__ == "__main__":
    main()
