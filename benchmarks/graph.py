"""Graph search beside the exact scan of the same index, on one core: overlap and time by `ef` and filter.

    python benchmarks/graph.py build/graph [--passages 40000] [--queries 300] [--rounds 3]

The index holds training passages below $CITADEL_DATA, encoded with the default model;
an interrupted run resumes. Queries are those of the training pairs whose passage is in the index, so that no
evaluation query is touched. *overlap* is the share of the exact top k that the graph search returns. Times
are the median over queries of the minimum of several rounds; a round searches all queries with the graph,
then all with a scan, so that no query finds its own data in the caches. Under filters the same share of
documents, chosen at random, is allowed for both; a scan takes over where few are. Random vectors mislead a
graph, so there is no synthetic variant.
"""

from __future__ import annotations

import argparse
import json
import lzma
import os
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from common import one_core, report
from numpy.typing import NDArray

import citadel
from citadel.cli.support.resumable_build import BuildOptions, build
from citadel.search.plan import Options, plan_options

DATA = Path(os.environ.get("CITADEL_DATA", "data")) / "train"
DEPTHS = {10: (16, 32, 48, 96), 100: (100, 160, 200, 320)}  # k: ef
SHARES = (0.5, 0.25, 0.1, 0.01)
COMMIT_SECONDS = 60.0


class Measured(NamedTuple):
    """Overlap with the exact ranking, median milliseconds of both, vectors scored per query."""

    overlap: float
    graph: float
    exact: float
    scored: float


def lines(name: str) -> Iterator[dict[str, Any]]:
    """The objects of a compressed JSONL file of the training data."""
    with lzma.open(DATA / name, "rt", encoding="utf-8") as file:
        yield from map(json.loads, file)


def order(id: str) -> int:
    """A pseudo-random order that does not depend on the corpus."""
    return zlib.crc32(f"g{id}".encode())


def write_corpus(path: Path, count: int) -> None:
    """Write the first `count` passages in pseudo-random order."""
    chosen = sorted(lines("passages.jsonl.xz"), key=lambda passage: order(passage["id"]))[:count]
    rows = ({name: passage[name] for name in ("id", "title", "text")} for passage in chosen)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def open_index(folder: Path, passages: int) -> citadel.Index:
    """Build, resume or open the index, in one segment with a graph."""
    folder.mkdir(parents=True, exist_ok=True)
    corpus, index = folder / f"passages-{passages}.jsonl", folder / f"index-{passages}"
    if not corpus.exists():
        write_corpus(corpus, passages)
    build(BuildOptions(str(corpus), str(index), {}, {}, commit_seconds=COMMIT_SECONDS, graph=False))
    opened = citadel.Index.open(index)
    opened.merge(graph=False)
    start, used = time.perf_counter(), time.process_time()
    if opened.optimize(min_documents=1):
        seconds, used = time.perf_counter() - start, time.process_time() - used
        wall, cpu = 1e3 * seconds / len(opened), 1e3 * used / len(opened)
        print(f"graph built: {wall:.3f} ms per document, {cpu:.3f} ms of CPU time")
    graph = next(index.glob("graph-*")).stat().st_size
    print(f"graph file: {graph / len(opened):.0f} bytes per document")
    return opened


def queries(index: citadel.Index, count: int) -> list[str]:
    """Queries of training pairs whose passage is in the index; single words are left out.

    Pairs with an odd CRC of the passage id are left for choosing settings."""
    known = (pair for pair in lines("pairs.jsonl.xz") if " " in pair["query"].strip())
    known = (pair for pair in known if zlib.crc32(pair["positive"].encode()) % 2 == 0)
    chosen = sorted(
        (pair for pair in known if pair["positive"] in index), key=lambda pair: order(pair["query"])
    )
    return [pair["query"] for pair in chosen[:count]]


def measure(
    searcher: citadel.Searcher, prepared: list[Any], options: Options, rounds: int, allowed: Any
) -> Measured:
    """Search all queries with the graph, then all with a scan, in turns."""
    engine, modes = searcher._engine, ("graph", "exact")
    times = np.full((2, len(prepared)), np.inf)
    hits: dict[str, list[Any]] = {}
    for _ in range(rounds):
        for row, mode in enumerate(modes):
            own, hits[mode] = options._replace(semantic=mode), []
            for position, query in enumerate(prepared):
                start = time.perf_counter()
                hits[mode].append(engine.search(query, own, None, allowed))
                times[row, position] = min(times[row, position], time.perf_counter() - start)
    pairs = zip(hits["exact"], hits["graph"], strict=True)
    overlap = np.mean([np.isin(exact.numbers, graph.numbers).mean() for exact, graph in pairs])
    graph, exact = (1e3 * np.median(times, axis=1)).tolist()
    return Measured(float(overlap), graph, exact, float(np.mean([hit.dot_products for hit in hits["graph"]])))


def random_mask(documents: int, share: float) -> NDArray[np.bool_]:
    """A mask that allows this share of the documents."""
    return np.random.default_rng(7).random(documents) < share


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, nargs="?", default=Path("build/graph"))
    parser.add_argument("--index", help="measure this index instead; its ids must be those of the passages")
    parser.add_argument("--passages", type=int, default=40_000)
    parser.add_argument("--queries", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    if not (DATA / "passages.jsonl.xz").exists():
        print(f"graph.py: {DATA} has no passages.jsonl.xz: skipped")
        return
    index = citadel.Index.open(given.index) if given.index else open_index(given.folder, given.passages)
    one_core()
    searcher = index.searcher(threads=1)
    prepared = [query.query for query in searcher.prepare(queries(index, given.queries))]
    snapshot, rows = searcher.snapshot, []
    for k, depths in DEPTHS.items():
        for ef in depths:
            options = plan_options(snapshot, k, "graph", None, ef)
            rows.append(row(f"k = {k}, ef = {ef}", measure(searcher, prepared, options, given.rounds, None)))
        for share in SHARES:
            masks = [random_mask(segment.passages, share) for segment in snapshot.segments]
            allowed = searcher._engine.prepare_filter(masks)
            options = plan_options(snapshot, k, "graph", None)
            label = f"k = {k}, ef = {options.ef}, {share:.0%} allowed"
            rows.append(row(label, measure(searcher, prepared, options, given.rounds, allowed)))
    columns = ("search", "overlap", "graph ms", "exact ms", "exact / graph", "scored")
    report("graph", f"Graph search of {len(index):,} passages", columns, rows)


def row(label: str, measured: Measured) -> tuple[str | float, ...]:
    """A row of the table."""
    ratio = measured.exact / measured.graph
    return label, measured.overlap, measured.graph, measured.exact, ratio, measured.scored


if __name__ == "__main__":
    main()
