"""Graph search of all training passages and of millions of overlapping crops, encoded on a GPU.

    PYTHONPATH=src python3 benchmarks/graph_large.py build/graph-large [--crops 2600000] [--seconds 420]

Everything but timing uses all cores; searches are timed on one pinned core, in turns: each round searches
all queries with the graph, then with `rerank`, then with `exact`. Times are percentiles over queries of the
minimum over rounds. *overlap* is the share of the exact top k that a search returns.

`ef` is the smallest of a ladder whose overlap is at least 0.982 on pairs of passages with an odd CRC; all
figures come from the held-out pairs (CRC of the passage id divisible by 100) and the evaluation collections.
An eighth of the passages, chosen at random, gives the growth. Crops are windows of 40 tokens. Results are
written after each step to OUT, so a run that is stopped keeps them; with little time left, there are fewer
crops. $CITADEL_DATA has the folders `train` and `eval`. Needs numpy, tokenizers, safetensors, onnx, torch and
the native module in `src/citadel`.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import lzma
import os
import shutil
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from gpu_encode import GpuEncoder, Tokenisers, Tokens, ahead
from numpy.typing import NDArray

import citadel
from citadel.search.plan import Options, plan_options
from citadel.types import Document, Scored, VectorBatch

DATA = Path(os.environ.get("CITADEL_DATA", "data"))
LADDERS = {
    10: (16, 20, 24, 28, 32, 40, 48, 56, 64, 72, 80, 96, 112, 128, 160, 192),
    100: (120, 140, 160, 180, 200, 240, 280, 320, 360, 400, 480, 560, 640),
}
OVERLAP = 0.982  # on the pairs that `ef` is chosen with
SHARES = (0.5, 0.1, 0.01)
WINDOW = 40  # tokens of a crop
CROPS_PER_SECOND = 12_000  # of all steps together, an estimate that decides how many fit the time


class Texts(NamedTuple):
    """Documents to encode."""

    ids: list[str]
    texts: list[str]


class Queries(NamedTuple):
    """Encoded queries, and the ids of the relevant documents of each."""

    rows: list[tuple[Any, ...]]
    relevant: list[frozenset[str]]

    def part(self, count: int) -> Queries:
        return Queries(self.rows[:count], self.relevant[:count])


class Run:
    """The results so far, and the time left."""

    def __init__(self, out: Path, seconds: float) -> None:
        from citadel._native import instruction_set
        from citadel.paper.record import machine

        self._out, self._start, self._seconds = out, time.perf_counter(), seconds
        self.results: dict[str, Any] = {"machine": {**machine(), "instruction_set": instruction_set()}}
        self.rows: list[list[Any]] = []

    @property
    def left(self) -> float:
        return self._seconds - (time.perf_counter() - self._start)

    def note(self, name: str, value: Any) -> None:
        """Keep, print and save a result."""
        self.results[name] = value
        print(f"[{self._seconds - self.left:6.1f} s] {name}: {value}", flush=True)
        self._out.write_text(json.dumps({**self.results, "rows": self.rows}, indent=1) + "\n")

    def row(self, *values: Any) -> None:
        self.rows.append(list(values))
        self.note("row", [round(value, 4) if isinstance(value, float) else value for value in values])


# -- data


def lines(name: str) -> Iterator[dict[str, Any]]:
    with lzma.open(DATA / "train" / name, "rt", encoding="utf-8") as file:
        yield from map(json.loads, file)


def order(id: str) -> int:
    """A pseudo-random order that does not depend on the corpus."""
    return zlib.crc32(f"g{id}".encode())


def passages(count: int | None) -> Texts:
    chosen = sorted(lines("passages.jsonl.xz"), key=lambda passage: order(passage["id"]))[:count]
    documents = [Document(each["id"], each["text"], title=each.get("title") or "") for each in chosen]
    return Texts([document.id for document in documents], [document.encoded_text for document in documents])


def pairs(known: set[str], chosen: Callable[[int], bool], count: int) -> list[tuple[str, frozenset[str]]]:
    """Queries of several words with their passages, of those whose CRC is chosen."""
    relevant: dict[str, set[str]] = {}
    for pair in lines("pairs.jsonl.xz"):
        is_chosen = chosen(zlib.crc32(pair["positive"].encode())) and pair["positive"] in known
        if is_chosen and " " in pair["query"].strip():
            relevant.setdefault(pair["query"], set()).add(pair["positive"])
    first = sorted(relevant, key=order)[:count]
    return [(query, frozenset(relevant[query])) for query in first]


def encode_queries(encoder: GpuEncoder, given: Sequence[tuple[str, frozenset[str]]]) -> Queries:
    routed = encoder.texts.encode_queries([query for query, _ in given])
    rows = [(each.keys, each.weights, each.vectors, each.semantic) for each in routed]
    return Queries(rows, [relevant for _, relevant in given])


def save_queries(path: Path, queries: Queries) -> None:
    """Write the queries for `peers/vectors.py`."""
    keys, weights, _, semantic = zip(*queries.part(1000).rows, strict=True)
    rows: dict[str, Any] = {"keys": np.concatenate(keys), "weights": np.concatenate(weights)}
    np.savez(path, offsets=np.cumsum([0, *map(len, keys)]), semantic=np.stack(semantic), **rows)


def crops(tokens: Tokens, count: int) -> tuple[Tokens, int]:
    """About `count` windows of WINDOW tokens, evenly spread over all texts, and their distance in tokens."""
    inner = tokens.lengths - 2  # without [CLS] and [SEP]
    stride = 1
    while stride < WINDOW and (np.maximum(inner - WINDOW + stride, 0) // stride).sum() > count:
        stride += 1
    windows = np.maximum(inner - WINDOW + stride, 0) // stride
    firsts = np.arange(windows.sum()) - np.repeat(np.cumsum(windows) - windows, windows)
    starts = np.repeat(tokens.offsets[:-1] + 1, windows) + stride * firsts
    starts = np.random.default_rng(5).permutation(starts)[:count]
    ids = np.empty((len(starts), WINDOW + 2), np.int32)
    ids[:, 1:-1] = tokens.ids[starts[:, None] + np.arange(WINDOW)]
    ids[:, 0], ids[:, -1] = tokens.ids[0], tokens.ids[tokens.offsets[1] - 1]
    return Tokens(ids.reshape(-1), np.arange(len(starts) + 1) * (WINDOW + 2)), stride


# -- index


def build(run: Run, name: str, folder: Path, batches: Iterator[VectorBatch]) -> citadel.Index:
    """Index the batches in one segment and link it; notes seconds and sizes."""
    shutil.rmtree(folder, ignore_errors=True)
    start = time.perf_counter()
    settings: dict[str, Any] = {"router": "dynamic", "fields": {"lexical": 32, "semantic": 384}}
    index = citadel.Index.create(folder, fingerprint="small-en", memory=40 << 30, **settings)
    index._writer.add_vectors(ahead(batches))
    index.commit(graph=False)
    if len(index.searcher(threads=1).snapshot.segments) > 1:
        index.merge(graph=False)
    indexed = time.perf_counter()
    used = time.process_time()
    index.optimize(min_documents=1)
    seconds, used = time.perf_counter() - indexed, time.process_time() - used
    [segment] = index.searcher(threads=1).snapshot.segments
    graph = next(folder.glob("graph-*"))
    run.note(
        name,
        {
            "documents": len(index),
            "postings per document": round(segment.meta.postings / len(index), 1),
            "encode and index, s": round(indexed - start, 1),
            "graph, s": round(seconds, 1),
            "graph, CPU ms per document": round(1e3 * used / len(index), 4),
            "graph, bytes per document": round(graph.stat().st_size / len(index), 1),
        },
    )
    return index


# -- search


@contextlib.contextmanager
def one_core() -> Iterator[None]:
    """Pin this thread."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(before)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


