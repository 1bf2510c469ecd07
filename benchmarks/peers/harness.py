"""Shared by all peers: documents and queries, one pinned core, and the figures at the end.

Each peer is a script in this folder that builds an index in a folder and answers queries one by one.
`run.py` starts each in a child process and collects the results.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

K = 100
WARM_UP = 5

Search = Callable[[int], Sequence[int]]  # query number → document numbers, best first


@dataclass(frozen=True)
class Rows:
    """The vectors or weights of many texts: text i owns rows offsets[i] … offsets[i + 1] − 1."""

    offsets: NDArray[np.int64]  # [n + 1]
    keys: NDArray[np.uint32]  # [P]
    weights: NDArray[np.float32]  # [P]
    vectors: NDArray[np.float32] | None  # [P, d]

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def rows(self, text: int) -> slice:
        return slice(int(self.offsets[text]), int(self.offsets[text + 1]))

    def matrix(self, text: int) -> NDArray[np.float32]:
        assert self.vectors is not None
        return self.vectors[self.rows(text)]


@dataclass(frozen=True)
class Task:
    """One collection as `prepare.py` wrote it."""

    folder: Path

    @property
    def texts(self) -> list[str]:
        return list(json.loads((self.folder / "documents.json").read_text())["texts"])

    @property
    def ids(self) -> list[str]:
        return list(json.loads((self.folder / "documents.json").read_text())["ids"])

    @property
    def queries(self) -> list[str]:
        return list(json.loads((self.folder / "queries.json").read_text())["texts"])

    def routed(self, model: str, side: str) -> Rows:
        """Encoded documents or queries; model is colbert, splade or citadel."""
        file = self.folder / f"{model}-{side}.npz"
        if not file.is_file():
            raise Unable(f"no {model} vectors: give prepare.py --{model} MODEL")
        with np.load(file, allow_pickle=False) as arrays:
            vectors = arrays["vectors"].astype(np.float32) if "vectors" in arrays else None
            return Rows(arrays["offsets"], arrays["keys"], arrays["weights"], vectors)


class Unable(Exception):
    """The reason why a peer cannot run."""


def run_peer(name: str, build: Callable[[Task, Path], Search]) -> None:
    """Build, search and print one line of JSON; arguments: folder of the task, scratch folder."""
    task, scratch = Task(Path(sys.argv[1])), Path(sys.argv[2])
    scratch.mkdir(parents=True, exist_ok=True)
    try:
        print(json.dumps({"peer": name, **_figures(task, scratch, build)}))
    except (Unable, ImportError) as error:
        print(json.dumps({"peer": name, "unable": str(error)}))


def _figures(task: Task, scratch: Path, build: Callable[[Task, Path], Search]) -> dict[str, Any]:
    start = time.perf_counter()
    search = build(task, scratch)
    built = time.perf_counter() - start
    count = len(task.queries)
    for query in range(min(WARM_UP, count)):
        search(query)
    seconds, rankings = [], []
    for query in range(count):
        before = time.perf_counter()
        ranked = list(search(query))
        seconds.append(time.perf_counter() - before)
        rankings.append([int(number) for number in ranked])
    return {
        "build_s": built,
        "p50_ms": 1e3 * float(np.percentile(seconds, 50)),
        "p95_ms": 1e3 * float(np.percentile(seconds, 95)),
        "disk_bytes": sum(file.stat().st_size for file in _files(scratch)),
        "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "ranked": rankings,
    }


def _files(folder: Path) -> Iterator[Path]:
    return (file for file in folder.rglob("*") if file.is_file())


def one_core() -> None:
    """Pin this process and all its later threads to one core."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})


def max_sim(
    query: NDArray[np.float32], documents: Rows, chosen: Sequence[int] | None = None
) -> NDArray[np.float32]:
    """Exact MaxSim of a query [m, d] with documents; −∞ for empty documents."""
    assert documents.vectors is not None
    if chosen is None:
        products = query @ documents.vectors.T  # [m, P]
        filled = np.diff(documents.offsets) > 0
        scores = np.full(len(documents), -np.inf, np.float32)
        scores[filled] = np.maximum.reduceat(products, documents.offsets[:-1][filled], axis=1).sum(0)
        return scores
    best = [(query @ documents.matrix(number).T).max(1).sum() for number in chosen]
    return np.array(best, np.float32)


def top(scores: NDArray[Any], k: int = K) -> list[int]:
    """The best k documents; equal scores by document number."""
    return [int(number) for number in np.argsort(-scores, kind="stable")[:k]]
