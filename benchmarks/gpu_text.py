"""A real index on the card: loaded from its files, its answers beside the numpy engine's, and text in → ranking out.

    python benchmarks/gpu_text.py INDEX [--model DIR] [--device cuda] [--queries FILE] [-k 100]

Needs no native module, so an index built elsewhere can be carried to a bare GPU machine.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from citadel.library import Index
from citadel.search.searcher import Searcher

TEXTS = ("how is a list sorted in place", "open a file for reading", "what does a generator return", "parse a date")


def queries(file: str, limit: int) -> list[str]:
    """The queries of a JSONL file, or some of our own."""
    if not file:
        return list(TEXTS)
    lines = Path(file).read_text(encoding="utf-8").splitlines()[:limit]
    return [str(json.loads(line)["text"]) for line in lines]


def compare(card: Searcher, slow: Searcher, texts: list[str], k: int) -> dict[str, float]:
    """Per mode: the share of the numpy engine's best k that the card finds, and whether order and scores are equal."""
    found: dict[str, float] = {}
    for mode in ("exact", "rerank", "off") if card.settings.semantic else ("off",):
        overlaps, equal = [], 0
        for text in texts:
            [routed] = card._query_encoder().encode_queries([text]) if card._query_encoder else []
            parts: dict[str, Any] = {"keys": routed.keys, "weights": routed.weights, "vectors": routed.vectors}
            asked = parts | {"semantic": routed.semantic}
            one, other = (searcher.search_vectors(**asked, k=k, semantic_mode=mode) for searcher in (card, slow))
            overlaps.append(len(set(one.ids) & set(other.ids)) / max(len(other.ids), 1))
            equal += (one.ids, one.scores) == (other.ids, other.scores)
        found[mode] = float(np.mean(overlaps))
        print(f"{mode:7s} overlap@{k} {found[mode]:.4f}; {equal} of {len(texts)} answers equal to the last bit")
    return found


def text_to_ranking(searcher: Searcher, texts: list[str], k: int, rounds: int) -> None:
    """Milliseconds from a text to its hits' numbers and scores."""
    for text in texts:
        searcher.search(text, k)
    spent = []
    for _ in range(rounds):
        for text in texts:
            start = time.perf_counter()
            searcher.search(text, k)
            spent.append(time.perf_counter() - start)
    print("text in → ranking out: p50 {:.3f} ms, p95 {:.3f} ms".format(*np.percentile(spent, [50, 95]) * 1e3))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("index")
    parser.add_argument("--model", default=None)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu,cpu")
    parser.add_argument("--queries", default="")
    parser.add_argument("--limit", type=int, default=50)
    parser.add_argument("-k", type=int, default=100)
    asked = parser.parse_args()
    index = Index.open(asked.index, model=asked.model)
    start = time.perf_counter()
    card = index.searcher(device=asked.device)
    print(f"{len(index):,} documents loaded onto {asked.device} in {time.perf_counter() - start:.2f} s")
    texts = queries(asked.queries, asked.limit)
    compare(card, index.searcher(engine="reference"), texts, asked.k)
    text_to_ranking(card, texts, asked.k, 20 if asked.device.startswith("cuda") else 1)


if __name__ == "__main__":
    main()