class Timed(NamedTuple):
    """Milliseconds of each query and the results."""

    times: NDArray[np.float64]
    hits: list[Scored]

    def overlap(self, exact: Timed) -> float:
        return overlap(exact.hits, self.hits)

    @property
    def p50(self) -> float:
        return float(np.percentile(self.times, 50))

    @property
    def p95(self) -> float:
        return float(np.percentile(self.times, 95))


def overlap(exact: Sequence[Scored], other: Sequence[Scored]) -> float:
    pairs = zip(exact, other, strict=True)
    return float(np.mean([np.isin(want.numbers, own.numbers).mean() for want, own in pairs]))


class Subject:
    """An index that is measured."""

    def __init__(self, index: citadel.Index) -> None:
        self.searcher = index.searcher()
        self._one = index.searcher(threads=1)

    def options(self, k: int, mode: str, ef: int | None = None) -> Options:
        return plan_options(self.searcher.snapshot, k, mode, None, ef)

    def prepared(self, queries: Queries, on_one: bool = False) -> list[Any]:
        searcher = self._one if on_one else self.searcher
        return [searcher.prepare_vectors(*row).query for row in queries.rows]

    def search(self, queries: Queries, options: Options) -> list[Scored]:
        """On all cores."""
        return list(self.searcher._engine.search_batch(self.prepared(queries), options))

    def timed(
        self,
        queries: Queries,
        searches: Sequence[Options],
        rounds: Sequence[int],
        shares: Sequence[float] = (),
    ) -> list[Timed]:
        """Each search of all queries in turns, on one core, with its share of the documents allowed.

        Round r takes part where r < its rounds."""
        engine, prepared = self._one._engine, self.prepared(queries, on_one=True)
        filters = {share: self._allowed(share) for share in {*shares, 1.0}}
        results = [Timed(np.full(len(prepared), np.inf), []) for _ in searches]
        with one_core():
            for turn in range(max(rounds)):
                each_share = shares or [1.0] * len(searches)
                for options, limit, share, result in zip(searches, rounds, each_share, results, strict=True):
                    if turn >= limit:
                        continue
                    allowed = filters[share]
                    result.hits.clear()
                    for row, query in enumerate(prepared):
                        start = time.perf_counter()
                        result.hits.append(engine.search(query, options, None, allowed))
                        seconds = time.perf_counter() - start
                        result.times[row] = min(result.times[row], 1e3 * seconds)
        return results

    def _allowed(self, share: float) -> Any:
        """A filter that allows this share of the documents, chosen at random; None for all."""
        if share == 1:
            return None
        random, segments = np.random.default_rng(7), self._one.snapshot.segments
        return self._one._engine.prepare_filter([random.random(each.passages) < share for each in segments])

    def choose_ef(self, queries: Queries, k: int) -> int:
        """The smallest ef of the ladder with enough overlap."""
        exact = self.search(queries, self.options(k, "exact"))
        for ef in LADDERS[k]:
            if overlap(exact, self.search(queries, self.options(k, "graph", ef))) >= OVERLAP:
                return ef
        return LADDERS[k][-1]


