"""Approximate search of citadel's graph beside other engines, over the same vectors and on the same core.

    python benchmarks/peers/vectors.py INDEX QUERIES.npz [--documents 8000] [--out FILE]

INDEX has a token and a semantic field; its stored vectors, decoded, are what all engines index. QUERIES.npz
has `semantic` [n, s], and the query tokens' `offsets` [n + 1], `keys` and `weights`, as `graph_large.py`
writes it. Two tasks: *dense* is the inner product of semantic vectors; *sparse*, the sum over common keys of
the products of weights. citadel's own score, tokens and semantic vectors together, is left to `graph.py`,
since no other engine has it. Each engine builds on all cores in a process of its own and searches on one
pinned core, one query at a time. Its search parameter is the first of a ladder whose overlap@k with the exact
result is at least 0.985 on the first half of the queries; the figures are of the second half. Times are the
minimum of three rounds. *memory* is what the process grows by while it builds and searches.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

DEPTHS = (10, 100)
OVERLAP = 0.985
ROUNDS = 3
LIMIT = 900  # seconds per engine
EF = (16, 24, 32, 48, 64, 96, 128, 192, 256, 400, 640, 1000)
COLUMNS = (
    "engine",
    "task",
    "k",
    "parameter",
    "overlap",
    "p50 ms",
    "p95 ms",
    "build s",
    "memory MB",
    "disk MB",
)

Search = Callable[[int, int, Any], Sequence[int]]  # query number, k, parameter


class Built(NamedTuple):
    """An engine that holds all documents."""

    search: Search
    ladder: Sequence[Any]  # parameters, fastest first


class Input(NamedTuple):
    """Documents and queries: dense vectors, and sparse ones in rows offsets[i] … offsets[i + 1] − 1."""

    documents: NDArray[np.float32]  # [n, s]
    offsets: NDArray[np.int64]
    keys: NDArray[np.uint32]
    weights: NDArray[np.float32]
    queries: NDArray[np.float32]  # [m, s]
    query_offsets: NDArray[np.int64]
    query_keys: NDArray[np.uint32]
    query_weights: NDArray[np.float32]

    def sparse_query(self, query: int) -> tuple[NDArray[np.uint32], NDArray[np.float32]]:
        rows = slice(self.query_offsets[query], self.query_offsets[query + 1])
        return self.query_keys[rows], self.query_weights[rows]


# -- engines


def library(name: str) -> Any:
    """An optional package; without it the engine's row has the reason."""
    return importlib.import_module(name)


def build_faiss_hnsw(given: Input, scratch: Path) -> Built:
    faiss = library("faiss")

    index = faiss.IndexHNSWFlat(given.documents.shape[1], 32, faiss.METRIC_INNER_PRODUCT)
    index.hnsw.efConstruction = 200
    index.add(given.documents)
    faiss.write_index(index, str(scratch / "index"))

    def search(query: int, k: int, ef: int) -> Sequence[int]:
        faiss.omp_set_num_threads(1)
        index.hnsw.efSearch = max(ef, k)
        return list(index.search(given.queries[query : query + 1], k)[1][0])

    return Built(search, EF)


