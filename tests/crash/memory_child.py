"""Build, merge and search an index of given vectors, and print the peak memory of each step."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from citadel import Index

POSTINGS_PER_DOCUMENT, KEYS = 40, 30_000
NUMBERS_PER_BATCH = 1_280_000  # 5 MB, held by the caller


def resident() -> int:
    """Anonymous resident memory in bytes, without the pages of mapped files."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise OSError("/proc/self/status has no RssAnon")


class Peak:
    """Samples the memory every 2 ms in a thread."""

    def __init__(self) -> None:
        self.peaks: dict[str, int] = {}

    @contextmanager
    def of(self, what: str) -> Iterator[None]:
        stop, samples = threading.Event(), [resident()]

        def sample() -> None:
            while not stop.wait(0.002):
                samples.append(resident())

        thread = threading.Thread(target=sample)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()
            self.peaks[what] = max(samples)


def batches(postings: int, dimension: int) -> Iterator[dict[str, Any]]:
    """Documents with vectors; the distribution of keys is skewed."""
    generator = np.random.default_rng(7)
    documents = NUMBERS_PER_BATCH // (dimension * POSTINGS_PER_DOCUMENT)
    size = documents * POSTINGS_PER_DOCUMENT
    for first in range(0, postings // POSTINGS_PER_DOCUMENT, documents):
        keys = (KEYS * generator.random(size, np.float32) ** 4).astype(np.uint32)
        yield {
            "ids": [f"d{number}" for number in range(first, first + documents)],
            "offsets": np.arange(0, size + 1, POSTINGS_PER_DOCUMENT),
            "keys": keys,
            "weights": np.ones(size, np.float32),
            "vectors": generator.standard_normal((size, dimension), np.float32),
        }


def search(index: Index, dimension: int) -> None:
    generator = np.random.default_rng(8)
    searcher = index.searcher(threads=1)
    for _ in range(20):
        keys = generator.integers(0, KEYS // 100, 8).astype(np.uint32)
        vectors = generator.standard_normal((8, dimension)).astype(np.float32)
        assert len(searcher.search_vectors(keys, np.ones(8, np.float32), vectors, k=1000))


def build(index: Index, postings: int, dimension: int) -> None:
    """Add and commit in two parts, so that there is something to merge."""
    for number, batch in enumerate(batches(postings, dimension)):
        index.add_vectors(batch)
        if number == 10:
            index.commit()
    index.commit()


def report_peaks(index: Index, baseline: int, steps: dict[str, Callable[[], object]]) -> None:
    """Run the steps and print the peak memory of each as JSON."""
    peak = Peak()
    for name, step in steps.items():
        with peak.of(name):
            step()
    print(json.dumps({"baseline": baseline, "documents": len(index), "peaks": peak.peaks}))


def main(folder: str, memory: int, postings: int, dimension: int) -> None:
    fields = {"lexical": dimension}
    small = Index.create(f"{folder}/small", fields=fields, fingerprint="test")  # triggers lazy imports
    small.add_vectors(next(batches(1_000, dimension)))
    small.commit().merge()
    search(small, dimension)
    del small
    baseline = resident()
    index = Index.create(f"{folder}/index", fields=fields, fingerprint="test", memory=memory)
    steps: dict[str, Callable[[], object]] = {
        "build": lambda: build(index, postings, dimension),
        "merge": index.merge,
        "search": lambda: search(Index.open(f"{folder}/index"), dimension),
    }
    report_peaks(index, baseline, steps)


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