def measure(run: Run, name: str, subject: Subject, tuning: Queries, held_out: Queries, rounds: int) -> None:
    """Rows of the table for one index."""
    for k in LADDERS:
        ef = subject.choose_ef(tuning, k)
        searches = [subject.options(k, "graph", ef), subject.options(k, "graph")]
        searches += [subject.options(k, "rerank"), subject.options(k, "exact")]
        timed = subject.timed(held_out, searches, [rounds, rounds, rounds, 1])
        labels = (f"graph, ef {ef}", f"graph, default ef {searches[1].ef}", "rerank", "exact")
        for label, result in zip(labels, timed, strict=True):
            scored = float(np.mean([hits.dot_products for hits in result.hits]))
            run.row(name, f"k {k}, {label}", result.overlap(timed[-1]), result.p50, result.p95, scored)


def measure_filters(run: Run, name: str, subject: Subject, held_out: Queries, rounds: int) -> None:
    """Rows of the table for searches with filters, in turns with unfiltered ones."""
    for k in LADDERS:
        graph, exact = subject.options(k, "graph"), subject.options(k, "exact")
        for share in SHARES:
            searches, shares = [graph, graph, exact], [1.0, share, share]
            plain, filtered, scan = subject.timed(held_out, searches, [rounds, rounds, 1], shares)
            scored = float(np.mean([hits.dot_products for hits in filtered.hits]))
            label = f"k {k}, graph, {share:.0%} allowed, {filtered.p50 / plain.p50:.2f} of all"
            run.row(name, label, filtered.overlap(scan), filtered.p50, filtered.p95, scored)


