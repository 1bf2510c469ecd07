"""Time that a writer takes beside a fast encoder: adding vectors that are given, then one commit.

    python benchmarks/commit.py [--passages 60000] [--memory-mb 1024] [--rounds 5]

Passages of 35 to 84 postings of 32 dimensions, a semantic vector of 384 and 700 letters, in windows as
`citadel index --device cuda` adds them. With less memory they are spilled while they are added. In turns with
one thread per segment; the files are the same.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterator, Sequence

import numpy as np
from common import report

import citadel
from citadel.index import commit
from citadel.types import Document, VectorBatch

WINDOW, VOCABULARY = 4_200, 30_522
FIELDS = {"lexical": {"dimension": 32}, "semantic": {"dimension": 384}}
COLUMNS = ["seconds", "adding", "commit", "longest call", "processor time"]


def windows(passages: int) -> list[VectorBatch]:
    """Windows with texts of their own and the same vectors."""
    generator = np.random.default_rng(0)
    shares = np.cumsum(np.arange(1, VOCABULARY + 1) ** -0.7)
    offsets = np.concatenate([[0], np.cumsum(generator.integers(35, 85, WINDOW))]).astype(np.int64)
    postings = int(offsets[-1])
    keys = np.searchsorted(shares / shares[-1], generator.random(postings)).astype(np.uint32)
    weights = generator.random(postings, dtype=np.float32) + np.float32(0.75)
    vectors = generator.standard_normal((postings, 32), dtype=np.float32)
    semantic = generator.standard_normal((WINDOW, 384), dtype=np.float32)
    letters = "".join(generator.choice(list("etaoin shrdlu"), 1 << 16).tolist())
    made = []
    for first in range(0, passages, WINDOW):
        count = min(WINDOW, passages - first)
        starts = generator.integers(len(letters) - 700, size=count).tolist()
        documents = [
            Document(f"d{first + row}", letters[start : start + 700]) for row, start in enumerate(starts)
        ]
        end = int(offsets[count])
        own = (offsets[: count + 1], keys[:end], weights[:end], vectors[:end], semantic[:count])
        made.append(VectorBatch(documents, *own))
    return made


def build(given: Sequence[VectorBatch], memory: int) -> list[float]:
    """Seconds of adding, of the commit, of the longest call, and of processor time."""
    longest = 0.0

    def timed() -> Iterator[VectorBatch]:
        nonlocal longest
        for window in given:
            start = time.perf_counter()
            yield window
            longest = max(longest, time.perf_counter() - start)

    with (
        tempfile.TemporaryDirectory() as folder,
        citadel.Index.create(
            folder, fields=FIELDS, fingerprint="bench", router="dynamic", tau=0.7, memory=memory
        ) as index,
    ):
        start, processor = time.perf_counter(), time.process_time()
        index._writer.add_vectors(timed())
        added = time.perf_counter()
        index.commit(graph=False)
        ended = time.perf_counter()
        return [added - start, ended - added, longest, time.process_time() - processor]


def main() -> None:
    """Measure in turns and print minima."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--passages", type=int, default=60_000)
    parser.add_argument("--memory-mb", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    given, usual = windows(options.passages), commit.THREADED_DOCUMENTS
    least: dict[str, list[float]] = {}
    for _ in range(options.rounds):
        for name, floor in (("one thread", 1 << 60), ("several threads", usual)):
            commit.THREADED_DOCUMENTS = floor
            times = build(given, options.memory_mb << 20)
            least[name] = [min(pair) for pair in zip(least.get(name, times), times, strict=True)]
    rows = [[name, *times] for name, times in least.items()]
    report("commit", "Adding and committing given vectors", COLUMNS, rows, **vars(options))


if __name__ == "__main__":
    main()
