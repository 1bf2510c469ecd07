"""A real index on a GPU: loading time, results against the numpy engine, and latency from text to ranking.

    python benchmarks/gpu_text.py INDEX [--model DIR] [--device cuda] [--queries FILE] [-k 100] [--kernels]

Encoding is also timed alone, kernel by kernel and recorded, after a comparison of the two.
Needs no native module, so an index built elsewhere can be carried to a bare GPU machine.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from citadel.api import Index
from citadel.model.texts import TorchTexts
from citadel.search.searcher import Searcher
from citadel.types import RoutedTokens

TEXTS = (
    "how is a list sorted in place",
    "open a file for reading",
    "what does a generator return",
    "parse a date",
)


def queries(file: str, limit: int) -> list[str]:
    """The queries of a JSONL file, or a few built-in ones."""
    if not file:
        return list(TEXTS)
    lines = Path(file).read_text(encoding="utf-8").splitlines()[:limit]
    return [str(json.loads(line)["text"]) for line in lines]


def compare(gpu: Searcher, slow: Searcher, texts: list[str], k: int) -> dict[str, float]:
    """Per mode: overlap with the numpy engine's best k, and the number of bit-equal results."""
    overlap: dict[str, float] = {}
    for mode in ("exact", "rerank", "off") if gpu.settings.semantic else ("off",):
        overlaps, equal = [], 0
        for text in texts:
            [routed] = gpu._query_encoder().encode_queries([text]) if gpu._query_encoder else []
            parts: dict[str, Any] = {
                "keys": routed.keys,
                "weights": routed.weights,
                "vectors": routed.vectors,
            }
            query = parts | {"semantic": routed.semantic}
            one, other = (
                searcher.search_vectors(**query, k=k, semantic_mode=mode) for searcher in (gpu, slow)
            )
            overlaps.append(len(set(one.ids) & set(other.ids)) / max(len(other.ids), 1))
            equal += (one.ids, one.scores) == (other.ids, other.scores)
        overlap[mode] = float(np.mean(overlaps))
        print(f"{mode:7s} overlap@{k} {overlap[mode]:.4f}; {equal} of {len(texts)} results bit-equal")
    return overlap


def timed(what: str, run: Callable[[str], Any], texts: list[str], rounds: int) -> None:
    """Print milliseconds per text, without the first run of each."""
    for text in texts:
        run(text)
    spent = []
    for _ in range(rounds):
        for text in texts:
            start = time.perf_counter()
            run(text)
            spent.append(time.perf_counter() - start)
    print("{:35s} p50 {:.3f} ms, p95 {:.3f} ms".format(what, *np.percentile(spent, [50, 95]) * 1e3))


class EncodingPaths:
    """A query through one model on the GPU: kernel by kernel, or as a recorded graph."""

    def __init__(self, encoder: TorchTexts) -> None:
        assert encoder._single is not None
        self.encoder, self.single = encoder, encoder._single

    def plain(self, text: str) -> RoutedTokens:
        """Kernel by kernel, as a batch of one."""
        return self.encoder._route_all(self.encoder.tokenizer.queries([text]), True, 0.0)[0]

    def alone(self, text: str) -> RoutedTokens:
        """Recorded, with a GPU."""
        return self.encoder.encode_queries([text])[0]

    def compare(self, texts: list[str]) -> None:
        """Compare both paths; after the first round every shape is recorded."""
        pairs = [(self.plain(text), self.alone(text)) for text in texts * 2]
        keys = sum(np.array_equal(one.keys, other.keys) for one, other in pairs)
        print(
            f"recorded: {self.single.record}, {len(self.single._shapes)} shapes; "
            f"equal keys {keys} of {len(pairs)}"
        )
        for name in ("weights", "vectors", "semantic"):
            print(f"  {name}: largest difference {max(_difference(name, *pair) for pair in pairs):.3g}")

    def first_times(self, texts: list[str]) -> None:
        """Time the first query of each shape, recording included."""
        spent: list[float] = []
        for text in texts:
            known, start = len(self.single._shapes), time.perf_counter()
            self.alone(text)
            if len(self.single._shapes) > known:
                spent.append((time.perf_counter() - start) * 1e3)
        print("first queries of each shape, ms:", " ".join(f"{each:.0f}" for each in spent))

    def replay_alone(self) -> None:
        """Time the GPU alone for the last shape, from the copy in to the copy out."""
        query = list(self.single._shapes.values())[-1]
        if query.graph is None:
            return
        ends = [torch.cuda.Event(enable_timing=True) for _ in range(2)]  # type: ignore[no-untyped-call]
        ends[0].record()
        for _ in range(100):
            query.graph.replay()
        ends[1].record()
        ends[1].synchronize()
        print(
            f"{'a replay on the GPU':35s} mean {ends[0].elapsed_time(ends[1]) / 100:.3f} ms, {query._shape}"
        )


def _difference(name: str, one: RoutedTokens, other: RoutedTokens) -> float:
    left, right = getattr(one, name), getattr(other, name)
    if left is None or right is None:
        return 0.0 if left is right else float("inf")
    if left.shape != right.shape:
        return float("inf")
    return float(np.abs(left - right).max(initial=0.0))


def show_kernels(paths: EncodingPaths, text: str) -> None:
    """Print the time per kernel of one recorded query."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as seen:
        for _ in range(10):
            paths.alone(text)
    print(seen.key_averages().table(sort_by="self_cuda_time_total", row_limit=25, max_name_column_width=70))


def time_all(gpu: Searcher, paths: EncodingPaths, texts: list[str], k: int, rounds: int) -> None:
    """Time tokenization, encoding and whole searches, recorded and not."""
    timed("tokens", lambda text: paths.encoder.tokenizer.queries([text]), texts, rounds)
    timed("encoded, kernel by kernel", paths.plain, texts, rounds)
    timed("encoded, recorded", paths.alone, texts, rounds)
    paths.replay_alone()
    paths.encoder._single = None
    timed("text in → ranking out, not recorded", lambda text: gpu.search(text, k), texts, rounds)
    paths.encoder._single = paths.single
    timed("text in → ranking out", lambda text: gpu.search(text, k), texts, rounds)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("index")
    parser.add_argument("--model", default=None)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu,cpu")
    parser.add_argument("--queries", default="")
    parser.add_argument("--limit", type=int, default=50)
    parser.add_argument("-k", type=int, default=100)
    parser.add_argument(
        "--kernels", action="store_true", help="print the time per kernel of one recorded query"
    )
    args = parser.parse_args()
    index = Index.open(args.index, model=args.model)
    start = time.perf_counter()
    gpu = index.searcher(device=args.device)
    print(f"{len(index):,} documents loaded onto {args.device} in {time.perf_counter() - start:.2f} s")
    texts = queries(args.queries, args.limit)
    encoder = gpu._query_encoder() if gpu._query_encoder else None
    assert isinstance(encoder, TorchTexts)
    paths = EncodingPaths(encoder)
    paths.first_times(texts)
    paths.compare(texts)
    compare(gpu, index.searcher(engine="reference"), texts, args.k)
    time_all(gpu, paths, texts, args.k, 20 if args.device.startswith("cuda") else 1)
    if args.kernels and args.device.startswith("cuda"):
        show_kernels(paths, texts[0])


if __name__ == "__main__":
    main()