# -- quality


def ndcg(ids: Sequence[str], results: Sequence[Scored], relevant: Sequence[dict[str, int]]) -> float:
    """nDCG@10 with linear gains; results are documents in the order of `ids`."""
    discounts, values = 1 / np.log2(np.arange(2, 12)), []
    for scored, grades in zip(results, relevant, strict=True):
        gains = np.array([grades.get(ids[number], 0) for number in scored.numbers[:10].tolist()], float)
        best = np.array(sorted(grades.values(), reverse=True)[:10], float)
        values.append((gains * discounts[: len(gains)]).sum() / (best * discounts[: len(best)]).sum())
    return float(np.mean(values))


def compare_ndcg(subject: Subject, ids: Sequence[str], queries: Queries, grades: list[dict[str, int]]) -> Any:
    values = {
        mode: ndcg(ids, subject.search(queries, subject.options(10, mode)), grades)
        for mode in ("graph", "exact")
    }
    return {mode: round(value, 5) for mode, value in values.items()}


def read_qrels(path: Path) -> dict[str, dict[str, int]]:
    """Query → document → grade of a BEIR file."""
    qrels: dict[str, dict[str, int]] = {}
    for line in path.read_text().splitlines()[1:]:
        query, document, grade = line.split("\t")
        qrels.setdefault(query, {})[document] = int(grade)
    return qrels


def collections(run: Run, encoder: GpuEncoder, tokenisers: Tokenisers, folder: Path) -> None:
    """nDCG@10 of the three evaluation collections."""
    for source in sorted((DATA / "eval").glob("*/corpus.jsonl")):
        name, rows = source.parent.name, [json.loads(line) for line in source.read_text().splitlines()]
        texts = [Document(row["_id"], row["text"], title=row.get("title") or "").encoded_text for row in rows]
        ids, tokens = [row["_id"] for row in rows], tokenisers.start(texts)()
        index = build(run, name, folder / name, encoder.batches(tokens, ids, []))
        qrels = read_qrels(source.parent / "qrels" / "test.tsv")
        asked = {row["_id"]: row["text"] for row in map(json.loads, (source.parent / "queries.jsonl").open())}
        judged = {query: grades for query, grades in qrels.items() if any(grades.values())}
        queries = encode_queries(encoder, [(asked[query], frozenset()) for query in judged])
        run.note(f"nDCG@10, {name}", compare_ndcg(Subject(index), ids, queries, list(judged.values())))


# -- the run


