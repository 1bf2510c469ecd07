"""GPU search at MS MARCO size: latency at batch 1, rates at 2 … 1024, beside floors and the paper's pipeline.

A synthetic index of 8.84 M documents and 540 M postings is made in the card's memory (gpu_world.py). Every figure is
taken from numbers on the host to a ranking on the host, synchronised. The floor is the bytes that must be read once
(codes, scales, document numbers of the query's lists, and for `exact` all semantic vectors) over the measured copy
bandwidth of the card. "× paper" is the ratio of medians of loops that take turns, of all queries or `--turn` of them.

    python benchmarks/gpu.py [--codec int8] [--queries 200] [--repeat 5] [--skip-paper] [--out FILE.json]
    TRITON_INTERPRET=0 python benchmarks/gpu.py --anyway          # a rehearsal on a CPU, in plain torch, at toy size
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gpu_paper import PaperPipeline
from gpu_turns import Times, alone, in_turn, medians, timed, wait
from gpu_world import Size, make_card, make_queries

from citadel.search.gpu.device_engine import CardEngine
from citadel.search.gpu.memory import Card
from citadel.search.gpu.pq_tables import room_for_tables, tabulate
from citadel.search.plan import CANDIDATES, PROBES, Options, Plan
from citadel.settings import CODECS

TOY = Size(20_000, 400_000, 500, 32, 128, 3_000, 9)
MODES = ("off", "exact", "rerank")
BATCHES = (2, 8, 32, 64, 128, 256, 512, 1024)


def bandwidth(device: torch.device) -> float:
    """Bytes a second that a large copy reads and writes."""
    count = 1 << (30 if device.type == "cuda" else 24)
    one, other = (torch.ones(count, dtype=torch.int32, device=device) for _ in range(2))
    return 2 * 4 * count / min(timed(lambda: other.copy_(one), device, 10))


def floor_bytes(engine: CardEngine, plan: Plan, mode: str) -> int:
    """What a search must read at least."""
    [lists], card = engine.card.lists, engine.card
    assert lists is not None and card.semantic is not None
    posting = lists.rows.bytes // len(lists.documents) + 4
    tokens = int(lists.sizes[plan.keys].sum()) * posting
    return tokens + (card.semantic.bytes if mode == "exact" else 0)


def rates(engine: CardEngine, plans: Sequence[Plan], options: Options, batches: Sequence[int]) -> dict[int, float]:
    """Queries a second by batch size."""
    found = {}
    for size in batches:
        batch = [plans[place % len(plans)] for place in range(size)]

        def search(batch: Sequence[Plan] = batch) -> None:
            engine.search_batch([engine.prepare(plan) for plan in batch], options)

        search()
        seconds = timed(search, engine.card.device, 3)
        found[size] = size / min(seconds)
        print(f"  batch {size:5d}: {found[size]:12,.0f} queries a second", flush=True)
    return found


def stages(engine: CardEngine, plan: Plan, options: Options) -> None:
    """Microseconds of the kernels of one query, from torch's profiler."""
    from torch.profiler import ProfilerActivity, profile

    query = engine.prepare(plan)
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        for _ in range(10):
            engine.search_batch([query], options)
    rows = [(event.self_device_time_total / 10, event.count / 10, event.key) for event in seen.key_averages()]
    for spent, count, name in sorted(rows, reverse=True)[:14]:
        print(f"  {spent:9.1f} µs  {count:5.1f} ×  {name[:90]}")


def check(engine: CardEngine, plans: Sequence[Plan], options: Options) -> None:
    """The kernels against plain torch on the same card: equal numbers and scores."""
    kernels = engine.kernels
    for plan in plans:
        [found] = engine.search_batch([engine.prepare(plan)], options)
        engine.kernels = engine._plain
        engine._shapes.clear()
        [wanted] = engine.search_batch([engine.prepare(plan)], options)
        engine.kernels = kernels
        engine._shapes.clear()
        assert found.numbers.tolist() == wanted.numbers.tolist(), f"{options.semantic}: other documents"
        assert found.scores.tolist() == wanted.scores.tolist(), f"{options.semantic}: other scores"


def check_tables(card: Card, plans: Sequence[Plan]) -> None:
    """Tables of pq that plain torch makes on the card, which `check` holds the kernel to, against the CPU's."""
    if card.centroids is None:
        return
    vectors = torch.from_numpy(np.concatenate([plan.vectors for plan in plans if plan.vectors is not None]))
    made = [room_for_tables(vectors.to(device), len(card.centroids)) for device in ("cpu", card.device)]
    for tables in made:
        tabulate(tables, card.centroids.to(tables.rows.device))
    assert torch.equal(made[0].rows, made[1].rows.cpu()), "other tables than the CPU's"
    assert torch.equal(made[0].steps, made[1].steps.cpu()), "other steps than the CPU's"


def check_batch(engine: CardEngine, plans: Sequence[Plan], options: Options) -> None:
    """Queries together, in parts of several sizes, against each alone."""
    alone = [engine.search_batch([plan], options)[0] for plan in plans]
    for found, wanted in zip(engine.search_batch(plans, options), alone, strict=True):
        assert found.numbers.tolist() == wanted.numbers.tolist(), f"{options.semantic}: other documents in a batch"
        assert found.scores.tolist() == wanted.scores.tolist(), f"{options.semantic}: other scores in a batch"


