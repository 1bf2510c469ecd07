"""Eight indexes in one server process against one: searches per second and memory.

    .venv/bin/python benchmarks/indexes.py [--seconds 5] [--rounds 3]

Queries are encoded by the default model. The documents are random postings under the model's keys, so that
4,000 of them take seconds and not minutes; all indexes are copies of one. A second case has BM25 indexes,
whose searches take microseconds. Clients run in this process and share the cores with the server; the two
servers are measured in turns.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from common import report

import citadel
from citadel.encode.locate import default_model
from citadel.encode.session import ONNX_FILE
from citadel.index.create import NewIndexOptions, create_index, new_index_settings
from citadel.index.storage import FolderStorage

DOCUMENTS, INDEXES, POSTINGS, WORDS = 4_000, 8, 40, 30
CLIENTS, K = 4, 10
VOCABULARY = [f"word{number}" for number in range(5_000)]


class Server(NamedTuple):
    """A running `citadel serve`: its address, process and the names of its indexes."""

    url: str
    process: subprocess.Popen[str]
    names: list[str]

    @property
    def resident(self) -> int:
        """Resident memory in bytes."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        line = next(line for line in status.splitlines() if line.startswith("VmRSS"))
        return int(line.split()[1]) * 1024

    @property
    def cpu_seconds(self) -> float:
        """CPU time so far."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Turn(NamedTuple):
    """Searches per second, and CPU time of the server per search in milliseconds."""

    rate: float
    cpu: float


def main() -> None:
    """Measure both cases and store them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as work:
        for name, build in (("model", _build_model), ("bm25", _build_bm25)):
            folders = _copies(Path(work), name, build)
            rows.append([name, *_measure(folders, arguments.seconds, arguments.rounds)])
    columns = (
        "indexes of", "one/s", "eight/s", "ratio", "CPU ms, one", "CPU ms, eight", "ratio",
        "one, MB", "eight, MB", "per further index, MB", "weights, MB",
    )  # fmt: skip
    report("indexes", f"{INDEXES} indexes of {DOCUMENTS:,} documents in one process", columns, rows)


def _copies(work: Path, name: str, build: Any) -> list[Path]:
    folders = [work / f"{name}{number}" for number in range(INDEXES)]
    build(folders[0])
    for folder in folders[1:]:
        shutil.copytree(folders[0], folder)
    return folders


def _build_bm25(folder: Path) -> None:
    numbers = random.Random(28)
    with citadel.Index.create(folder, model="bm25") as index:
        index.add(
            {"id": f"d{n}", "text": " ".join(numbers.choices(VOCABULARY, k=WORDS))} for n in range(DOCUMENTS)
        )
        index.commit()


def _build_model(folder: Path) -> None:
    """Random postings with the settings of the default model."""
    settings, model, encoder = new_index_settings(NewIndexOptions(model="default"))
    assert settings.lexical is not None and settings.semantic is not None and encoder is not None
    create_index(FolderStorage(folder), settings)
    numbers = np.random.default_rng(28)
    count, width = DOCUMENTS * POSTINGS, settings.lexical.dimension
    with citadel.Index.open(folder, model=model) as index:
        index.add_vectors(
            {
                "ids": [f"d{n}" for n in range(DOCUMENTS)],
                "texts": [f"document {n}" for n in range(DOCUMENTS)],
                "offsets": np.arange(0, count + 1, POSTINGS),
                "keys": numbers.integers(1_000, 30_000, count).astype(np.uint32),
                "weights": numbers.uniform(1, 3, count).astype(np.float32),
                "vectors": numbers.normal(size=(count, width)).astype(np.float32) / width,
                "semantic": numbers.normal(size=(DOCUMENTS, settings.semantic.dimension)).astype(np.float32),
            }
        )
        index.commit()


def _measure(folders: Sequence[Path], seconds: float, rounds: int) -> tuple[float, ...]:
    with _served(folders[:1]) as one, _served(folders) as eight:
        for server in (one, eight):
            _rate(server, 1.0)  # loads the model
        turns = [(_rate(one, seconds), _rate(eight, seconds)) for _ in range(rounds)]
        single, several = (statistics.median(turn[n].rate for turn in turns) for n in (0, 1))
        cpu = [statistics.median(turn[n].cpu for turn in turns) for n in (0, 1)]
        memory = [server.resident / 1e6 for server in (one, eight)]
    further = (memory[1] - memory[0]) / (INDEXES - 1)
    weights = _model_bytes() / 1e6
    return (single, several, several / single, *cpu, cpu[0] / cpu[1], *memory, further, weights)


def _model_bytes() -> int:
    folder = default_model()
    return 0 if folder is None else (Path(folder) / ONNX_FILE).stat().st_size


@contextlib.contextmanager
def _served(folders: Sequence[Path]) -> Iterator[Server]:
    command = [
        sys.executable,
        "-m",
        "citadel.cli",
        "serve",
        *map(str, folders),
        "--port",
        "0",
        "--no-access-log",
    ]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        yield Server(
            json.loads(process.stderr.readline())["url"], process, [folder.name for folder in folders]
        )
    finally:
        process.terminate()
        process.communicate()


def _rate(server: Server, seconds: float) -> Turn:
    """Some clients search, each query in the next index."""
    counts, end, before = [0] * CLIENTS, time.perf_counter() + seconds, server.cpu_seconds

    def work(number: int) -> None:
        client, queries = citadel.Client(server.url), random.Random(number)
        for name in itertools.cycle(server.names):
            if time.perf_counter() >= end:
                return
            body = {"query": " ".join(queries.choices(VOCABULARY, k=5)), "k": K}
            client.call("POST", f"/v1/indexes/{name}/search", body)
            counts[number] += 1

    threads = [threading.Thread(target=work, args=(number,)) for number in range(CLIENTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return Turn(sum(counts) / seconds, (server.cpu_seconds - before) * 1e3 / sum(counts))


if __name__ == "__main__":
    main()