def build_faiss_ivf(given: Input, scratch: Path) -> Built:
    """IVF-PQ with 2 bits per dimension, its best candidates rescored with fp32 vectors."""
    faiss = library("faiss")

    count, width = given.documents.shape
    lists = int(4 * np.sqrt(count))
    coarse = faiss.IndexFlatIP(width)
    inner = faiss.IndexIVFPQ(coarse, width, lists, width // 4, 8, faiss.METRIC_INNER_PRODUCT)
    inner.pq.cp.niter = 10
    index = faiss.IndexRefineFlat(inner)
    index.train(given.documents[np.random.default_rng(0).permutation(count)[: 40 * lists]])
    index.add(given.documents)
    faiss.write_index(index, str(scratch / "index"))

    def search(query: int, k: int, probes: int) -> Sequence[int]:
        faiss.omp_set_num_threads(1)
        own = faiss.IVFSearchParameters(nprobe=probes)
        how = faiss.IndexRefineSearchParameters(k_factor=4, base_index_params=own)
        return list(index.search(given.queries[query : query + 1], k, params=how)[1][0])

    return Built(search, (2, 4, 8, 16, 32, 64, 128, 256))


def build_usearch(given: Input, scratch: Path) -> Built:
    index = library("usearch.index").Index(
        ndim=given.documents.shape[1], metric="ip", dtype="f16", connectivity=32, expansion_add=200
    )
    index.add(np.arange(len(given.documents)), given.documents)
    index.save(str(scratch / "index"))

    def search(query: int, k: int, ef: int) -> Sequence[int]:
        index.expansion_search = max(ef, k)
        return list(index.search(given.queries[query], k, threads=1).keys)

    return Built(search, EF)


def build_kannolo_dense(given: Input, scratch: Path) -> Built:
    kannolo = library("kannolo")

    flat, width = np.ascontiguousarray(given.documents).reshape(-1), given.documents.shape[1]
    index = kannolo.DensePlainHNSW.build_from_array(flat, width, 32, 200, metric="dotproduct")
    index.save(str(scratch / "index"))

    def search(query: int, k: int, ef: int) -> Sequence[int]:
        return list(index.search(given.queries[query], k, max(ef, k))[1])

    return Built(search, EF)


def build_kannolo_sparse(given: Input, scratch: Path) -> Built:
    kannolo = library("kannolo")

    arrays = given.keys.astype(np.int32), given.weights, given.offsets.astype(np.int64)
    index, last = kannolo.SparsePlainHNSW.build_from_arrays(*arrays, 32, 200), given.keys.max()
    index.save(str(scratch / "index"))

    def search(query: int, k: int, ef: int) -> Sequence[int]:
        keys, weights = given.sparse_query(query)
        keys, weights = keys[keys <= last], weights[keys <= last]  # it refuses keys that no document has
        return list(index.search(keys.astype(np.int32), weights, k, max(ef, k))[1])

    return Built(search, EF)


def build_seismic(given: Input, scratch: Path) -> Built:
    seismic = library("seismic")

    kind, dataset = seismic.get_seismic_string(), seismic.SeismicDataset()
    names = given.keys.astype(kind)
    for number in range(len(given.documents)):
        rows = slice(given.offsets[number], given.offsets[number + 1])
        dataset.add_document(str(number), names[rows], given.weights[rows])
    index = seismic.SeismicIndex.build_from_dataset(dataset)
    index.save(str(scratch / "index"))

    def search(query: int, k: int, parameter: tuple[int, float]) -> Sequence[int]:
        keys, weights = given.sparse_query(query)
        hits = index.search(str(query), keys.astype(kind), weights, k, *parameter)
        return [int(hit[2]) for hit in hits]

    return Built(search, [(cut, factor) for factor in (0.9, 0.7, 0.5, 0.3, 0.0) for cut in (8, 32)])


def build_lancedb(given: Input, scratch: Path) -> Built:
    lancedb, pa = library("lancedb"), library("pyarrow")

    count, width = given.documents.shape
    vectors = pa.FixedSizeListArray.from_arrays(given.documents.reshape(-1), width)
    columns = pa.table({"number": np.arange(count), "vector": vectors})
    table = lancedb.connect(str(scratch)).create_table("rows", columns)
    how: dict[str, Any] = {"num_partitions": max(1, count // 4096), "m": 32, "ef_construction": 200}
    table.create_index(metric="dot", vector_column_name="vector", index_type="IVF_HNSW_SQ", **how)

    def search(query: int, k: int, ef: int) -> Sequence[int]:
        nearest: Any = table.search(given.queries[query])
        nearest = nearest.distance_type("dot").select(["number", "_distance"])
        rows = nearest.nprobes(max(1, count // 4096)).ef(max(ef, k)).limit(k).to_arrow()
        return [int(number) for number in rows["number"].to_numpy()]

    return Built(search, EF)


def build_citadel_dense(given: Input, scratch: Path) -> Built:
    import citadel
    from citadel.types import Document, VectorBatch

    count, width = given.documents.shape
    fields = {"semantic": citadel.Field(width, "fp16")}
    index = citadel.Index.create(
        scratch / "index", fields=fields, fingerprint="peers", memory=8 << 30, graph=False
    )
    nothing = np.zeros(0, np.uint32), np.zeros(0, np.float32)
    rows = [Document(str(number), "") for number in range(count)]
    index.add_vectors(VectorBatch(rows, np.zeros(count + 1, np.int64), *nothing, None, given.documents))
    index.commit(graph=False).merge(graph=False)
    index.optimize(min_documents=1)
    searcher = index.searcher(threads=1)

    def search(query: int, k: int, ef: int) -> Sequence[int]:
        hits = searcher.search_vectors(semantic=given.queries[query], k=k, semantic_mode="graph", ef=ef)
        return [int(id) for id in hits.ids]

    return Built(search, EF)


ENGINES: dict[str, tuple[str, Callable[[Input, Path], Built]]] = {
    "citadel, semantic field alone": ("dense", build_citadel_dense),
    "kannolo HNSW": ("dense", build_kannolo_dense),
    "faiss HNSW": ("dense", build_faiss_hnsw),
    "faiss IVF-PQ, rescored": ("dense", build_faiss_ivf),
    "usearch HNSW, f16": ("dense", build_usearch),
    "LanceDB IVF-HNSW-SQ": ("dense", build_lancedb),
    "kannolo sparse HNSW": ("sparse", build_kannolo_sparse),
    "Seismic": ("sparse", build_seismic),
}


# -- exact results


def exact(given: Input, task: str) -> list[NDArray[np.int64]]:
    """The best 100 documents of each query."""
    return [best(scores) for scores in (dense_scores(given) if task == "dense" else sparse_scores(given))]


def dense_scores(given: Input) -> Iterator[NDArray[np.float32]]:
    for start in range(0, len(given.queries), 64):
        yield from given.queries[start : start + 64] @ given.documents.T


def sparse_scores(given: Input) -> Iterator[NDArray[np.float32]]:
    order = np.argsort(given.keys, kind="stable")
    keys, owners = (
        given.keys[order],
        np.repeat(np.arange(len(given.documents)), np.diff(given.offsets))[order],
    )
    for query in range(len(given.queries)):
        scores = np.zeros(len(given.documents), np.float32)
        for key, weight in zip(*given.sparse_query(query), strict=True):
            rows = slice(*np.searchsorted(keys, [key, key + 1]))
            np.add.at(scores, owners[rows], weight * given.weights[order[rows]])
        yield scores


def best(scores: NDArray[np.float32]) -> NDArray[np.int64]:
    k = min(max(DEPTHS), len(scores))
    chosen = np.argpartition(-scores, k - 1)[:k]
    result: NDArray[np.int64] = chosen[np.argsort(-scores[chosen], kind="stable")]
    return result


# -- one engine, in a child process


def measure(name: str, file: Path, scratch: Path) -> list[list[Any]]:
    """Rows of the table."""
    with np.load(file) as arrays:
        given = Input(*(arrays[field] for field in Input._fields))
        truth = arrays[f"exact_{ENGINES[name][0]}"]
    before = resident("VmRSS")
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # the peak begins here
    start = time.perf_counter()
    built = ENGINES[name][1](given, scratch)
    seconds = time.perf_counter() - start
    if hasattr(os, "sched_setaffinity"):
        for thread in os.listdir("/proc/self/task"):  # libraries search on threads of their own
            with contextlib.suppress(OSError):
                os.sched_setaffinity(int(thread), {max(os.sched_getaffinity(0))})
    rows = [row(name, built, truth, k) for k in DEPTHS]
    memory = resident("VmHWM") - before
    disk = sum(each.stat().st_size for each in scratch.rglob("*") if each.is_file()) / 1e6
    return [[*each, seconds, memory, disk] for each in rows]


def resident(field: str) -> float:
    """Megabytes of this process, now (VmRSS) or at most (VmHWM)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field)) / 1024


def row(name: str, built: Built, truth: NDArray[np.int64], k: int) -> list[Any]:
    half = len(truth) // 2
    for parameter in built.ladder:
        shares = [share(built.search(query, k, parameter), truth[query, :k]) for query in range(half)]
        if np.mean(shares) >= OVERLAP:
            break
    times, shares = np.full(len(truth) - half, np.inf), []
    for _ in range(ROUNDS):
        shares = []
        for query in range(half, len(truth)):
            start = time.perf_counter()
            ranked = built.search(query, k, parameter)
            times[query - half] = min(times[query - half], 1e3 * (time.perf_counter() - start))
            shares.append(share(ranked, truth[query, :k]))
    quantiles = [float(np.percentile(times, part)) for part in (50, 95)]
    return [name, ENGINES[name][0], k, str(parameter), float(np.mean(shares)), *quantiles]


def share(ranked: Sequence[int], truth: NDArray[np.int64]) -> float:
    return float(np.isin(truth, np.asarray(ranked, np.int64)).mean())


# -- all of them


def read_index(path: str, limit: int | None) -> tuple[Any, ...]:
    """The first documents of an index: semantic vectors and weights by key."""
    import citadel
    from citadel.index.merge import Source
    from citadel.index.quantize import decode
    from citadel.index.snapshot import NOTHING_DELETED

    snapshot = citadel.Index.open(path).searcher(threads=1).snapshot
    [segment] = snapshot.segments
    count = min(segment.passages, limit or segment.passages)
    owners, keys, weights = [], [], []
    for piece in Source(segment, NOTHING_DELETED, 0, snapshot.storage).pieces(0, segment.lists):
        chosen = piece.documents() < count
        stored = segment.file["WEIGHTS"].array(np.uint8, piece.start, piece.stop)
        owners.append(piece.documents()[chosen])
        keys.append(segment.keys[piece.lists][chosen])
        weights.append(stored[chosen].astype(np.float32) * np.float32(snapshot.settings.weight_step))
    all_owners, all_keys = np.concatenate(owners), np.concatenate(keys)
    order = np.lexsort((all_keys, all_owners))
    offsets = np.searchsorted(all_owners[order], np.arange(count + 1))
    return decode(segment.semantic(0, count)), offsets, all_keys[order], np.concatenate(weights)[order]


def run_one(name: str, file: Path, source: str) -> list[list[Any]]:
    """The rows of an engine, or one with the reason why there are none."""
    with tempfile.TemporaryDirectory(prefix="citadel-peer-") as scratch:
        command = [sys.executable, __file__, "--engine", name, str(file), scratch]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join([source, os.environ.get("PYTHONPATH", "")])}
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=LIMIT, check=False, env=environment
            )
        except subprocess.TimeoutExpired:
            return [[name, ENGINES[name][0], f"not done after {LIMIT} s"]]
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip() and "backtrace" not in line]
        return [[name, ENGINES[name][0], (lines or ["no output"])[-1][:120]]]
    rows: list[list[Any]] = json.loads(done.stdout.strip().splitlines()[-1])
    return rows


def print_rows(rows: Sequence[Sequence[Any]]) -> None:
    for each in rows:
        cells = [f"{cell:.3f}" if isinstance(cell, float) else str(cell) for cell in each]
        print(f"{cells[0]:<30} {cells[1]:<7}" + "".join(f" {cell:>10}" for cell in cells[2:]), flush=True)


def main() -> None:
    """Run every engine in turn and print the table."""
    if sys.argv[1:2] == ["--engine"]:
        name, file, scratch = sys.argv[2:]
        print(json.dumps(measure(name, Path(file), Path(scratch))))
        return
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("index")
    parser.add_argument("queries")
    parser.add_argument("--documents", type=int, help="default: all")
    parser.add_argument("--only", action="append", choices=list(ENGINES))
    parser.add_argument("--out", type=Path, help="JSON file of the rows")
    options = parser.parse_args()
    with np.load(options.queries) as arrays:
        queries = [arrays[name] for name in ("semantic", "offsets", "keys", "weights")]
    given = Input(*read_index(options.index, options.documents), *queries)
    truth = {f"exact_{task}": np.stack(exact(given, task)) for task in ("dense", "sparse")}
    cores = len(os.sched_getaffinity(0))
    print(f"{len(given.documents):,} documents, {len(given.queries)} queries, {cores} cores")
    print_rows([COLUMNS])
    rows: list[list[Any]] = []
    with tempfile.TemporaryDirectory(prefix="citadel-peers-") as folder:
        inputs = Path(folder, "input.npz")
        arrays_of: dict[str, Any] = given._asdict() | truth
        np.savez(inputs, **arrays_of)
        for name in options.only or ENGINES:
            own = run_one(name, inputs, str(Path(__file__).parents[2] / "src"))
            print_rows(own)
            rows += own
            if options.out:
                options.out.write_text(json.dumps({"columns": COLUMNS, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