@dataclass(frozen=True)
class Bench:
    """What is measured: an engine, its queries, and in turns with it the paper's pipeline."""

    engine: CardEngine
    plans: Sequence[Plan]
    pipeline: PaperPipeline | None
    k: int
    turn: int  # queries a turn

    def options(self, mode: str) -> Options:
        """As `plan_options` settles them."""
        return Options(self.k, mode, *(max(times * self.k, 1000) for times in (CANDIDATES, PROBES)))

    def check(self) -> None:
        """Every answer, before any is timed."""
        for mode in MODES:
            check(self.engine, self.plans[:2], self.options(mode))
            check_batch(self.engine, self.plans[:70], self.options(mode))

    def times(self, mode: str) -> Times:
        """Each query alone; then again, in turns with the paper's pipeline."""
        options, pipeline, device = self.options(mode), self.pipeline, self.engine.card.device

        def search(plan: Plan) -> None:
            self.engine.search_batch([self.engine.prepare(plan)], options)

        lone = alone(search, self.plans, device)
        if pipeline is None:
            return Times(lone)
        both = in_turn(search, lambda plan: pipeline.search(plan, self.k, mode != "off"), self.plans, device, self.turn)
        return Times(lone, *both)

    def floor(self, mode: str, speed: float) -> float:
        """Milliseconds that reading what must be read takes on average."""
        return 1e3 * float(np.mean([floor_bytes(self.engine, plan, mode) for plan in self.plans])) / speed


def measure(bench: Bench, speed: float, asked: argparse.Namespace) -> list[dict[str, Any]]:
    """One row a mode."""
    rounds: dict[str, list[dict[str, float]]] = {mode: [] for mode in MODES}
    for _ in range(asked.repeat):
        for mode in MODES:
            rounds[mode].append(bench.times(mode).figures())
            print(
                f"{mode:7s}" + "".join(f"  {name} {value:.3f}" for name, value in rounds[mode][-1].items()), flush=True
            )
    rows = []
    for mode in MODES:
        rows.append({"mode": mode, "floor_ms": bench.floor(mode, speed), **medians(rounds[mode])})
        if asked.repeat > 1:
            rows[-1]["rounds"] = rounds[mode]
        print(mode)
        if asked.stages:
            stages(bench.engine, bench.plans[0], bench.options(mode))
        rows[-1]["rates"] = rates(bench.engine, bench.plans, bench.options(mode), asked.batches)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--codec", default="int8", choices=CODECS)
    parser.add_argument("--queries", type=int, default=200)
    parser.add_argument("-k", type=int, default=1000)
    parser.add_argument("--batches", type=int, nargs="*", default=list(BATCHES))
    parser.add_argument("--stages", action="store_true", help="time of each kernel, from the profiler")
    parser.add_argument("--repeat", type=int, default=1, help="times that latencies are taken; medians are reported")
    parser.add_argument("--turn", type=int, default=0, help="queries before it is the paper's turn; 0: all of them")
    parser.add_argument("--skip-paper", action="store_true")
    parser.add_argument("--anyway", action="store_true", help="on a CPU, at toy size: a rehearsal, no figures")
    parser.add_argument("--out", default="")
    asked = parser.parse_args()
    device, size = torch.device("cuda" if torch.cuda.is_available() else "cpu"), Size()
    if asked.anyway:
        size, asked.queries, asked.k, asked.batches = TOY, 4, 100, [2]
    elif device.type == "cpu":
        raise SystemExit("there is no CUDA card here: run it where there is one, or rehearse with --anyway")
    start = time.perf_counter()
    card = make_card(size, device, asked.codec)
    wait(device)
    engine = CardEngine(card, True, size.documents, "synthetic")
    [lists] = card.lists
    assert lists is not None
    plans = make_queries(size, lists.sizes, asked.queries)
    speed = bandwidth(device)
    products = float(np.mean([lists.sizes[plan.keys].sum() for plan in plans]))
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU: a rehearsal"
    today = time.strftime("%Y-%m-%d")
    print(
        f"{today}; {name}; copy {speed / 1e12:.2f} TB/s; {asked.codec}; index {card.bytes / 1e9:.1f} GB, made in",
        end=" ",
    )
    print(f"{time.perf_counter() - start:.0f} s; {products:,.0f} token products a query; k {asked.k}", flush=True)
    check_tables(card, plans)
    beside = None if asked.skip_paper else PaperPipeline(lists, size.dimension, size.documents, size.semantic)
    bench = Bench(engine, plans, beside, asked.k, asked.turn or len(plans))
    bench.check()
    rows = measure(bench, speed, asked)
    table(rows)
    if asked.out:
        record = {
            "card": name,
            "date": today,
            "copy_bytes_a_second": speed,
            "codec": asked.codec,
            "products": products,
            "rows": rows,
        }
        Path(asked.out).write_text(json.dumps(record, indent=1) + "\n")


def table(rows: Sequence[dict[str, Any]]) -> None:
    """The figures, last, where a log's end shows them."""
    names = ("p50 ms", "p95 ms", "floor ms", "÷ floor", "in turn", "p95", "paper ms", "× paper")
    print(f"\n{'mode':8s}" + "".join(f"{name:>10s}" for name in names))
    for row in rows:
        cells = [row["p50_ms"], row["p95_ms"], row["floor_ms"], row["p50_ms"] / row["floor_ms"]]
        cells += [row[name] for name in ("turn_p50_ms", "turn_p95_ms", "paper_ms", "times_paper") if name in row]
        print(f"{row['mode']:8s}" + "".join(f"{cell:10.3f}" for cell in cells))


if __name__ == "__main__":
    main()
