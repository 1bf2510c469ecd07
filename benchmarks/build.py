"""Build from given vectors: postings per second on one core, peak memory, bytes per posting.

Each codec builds its own index in a fresh process: documents of 60 postings of 32 dimensions with Zipf keys,
generated in batches outside the timed calls. Peak memory is RssAnon (private memory, without pages of mapped
files) above what the process held with one batch before its first call.

    python benchmarks/build.py [--postings 50000000] [--memory-mb 512]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
from common import one_core, report

import citadel

CODECS = ("int8", "pq2", "pq1", "fp16")
DIMENSION, A_DOCUMENT, VOCABULARY = 32, 60, 30_522
BATCH = 5_000  # documents generated at a time
PROMISED = {"int8": 38, "pq2": 12, "pq1": 8}


def private_mb() -> float:
    """Private memory of this process now, in MB."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            return int(line.split()[1]) / 1024
    return 0.0


class Peak(threading.Thread):
    """Watches private memory until stopped."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.highest, self._stop_now = 0.0, threading.Event()

    def run(self) -> None:
        while not self._stop_now.wait(0.005):
            self.highest = max(self.highest, private_mb())

    def stop(self) -> float:
        self._stop_now.set()
        self.join()
        return self.highest


def batch(generator: np.random.Generator, shares: Any, first: int) -> dict[str, Any]:
    rows = BATCH * A_DOCUMENT
    return {
        "ids": [f"d{first + i}" for i in range(BATCH)],
        "offsets": np.arange(BATCH + 1) * A_DOCUMENT,
        "keys": np.searchsorted(shares, generator.random(rows)).astype(np.uint32),
        "weights": generator.random(rows, dtype=np.float32) + np.float32(0.5),
        "vectors": generator.standard_normal((rows, DIMENSION), dtype=np.float32),
    }


def build(codec: str, postings: int, memory: int) -> dict[str, float]:
    """Build one index and measure it."""
    one_core()
    generator = np.random.default_rng(0)
    shares = np.cumsum(np.arange(1, VOCABULARY + 1) ** -0.7)
    shares /= shares[-1]
    with tempfile.TemporaryDirectory() as folder:
        index = citadel.Index.create(
            folder,
            fields={"lexical": {"dimension": DIMENSION, "codec": codec}},
            fingerprint="bench",
            memory=memory,
        )
        first_batch, base = batch(generator, shares, 0), private_mb()
        peak, seconds, done = Peak(), 0.0, 0
        peak.start()
        while done < postings:
            given = batch(generator, shares, done // A_DOCUMENT) if done else first_batch
            start = time.perf_counter()
            index.add_vectors(given)
            seconds += time.perf_counter() - start
            done += BATCH * A_DOCUMENT
            del given  # one batch at a time: batches are the caller's memory, not the index's
            first_batch = {}
        start = time.perf_counter()
        index.commit()
        seconds += time.perf_counter() - start
        built = peak.stop() - base
        stats, again = index.stats(), Peak()
        again.start()
        start = time.perf_counter()
        index.merge()
        merging = time.perf_counter() - start
        merged = index.stats()
        return {
            "postings": stats["postings"],
            "seconds": seconds,
            "segments": stats["segments"],
            "build_mb": built,
            "merge_seconds": merging,
            "merge_mb": again.stop() - base,
            "bytes": merged["bytes_per_posting"],
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--postings", type=int, default=50_000_000)
    parser.add_argument("--memory-mb", type=int, default=512)
    parser.add_argument("--codec", choices=CODECS, help="build only this codec and print JSON")
    options = parser.parse_args()
    if options.codec:
        print(json.dumps(build(options.codec, options.postings, options.memory_mb << 20)))
        return
    rows = []
    for codec in CODECS:
        command = [
            sys.executable,
            __file__,
            "--codec",
            codec,
            "--postings",
            str(options.postings),
            "--memory-mb",
            str(options.memory_mb),
        ]
        found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        rate = found["postings"] / found["seconds"] / 1e6
        rows.append(
            [
                codec,
                found["postings"],
                rate,
                found["segments"],
                options.memory_mb,
                found["build_mb"],
                found["merge_seconds"],
                found["merge_mb"],
                found["bytes"],
                PROMISED.get(codec, "–"),
            ]
        )
    columns = [
        "codec",
        "postings",
        "M postings/s",
        "segments",
        "bound MB",
        "build peak MB",
        "merge s",
        "merge peak MB",
        "bytes/posting",
        "promised",
    ]
    report("build", f"building from given {DIMENSION}-d vectors, one core", columns, rows)


if __name__ == "__main__":
    main()
