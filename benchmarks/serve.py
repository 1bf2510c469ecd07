"""Throughput of the server against the engine alone, at 1, 2 and 8 times saturation.

Two indexes of the documentation of Python's standard library: that of `citadel demo`, whose queries are
encoded by the default model (--model DIR for another, --index FOLDER for an existing index) and take
milliseconds; and BM25, whose search takes microseconds, so that HTTP dominates: in one process, and in one
process per core on a shared port. Engine, server and wrk share all cores of the machine.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
from common import report

import citadel
from citadel.demo import passages
from citadel.settings import available_threads

K = 10
CONNECTIONS = (1, 2, 4, 8, 16)  # tried to find saturation
SATURATED = 0.95  # of the best rate
TIMES = (1, 2, 8)
WORDS = 7  # per query: the beginning of a document's first sentence
QUERIES = 500


def queries(count: int) -> list[str]:
    """Beginnings of the documents' sentences, so that each query has hits."""
    texts = [" ".join(document.text.split()[:WORDS]) for document in passages()]
    return texts[:: max(len(texts) // count, 1)][:count]


def build(folder: Path, model: str) -> Path:
    with citadel.Index.create(folder, model=model) as index:
        index.add(passages())
        index.commit()
        index.merge()
    return folder


def engine_rate(index: Path, texts: list[str], seconds: float) -> tuple[float, float]:
    """Searches per second in this process with one thread per core, and CPU time per search."""
    searcher = citadel.Index.open(index, threads=1).searcher(threads=1)
    counts, end = [0] * available_threads(), time.perf_counter() + seconds

    def work(number: int) -> None:
        turn = number * 7
        while time.perf_counter() < end:
            turn += 1
            for hit in searcher.search(texts[turn % len(texts)], k=K):
                assert hit.text is not None
            counts[number] += 1

    searcher.search(texts[0])
    before = time.process_time()
    threads = [threading.Thread(target=work, args=(number,)) for number in range(len(counts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(counts) / seconds, (time.process_time() - before) / max(sum(counts), 1)


@contextlib.contextmanager
def served(index: Path, count: int) -> Iterator[tuple[str, list[psutil.Process]]]:
    """Start `citadel serve` with default settings but no access log; several processes share a port."""
    with contextlib.ExitStack() as stack:
        url, processes = "http://127.0.0.1:0", []
        for _ in range(count):
            url, process = stack.enter_context(_one(index, url.rpartition(":")[2], count > 1))
            processes.append(process)
        yield url, processes


@contextlib.contextmanager
def _one(index: Path, port: str, shared: bool) -> Iterator[tuple[str, psutil.Process]]:
    command = [sys.executable, "-m", "citadel.cli", "serve", str(index), "--port", port, "--no-access-log"]
    process = subprocess.Popen(
        [*command, *(["--share-port"] if shared else [])], stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    try:
        yield json.loads(process.stderr.readline())["url"], psutil.Process(process.pid)
    finally:
        process.terminate()
        process.communicate()


def wrk(url: str, connections: int, seconds: float, bodies: Path) -> dict[str, float]:
    script = Path(__file__).with_suffix(".lua")
    command = [
        "wrk",
        "-t1",
        f"-c{connections}",
        f"-d{round(seconds)}s",
        "-s",
        str(script),
        url,
        "--",
        str(bodies),
    ]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    figures = {name: float(value) for name, value in re.findall(r"^figure (\w+) (\S+)$", text, re.MULTILINE)}
    return figures | {"rate": figures["ok"] / figures["seconds"]}


def saturation(url: str, seconds: float, bodies: Path) -> int:
    """The fewest connections that reach the best rate."""
    rates = {count: wrk(url, count, seconds, bodies)["rate"] for count in CONNECTIONS}
    return next(count for count, rate in rates.items() if rate >= SATURATED * max(rates.values()))


def timed(servers: list[psutil.Process], *options: Any) -> dict[str, float]:
    """The figures of wrk, and the server's CPU time per response, which depends less on other load."""
    before = sum(sum(server.cpu_times()[:2]) for server in servers)
    figures = wrk(*options)
    spent = sum(sum(server.cpu_times()[:2]) for server in servers) - before
    return figures | {"cpu": spent / max(figures["ok"], 1)}


def measure(
    name: str, index: Path, count: int, texts: list[str], seconds: float, rounds: int
) -> Iterator[dict[str, Any]]:
    """Medians for engine and server, alternating, so that a noisy machine affects both alike."""
    with tempfile.TemporaryDirectory() as folder, served(index, count) as (url, servers):
        bodies = Path(folder, "bodies.jsonl")
        bodies.write_text("".join(json.dumps({"query": query, "k": K}) + "\n" for query in texts))
        wrk(url, 4, 2, bodies)
        enough = saturation(url, max(seconds / 3, 2), bodies)
        engines, turns = [], []
        for _ in range(rounds):
            engines.append(engine_rate(index, texts, seconds))
            turns.append([timed(servers, url, times * enough, seconds, bodies) for times in TIMES])
    rate, cpu = (statistics.median(values) for values in zip(*engines, strict=True))
    for number, times in enumerate(TIMES):
        figures = {key: statistics.median(turn[number][key] for turn in turns) for key in turns[0][0]}
        row = {"index": name, "processes": count, "times": times, "connections": times * enough}
        yield row | {"engine": rate, "engine_cpu": cpu} | figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", help="a model folder instead of the default model")
    parser.add_argument("--index", help="an existing index of these documents with a model")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    if shutil.which("wrk") is None:
        raise SystemExit("wrk is missing: apt install wrk")
    texts, load = queries(QUERIES), os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder:
        model = (
            Path(options.index) if options.index else build(Path(folder, "model"), options.model or "default")
        )
        words, cores = build(Path(folder, "bm25"), "bm25"), available_threads()
        cases = [("model", model, 1), ("bm25", words, 1), *([("bm25", words, cores)] if cores > 1 else [])]
        rows = [row for case in cases for row in measure(*case, texts, options.seconds, options.rounds)]
    columns = (
        "index", "processes", "× saturation", "connections", "engine/s", "server/s", "kept", "engine CPU µs",
        "server CPU µs", "p50 ms", "p99 ms", "refused",
    )  # fmt: skip
    table = [
        (
            row["index"], row["processes"], row["times"], row["connections"], round(row["engine"], 1),
            round(row["rate"], 1), round(row["rate"] / row["engine"], 3), round(row["engine_cpu"] * 1e6),
            round(row["cpu"] * 1e6), round(row["p50_ms"], 2), round(row["p99_ms"], 2), int(row["busy"]),
        )
        for row in rows
    ]  # fmt: skip
    report(
        "serve",
        "searches per second, in process and over HTTP",
        columns,
        table,
        load_before=load,
        seconds=options.seconds,
    )


if __name__ == "__main__":
    main()
