"""Build an index from an .npz file with the command line, and print the peak memory."""

from __future__ import annotations

import contextlib
import json
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from citadel import Index
from citadel.cli.main import run
from tests.crash.memory_child import KEYS, POSTINGS_PER_DOCUMENT, Peak, resident

ROWS_PER_BLOCK = 40_000


def write(path: Path, postings: int, dimension: int, method: int) -> None:
    """Write a corpus of given vectors in blocks."""
    documents = postings // POSTINGS_PER_DOCUMENT
    generator = np.random.default_rng(7)
    with zipfile.ZipFile(path, "w", method, compresslevel=1) as archive:
        save(archive, "ids", np.array([f"d{number}" for number in range(documents)]))
        save(archive, "offsets", np.arange(0, postings + 1, POSTINGS_PER_DOCUMENT))
        save(archive, "keys", (KEYS * generator.random(postings, np.float32) ** 4).astype(np.uint32))
        with archive.open("vectors.npy", "w", force_zip64=True) as file:
            header = {"descr": "<f4", "fortran_order": False, "shape": (postings, dimension)}
            np.lib.format.write_array_header_1_0(file, header)
            for start in range(0, postings, ROWS_PER_BLOCK):
                rows = min(ROWS_PER_BLOCK, postings - start)
                file.write(generator.integers(-8, 8, (rows, dimension)).astype(np.float32).tobytes())


def save(archive: zipfile.ZipFile, name: str, array: Any) -> None:
    with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
        np.lib.format.write_array(file, array, allow_pickle=False)


def index(corpus: Path, memory: int) -> None:
    command = [
        "index",
        str(corpus),
        str(corpus.with_suffix("")),
        "--fingerprint",
        "test",
        "--memory",
        str(memory),
    ]
    with contextlib.redirect_stdout(sys.stderr):
        assert run(command) == 0


def main(small: str, large: str, memory: int) -> None:
    index(Path(small), memory)  # triggers lazy imports
    baseline, peak = resident(), Peak()
    with peak.of("build"):
        index(Path(large), memory)
    documents = len(Index.open(Path(large).with_suffix("")))
    print(json.dumps({"baseline": baseline, "documents": documents, "peaks": peak.peaks}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