def measure_passages(
    run: Run, encoder: GpuEncoder, texts: Texts, tokens: Tokens, given: argparse.Namespace
) -> None:
    known = set(texts.ids)
    held_out = encode_queries(encoder, pairs(known, lambda crc: crc % 100 == 0, 10_000))
    tuning = encode_queries(encoder, pairs(known, lambda crc: crc % 2 == 1, given.queries))
    run.note("held-out queries", len(held_out.rows))
    save_queries(given.folder / "queries.npz", held_out)
    index = build(run, "passages", given.folder / "passages", encoder.batches(tokens, texts.ids, []))
    subject = Subject(index)
    grades = [dict.fromkeys(relevant, 1) for relevant in held_out.relevant]
    run.note("nDCG@10, held-out pairs", compare_ndcg(subject, texts.ids, held_out, grades))
    few = held_out.part(given.queries)
    measure(run, "passages", subject, tuning, few, given.rounds)
    measure_filters(run, "passages", subject, few, given.rounds)
    eighth = len(tokens) // 8
    part = tokens.chosen(np.arange(eighth))
    small = build(run, "eighth", given.folder / "eighth", encoder.batches(part, texts.ids[:eighth], []))
    known = set(texts.ids[:eighth])
    few = encode_queries(encoder, pairs(known, lambda crc: crc % 100 == 0, given.queries))
    own = encode_queries(encoder, pairs(known, lambda crc: crc % 2 == 1, given.queries))
    measure(run, "eighth", Subject(small), own, few, given.rounds)
    growth(run)


def growth(run: Run) -> None:
    """How many times longer a search of all passages takes than one of an eighth, at the chosen ef."""
    for k in LADDERS:
        times = {
            row[0]: row[3]
            for row in run.rows
            if row[1].startswith(f"k {k}, graph, ef") and row[0] in ("passages", "eighth")
        }
        run.note(f"growth, k = {k}", round(times["passages"] / times["eighth"], 3))


def measure_crops(
    run: Run, encoder: GpuEncoder, texts: Texts, tokens: Tokens, given: argparse.Namespace
) -> None:
    count = min(given.crops, int(run.left * CROPS_PER_SECOND))
    if count < given.least_crops:
        return run.note("crops", f"left out: {run.left:.0f} s are left")
    known = set(texts.ids)
    queries = min(given.queries, 150)
    few = encode_queries(encoder, pairs(known, lambda crc: crc % 100 == 0, queries))
    tuning = encode_queries(encoder, pairs(known, lambda crc: crc % 2 == 1, queries))
    own, stride = crops(tokens, count)
    run.note("crops", f"{len(own):,} windows of {WINDOW} tokens, {stride} apart")
    ids = [str(number) for number in range(len(own))]
    subject = Subject(build(run, "cropped", given.folder / "crops", encoder.batches(own, ids, [])))
    measure(run, "crops", subject, tuning, few, 2)
    if run.left > 20:
        measure_filters(run, "crops", subject, few, 2)
    return None


def print_table(run: Run) -> None:
    print(f"\n{'collection':<10} {'search':<40} {'overlap':>8} {'p50 ms':>8} {'p95 ms':>8} {'scored':>11}")
    for name, label, share, p50, p95, scored in run.rows:
        print(f"{name:<10} {label:<40} {share:8.4f} {p50:8.3f} {p95:8.3f} {scored:11,.0f}")
    for name, value in run.results.items():
        if name != "row":
            print(f"{name}: {value}")


def main() -> None:
    """Run all steps and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, nargs="?", default=Path("build/graph-large"))
    parser.add_argument("--out", type=Path, help="JSON file of the results; default: FOLDER/results.json")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--passages", type=int, help="default: all")
    parser.add_argument("--crops", type=int, default=2_600_000)
    parser.add_argument("--least-crops", type=int, default=500_000, help="with time for fewer: none")
    parser.add_argument("--queries", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=420, help="time for everything")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    run = Run(given.out or given.folder / "results.json", given.seconds)
    tokenisers = Tokenisers()
    texts = passages(given.passages)
    waiting = tokenisers.start(texts.texts)
    run.note("passages read", len(texts.ids))
    encoder = GpuEncoder(given.device)
    tokens = waiting()
    run.note("tokens", len(tokens.ids))
    try:
        measure_passages(run, encoder, texts, tokens, given)
        collections(run, encoder, tokenisers, given.folder)
        measure_crops(run, encoder, texts, tokens, given)
    finally:
        print_table(run)


if __name__ == "__main__":
    main()
