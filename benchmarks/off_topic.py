"""Relevance of the first hit for judged queries and for off-topic ones.

    .venv/bin/python benchmarks/off_topic.py INDEX QUERIES.jsonl QRELS.tsv

INDEX is a model's index of a collection, QUERIES and QRELS its judged queries. Off-topic queries are 200
held-out training queries on packages, web documentation and Wikipedia, from `train` in CITADEL_DATA.
"""

from __future__ import annotations

import argparse
import json
import lzma
import os
import random
import statistics
import zlib

import citadel
from citadel.eval.runs import read_qrels
from citadel.text.queries import read_queries

DATA = os.environ.get("CITADEL_DATA", "data")
SOURCES = ("boolq", "debian", "dotnet", "mdn")
QUERIES = 200
POOR = 0.05  # relevance below which the page fades a hit


def main() -> None:
    """Print the medians and the share of off-topic queries below the judged median."""
    parser = argparse.ArgumentParser(description="Relevance of first hits, on topic and off topic.")
    for name in ("index", "queries", "qrels"):
        parser.add_argument(name)
    arguments = parser.parse_args()
    judged = read_qrels(arguments.qrels)
    searcher = citadel.Index.open(arguments.index).searcher()
    on_topic = _first(searcher, [text for id, text in read_queries(arguments.queries) if id in judged])
    off_topic = _first(searcher, _off_topic())
    median = statistics.median(on_topic)
    below = sum(value < median for value in off_topic) / len(off_topic)
    print(f"judged: {len(on_topic)} queries, median {median:.3f}, below {POOR}: {_poor(on_topic):.3f}")
    print(f"off topic: {len(off_topic)} queries, median {statistics.median(off_topic):.3f}, ", end="")
    print(f"largest {max(off_topic):.3f}, below {POOR}: {_poor(off_topic):.3f}")
    print(f"off topic below the judged median: {below:.3f}")


def _first(searcher: citadel.Searcher, texts: list[str]) -> list[float]:
    return [hits[0].relevance or 0.0 for _, hits in searcher.search_batch(texts, k=1)]


def _poor(values: list[float]) -> float:
    return sum(value < POOR for value in values) / len(values)


def _off_topic() -> list[str]:
    with lzma.open(os.path.join(DATA, "train", "pairs.jsonl.xz"), "rt", encoding="utf-8") as file:
        pairs = [json.loads(line) for line in file]
    held_out = [pair for pair in pairs if zlib.crc32(pair["positive"].encode()) % 100 == 0]
    texts = [pair["query"] for pair in held_out if pair["positive"].split("-")[0] in SOURCES]
    return random.Random(28).sample(texts, QUERIES)


if __name__ == "__main__":
    main()
