"""Centroid indexes beside other engines at the same overlap with exact MaxSim, over the same token vectors.

    python benchmarks/peers/tokens.py MODEL --train $CITADEL_DATA/train [--passages 60000] [--device cuda]
    python benchmarks/peers/tokens.py --vectors FILE.npz               # encoded before

MODEL is a ColBERT model, a checkpoint or an exported folder. Documents are passages of the training data:
the positives of held-out pairs, whose queries are searched, and others drawn at random. Each engine builds on
all cores in a process of its own and searches on one pinned core, one query at a time, k = 10. Its search
parameter is the first of a ladder whose overlap@10 with exact MaxSim in fp32 is at least 0.98 on the first
half of the queries, or else the one with the largest overlap; the figures are of the second half, and times
are the minimum of two rounds. An engine that needs more than `--seconds` gives no row but the reason.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from vectors import library, print_rows, resident, share

K = 10
OVERLAP = 0.98
ROUNDS = 2
SLOW = 0.2  # seconds; of a slower engine fewer queries are searched
FEW = 20
PART = 512  # documents per batch
BLOCK = 16  # documents compared with all queries at a time
EFS = (64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 4096, 8192)
COLUMNS = ("engine", "parameter", "overlap", "p50 ms", "p95 ms", "queries", "build s", "memory MB", "disk MB")

Search = Callable[[int, Any], Sequence[int]]  # query number, parameter → document numbers


class Built(NamedTuple):
    """An engine that holds all documents."""

    search: Search
    ladder: Sequence[Any]  # parameters, fastest first


class Tokens(NamedTuple):
    """Token vectors of documents and queries: text i has rows offsets[i] … offsets[i + 1] − 1."""

    documents: NDArray[np.float16]  # [N, d]
    offsets: NDArray[np.int64]
    queries: NDArray[np.float32]  # [M, d]
    query_offsets: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def document(self, number: int) -> NDArray[np.float32]:
        return self.documents[self.offsets[number] : self.offsets[number + 1]].astype(np.float32)

    def query(self, number: int) -> NDArray[np.float32]:
        return self.queries[self.query_offsets[number] : self.query_offsets[number + 1]]

    @property
    def filled(self) -> list[int]:
        """Documents with tokens: other engines reject empty ones."""
        return np.flatnonzero(np.diff(self.offsets)).tolist()


# -- engines


def build_citadel(codec: str, given: Tokens, scratch: Path) -> Built:
    import citadel

    fields = {"lexical": citadel.Field(given.documents.shape[1], codec)}
    index = citadel.Index.create(
        scratch / "index", fields=fields, router="centroid", fingerprint="peers", memory=8 << 30
    )
    for start in range(0, len(given), 1 << 13):
        offsets = given.offsets[start : start + (1 << 13) + 1]
        names = np.array([str(number) for number in range(start, start + len(offsets) - 1)])
        vectors = given.documents[offsets[0] : offsets[-1]].astype(np.float32)
        index.add_vectors({"ids": names, "offsets": offsets - offsets[0], "vectors": vectors})
    searcher = index.commit().merge().searcher(threads=1)

    def search(query: int, ef: int) -> Sequence[int]:
        return [int(id) for id in searcher.search_vectors(vectors=given.query(query), k=K, ef=ef).ids]

    return Built(search, EFS)


def build_faiss(given: Tokens, scratch: Path) -> Built:
    """Nearest tokens by IVF-PQ with 2 bits per dimension, their documents ranked by exact MaxSim."""
    faiss = library("faiss")

    vectors = given.documents.astype(np.float32)
    count, width = vectors.shape
    lists = int(4 * np.sqrt(count))
    index = faiss.IndexIVFPQ(
        faiss.IndexFlatIP(width), width, lists, width // 4, 8, faiss.METRIC_INNER_PRODUCT
    )
    index.train(vectors[np.random.default_rng(0).permutation(count)[: 40 * lists]])
    index.add(vectors)
    faiss.write_index(index, str(scratch / "tokens.faiss"))
    np.save(scratch / "vectors.npy", given.documents)
    owners = np.repeat(np.arange(len(given), dtype=np.int32), np.diff(given.offsets))

    def search(query: int, parameter: tuple[int, int]) -> Sequence[int]:
        faiss.omp_set_num_threads(1)
        probes, tokens = parameter
        own = faiss.IVFSearchParameters(nprobe=probes)
        near = index.search(given.query(query), tokens, params=own)[1]
        candidates = np.unique(owners[near[near >= 0]])
        return best(max_sim(given.query(query), vectors, given.offsets, candidates), candidates)

    return Built(search, [(4, 32), (8, 64), (16, 64), (16, 256), (32, 512), (64, 1024), (128, 4096)])


def build_fast_plaid(bits: int, given: Tokens, scratch: Path) -> Built:
    """PLAID as PyLate has it; its index is built on a GPU if there is one."""
    torch, plaid = library("torch"), library("fast_plaid.search")

    filled = given.filled
    device = "cuda" if torch.cuda.is_available() else "cpu"
    texts = [torch.from_numpy(given.document(number)) for number in filled]
    plaid.FastPlaid(str(scratch), device=device).create(texts, nbits=bits)
    index = plaid.FastPlaid(str(scratch), device="cpu")

    def search(query: int, parameter: tuple[int, int]) -> Sequence[int]:
        torch.set_num_threads(1)
        probes, scored = parameter
        vectors = torch.from_numpy(given.query(query))[None]
        [hits] = index.search(vectors, top_k=K, n_ivf_probe=probes, n_full_scores=scored, show_progress=False)
        return [filled[number] for number, _ in hits]

    return Built(search, [(4, 256), (8, 512), (16, 1024), (32, 4096), (64, 16_384)])


def build_lancedb(given: Tokens, scratch: Path) -> Built:
    lancedb, pa = library("lancedb"), library("pyarrow")

    width = given.documents.shape[1]
    vectors = pa.FixedSizeListArray.from_arrays(given.documents.astype(np.float32).reshape(-1), width)
    rows = pa.ListArray.from_arrays(given.offsets.astype(np.int32), vectors)
    table = pa.table({"number": np.arange(len(given)), "vector": rows})
    made = lancedb.connect(str(scratch)).create_table("tokens", table)
    made.create_index(metric="cosine", vector_column_name="vector", num_sub_vectors=width // 4)

    def search(query: int, parameter: tuple[int, int]) -> Sequence[int]:
        probes, refine = parameter
        nearest = made.search(given.query(query), vector_column_name="vector").distance_type("cosine")
        hits = nearest.nprobes(probes).refine_factor(refine).select(["number", "_distance"]).limit(K)
        return [int(number) for number in hits.to_arrow()["number"].to_numpy()]

    return Built(search, [(8, 4), (16, 8), (16, 16), (32, 32), (64, 64)])


def build_qdrant(given: Tokens, scratch: Path) -> Built:
    """An exact scan: a graph of multivectors takes 0.1 s per document to build."""
    edge = library("qdrant_edge")

    max_sim = edge.MultiVectorConfig(edge.MultiVectorComparator.MaxSim)
    width = given.documents.shape[1]
    vectors = edge.EdgeVectorParams(width, edge.Distance.Dot, multivector_config=max_sim)
    optimizers = edge.EdgeOptimizersConfig(default_segment_number=1, indexing_threshold=1 << 40)
    config = edge.EdgeConfig(vectors=vectors, max_search_threads=1, optimizers=optimizers)
    shard = edge.EdgeShard.create(str(scratch), config)
    filled = given.filled
    for start in range(0, len(filled), PART):
        points = [edge.Point(each, given.document(each).tolist()) for each in filled[start : start + PART]]
        shard.update(edge.UpdateOperation.upsert_points(points))
    shard.flush()

    def search(query: int, mode: str) -> Sequence[int]:
        nearest = edge.Query.Nearest(given.query(query).tolist())
        request = edge.QueryRequest(K, query=nearest, params=edge.SearchParams(exact=mode == "exact"))
        return [int(point.id) for point in shard.query(request)]

    return Built(search, ("exact",))


def _citadel(codec: str) -> Callable[[Tokens, Path], Built]:
    return lambda given, scratch: build_citadel(codec, given, scratch)


def _fast_plaid(bits: int) -> Callable[[Tokens, Path], Built]:
    return lambda given, scratch: build_fast_plaid(bits, given, scratch)


ENGINES: dict[str, Callable[[Tokens, Path], Built]] = {
    "citadel, int8": _citadel("int8"),
    "faiss IVF-PQ + MaxSim": build_faiss,
    "fast-plaid, 4 bits": _fast_plaid(4),
    "LanceDB IVF-PQ": build_lancedb,
    "citadel, residual4": _citadel("residual4"),
    "citadel, residual2": _citadel("residual2"),
    "Qdrant Edge": build_qdrant,
}


# -- exact results


def max_sim(
    query: NDArray[np.float32],
    vectors: NDArray[np.float32],
    offsets: NDArray[np.int64],
    chosen: NDArray[Any],
) -> NDArray[np.float32]:
    """MaxSim of a query with these documents, none of them empty.

    >>> vectors, offsets = np.eye(3, dtype=np.float32), np.array([0, 1, 3])
    >>> max_sim(vectors[1:], vectors, offsets, np.array([0, 1])).tolist()
    [0.0, 2.0]
    """
    sizes = (offsets[1:] - offsets[:-1])[chosen]
    starts = np.cumsum(sizes) - sizes
    rows = np.repeat(offsets[chosen] - starts, sizes) + np.arange(int(sizes.sum()))
    scores: NDArray[np.float32] = np.maximum.reduceat(query @ vectors[rows].T, starts, axis=1).sum(axis=0)
    return scores


def best(scores: NDArray[np.float32], numbers: NDArray[Any]) -> list[int]:
    """The numbers with the K best scores, ties by position."""
    return [int(number) for number in numbers[np.argsort(-scores, kind="stable")[:K]]]


def exact(given: Tokens) -> NDArray[np.int64]:
    """The best K documents of each query in fp32."""
    filled = np.array(given.filled)
    parts = [filled[start : start + BLOCK] for start in range(0, len(filled), BLOCK)]
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:  # numpy lets threads run
        scores = np.concatenate(list(pool.map(lambda part: block_scores(given, part), parts)), axis=1)
    return np.array([best(row, filled) for row in scores])


def block_scores(given: Tokens, numbers: NDArray[np.int64]) -> NDArray[np.float32]:
    """MaxSim of all queries with adjacent documents: [queries, documents]."""
    low, high = given.offsets[numbers[0]], given.offsets[numbers[-1] + 1]
    products = given.queries @ given.documents[low:high].astype(np.float32).T  # [M, rows]
    largest = np.maximum.reduceat(products, given.offsets[numbers] - low, axis=1)  # [M, documents]
    scores: NDArray[np.float32] = np.add.reduceat(largest, given.query_offsets[:-1], axis=0)
    return scores


# -- one engine, in a child process


def measure(name: str, file: Path, scratch: Path) -> list[Any]:
    """The row of an engine."""
    given, truth = load(file), np.load(file.with_suffix(".exact.npy"))
    before = resident("VmRSS")
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # the peak begins here
    start = time.perf_counter()
    built = ENGINES[name](given, scratch)
    seconds = time.perf_counter() - start
    print(f"{name}: built in {seconds:.0f} s", file=sys.stderr, flush=True)
    if hasattr(os, "sched_setaffinity"):
        for thread in os.listdir("/proc/self/task"):  # libraries search on threads of their own
            with contextlib.suppress(OSError):
                os.sched_setaffinity(int(thread), {max(os.sched_getaffinity(0))})
    found = row(name, built, truth)
    memory = resident("VmHWM") - before
    disk = sum(each.stat().st_size for each in scratch.rglob("*") if each.is_file()) / 1e6
    return [*found, seconds, memory, disk]


def row(name: str, built: Built, truth: NDArray[np.int64]) -> list[Any]:
    half, chosen, most = len(truth) // 2, built.ladder[0], -1.0
    for parameter in built.ladder:
        reached = float(np.mean(search(built, truth, range(half), parameter)[0]))
        print(f"{name}: {parameter} {reached:.4f}", file=sys.stderr, flush=True)
        if reached > most:
            chosen, most = parameter, reached
        if reached >= OVERLAP:
            break
    numbers = range(half, len(truth))
    shares, times = search(built, truth, numbers, chosen)
    for _ in range(ROUNDS - 1):
        times = np.minimum(times, search(built, truth, numbers[: len(times)], chosen)[1])
    quantiles = [float(np.percentile(times, part)) for part in (50, 95)]
    return [name, str(chosen), float(np.mean(shares)), *quantiles, len(times)]


def search(
    built: Built, truth: NDArray[np.int64], numbers: Sequence[int], parameter: Any
) -> tuple[list[float], NDArray[np.float64]]:
    """Overlaps and milliseconds of these queries; of few, if they are slow."""
    shares, times = [], []
    for number in numbers:
        start = time.perf_counter()
        ranked = built.search(number, parameter)
        times.append(1e3 * (time.perf_counter() - start))
        shares.append(share(ranked, truth[number]))
        if len(times) >= FEW and np.mean(times) > 1e3 * SLOW:
            break
    return shares, np.array(times)


# -- all of them


def load(file: Path) -> Tokens:
    with np.load(file) as arrays:
        return Tokens(*(arrays[name] for name in Tokens._fields))


def encode(model: str, train: str, file: Path, passages: int, queries: int, device: str) -> None:
    """Encode passages of the training data, and queries of held-out pairs that they answer."""
    from citadel.paper.system import SystemSpec, load_system
    from citadel.train.config_tables import DataPart
    from citadel.train.data import is_held_out
    from citadel.train.readers import read_source

    source = read_source(DataPart(folder=train))
    held = np.flatnonzero(is_held_out(source))
    held = np.random.default_rng(0).permutation(held)[:queries]
    texts = source.passages.texts
    others = np.random.default_rng(1).permutation(len(texts))
    chosen = np.array(list(dict.fromkeys([*source.positive[held].tolist(), *others.tolist()]))[:passages])
    encoder = load_system(SystemSpec(model, device=device))
    assert encoder is not None
    documents, sizes = [], []
    for start in range(0, len(chosen), PART):
        encoded = encoder.tokenizer.documents([texts[row] for row in chosen[start : start + PART].tolist()])
        for text in encoder.route_documents(encoded):
            assert text.vectors is not None
            documents.append(text.vectors.astype(np.float16))
            sizes.append(len(text.vectors))
    routed = encoder.encode_queries([source.queries[int(source.query[row])] for row in held.tolist()])
    questions = [text.vectors for text in routed if text.vectors is not None and len(text.vectors)]
    arrays: dict[str, Any] = Tokens(
        np.concatenate(documents), offsets(sizes), np.concatenate(questions), offsets([*map(len, questions)])
    )._asdict()
    np.savez(file, **arrays)


def offsets(sizes: Sequence[int]) -> NDArray[np.int64]:
    """
    >>> offsets([2, 3]).tolist()
    [0, 2, 5]
    """
    return np.cumsum([0, *sizes])


def run_one(name: str, file: Path, source: str, seconds: float) -> list[Any]:
    """The row of an engine, or one with the reason why there is none."""
    with tempfile.TemporaryDirectory(prefix="citadel-peer-") as scratch:
        command = [sys.executable, __file__, "--engine", name, str(file), scratch]
        path = os.pathsep.join([source, os.environ.get("PYTHONPATH", "")])
        try:
            done = subprocess.run(
                command,
                stdout=subprocess.PIPE,
                text=True,
                timeout=seconds,
                check=False,
                env=os.environ | {"PYTHONPATH": path},
            )
        except subprocess.TimeoutExpired:
            return [name, f"not done after {seconds:.0f} s"]
    if done.returncode:
        return [name, f"failed with code {done.returncode}: see its messages"]
    found: list[Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def main() -> None:
    """Run every engine in turn and print the table."""
    if sys.argv[1:2] == ["--engine"]:
        name, file, scratch = sys.argv[2:]
        print(json.dumps(measure(name, Path(file), Path(scratch))))
        return
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", nargs="?", default="")
    parser.add_argument("--train", default="", help="folder of passages and pairs")
    parser.add_argument("--passages", type=int, default=60_000)
    parser.add_argument("--queries", type=int, default=400)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--vectors", type=Path, default=Path("build/peers/tokens.npz"))
    parser.add_argument("--only", action="append", choices=list(ENGINES))
    parser.add_argument("--seconds", type=float, default=900)
    parser.add_argument("--out", type=Path, help="JSON file of the rows")
    options = parser.parse_args()
    if options.model:
        options.vectors.parent.mkdir(parents=True, exist_ok=True)
        encode(
            options.model, options.train, options.vectors, options.passages, options.queries, options.device
        )
    truth, given = options.vectors.with_suffix(".exact.npy"), load(options.vectors)
    if options.model or not truth.exists():
        np.save(truth, exact(given))
    queries = len(given.query_offsets) - 1
    counts = {"documents": len(given), "tokens": len(given.documents), "queries": queries}
    print(", ".join(f"{count:,} {name}" for name, count in counts.items()), flush=True)
    del given
    print_rows([COLUMNS])
    rows: list[list[Any]] = []
    for name in options.only or ENGINES:
        rows.append(run_one(name, options.vectors, str(Path(__file__).parents[2] / "src"), options.seconds))
        print_rows([rows[-1]])
        if options.out:
            record = {**counts, "columns": COLUMNS, "rows": rows}
            options.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
