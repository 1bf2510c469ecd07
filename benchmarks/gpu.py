"""GPU search at MS MARCO size: latency, batch throughput, floors and the paper's pipeline.

A synthetic index of 8.84 M documents and 540 M postings is generated in GPU memory (gpu_world.py). Times run
from query vectors on the host to a ranking on the host, synchronised. The floor is the bytes read at least
once (codes, scales and document numbers of the query's lists, and for `exact` all semantic vectors) divided
by the measured copy bandwidth of the GPU. "× paper" is the ratio of medians of alternating loops over all
queries, or `--turn` of them.

    python benchmarks/gpu.py [--codec int8] [--queries 200] [--repeat 5] [--skip-paper] [--out FILE.json]
    TRITON_INTERPRET=0 python benchmarks/gpu.py --anyway          # dry run on a CPU at toy size
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
from gpu_world import IndexSize, make_device_index, make_queries

from citadel.search.gpu.device_engine import DeviceEngine
from citadel.search.gpu.device_index import DeviceIndex
from citadel.search.gpu.pq_tables import allocate_tables, tabulate
from citadel.search.plan import CANDIDATES, PROBES, Options, Plan
from citadel.settings import CODECS

TOY = IndexSize(20_000, 400_000, 500, 32, 128, 3_000, 9)
MODES = ("off", "exact", "rerank")
BATCHES = (2, 8, 32, 64, 128, 256, 512, 1024)


def bandwidth(device: torch.device) -> float:
    """Bytes per second that a large copy reads and writes."""
    count = 1 << (30 if device.type == "cuda" else 24)
    one, other = (torch.ones(count, dtype=torch.int32, device=device) for _ in range(2))
    return 2 * 4 * count / min(timed(lambda: other.copy_(one), device, 10))


def floor_bytes(engine: DeviceEngine, plan: Plan, mode: str) -> int:
    """Bytes that a search reads at least."""
    [lists], index = engine.index.lists, engine.index
    assert lists is not None and index.semantic is not None
    posting = lists.rows.bytes // len(lists.documents) + 4
    tokens = int(lists.sizes[plan.keys].sum()) * posting
    return tokens + (index.semantic.bytes if mode == "exact" else 0)


def rates(
    engine: DeviceEngine, plans: Sequence[Plan], options: Options, batches: Sequence[int]
) -> dict[int, float]:
    """Queries per second by batch size."""
    rate: dict[int, float] = {}
    for size in batches:
        batch = [plans[number % len(plans)] for number in range(size)]

        def search(batch: Sequence[Plan] = batch) -> None:
            engine.search_batch([engine.prepare(plan) for plan in batch], options)

        search()
        seconds = timed(search, engine.index.device, 3)
        rate[size] = size / min(seconds)
        print(f"  batch {size:5d}: {rate[size]:12,.0f} queries per second", flush=True)
    return rate


def stages(engine: DeviceEngine, plan: Plan, options: Options) -> None:
    """Microseconds of the kernels of one query, from torch's profiler."""
    from torch.profiler import ProfilerActivity, profile

    query = engine.prepare(plan)
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        for _ in range(10):
            engine.search_batch([query], options)
    rows = [
        (event.self_device_time_total / 10, event.count / 10, event.key) for event in profiler.key_averages()
    ]
    for spent, count, name in sorted(rows, reverse=True)[:14]:
        print(f"  {spent:9.1f} µs  {count:5.1f} ×  {name[:90]}")


def check(engine: DeviceEngine, plans: Sequence[Plan], options: Options) -> None:
    """Compare the kernels with plain torch on the same device: equal numbers and scores."""
    kernels = engine.kernels
    for plan in plans:
        [found] = engine.search_batch([engine.prepare(plan)], options)
        engine.kernels = engine._torch
        engine._recordings.clear()
        [wanted] = engine.search_batch([engine.prepare(plan)], options)
        engine.kernels = kernels
        engine._recordings.clear()
        assert found.numbers.tolist() == wanted.numbers.tolist(), f"{options.semantic}: other documents"
        assert found.scores.tolist() == wanted.scores.tolist(), f"{options.semantic}: other scores"


def check_tables(index: DeviceIndex, plans: Sequence[Plan]) -> None:
    """Compare the pq tables of plain torch on the device, the reference of `check`, with the CPU's."""
    if index.centroids is None:
        return
    vectors = torch.from_numpy(np.concatenate([plan.vectors for plan in plans if plan.vectors is not None]))
    made = [allocate_tables(vectors.to(device), len(index.centroids)) for device in ("cpu", index.device)]
    for tables in made:
        tabulate(tables, index.centroids.to(tables.rows.device))
    assert torch.equal(made[0].rows, made[1].rows.cpu()), "other tables than the CPU's"
    assert torch.equal(made[0].steps, made[1].steps.cpu()), "other steps than the CPU's"


def check_batch(engine: DeviceEngine, plans: Sequence[Plan], options: Options) -> None:
    """Compare a batch, searched in parts of several sizes, with its single queries."""
    alone = [engine.search_batch([plan], options)[0] for plan in plans]
    for found, wanted in zip(engine.search_batch(plans, options), alone, strict=True):
        assert found.numbers.tolist() == wanted.numbers.tolist(), (
            f"{options.semantic}: other documents in a batch"
        )
        assert found.scores.tolist() == wanted.scores.tolist(), f"{options.semantic}: other scores in a batch"


@dataclass(frozen=True)
class GpuBench:
    """An engine to measure, its queries, and the paper's pipeline to alternate with."""

    engine: DeviceEngine
    plans: Sequence[Plan]
    pipeline: PaperPipeline | None
    k: int
    turn: int  # queries per turn

    def options(self, mode: str) -> Options:
        """The options that `plan_options` gives."""
        return Options(self.k, mode, *(max(times * self.k, 1000) for times in (CANDIDATES, PROBES)))

    def check(self) -> None:
        """Check the results before timing."""
        for mode in MODES:
            check(self.engine, self.plans[:2], self.options(mode))
            check_batch(self.engine, self.plans[:70], self.options(mode))

    def times(self, mode: str) -> Times:
        """Time each query alone; then again, alternating with the paper's pipeline."""
        options, pipeline, device = self.options(mode), self.pipeline, self.engine.index.device

        def search(plan: Plan) -> None:
            self.engine.search_batch([self.engine.prepare(plan)], options)

        lone = alone(search, self.plans, device)
        if pipeline is None:
            return Times(lone)
        both = in_turn(
            search, lambda plan: pipeline.search(plan, self.k, mode != "off"), self.plans, device, self.turn
        )
        return Times(lone, *both)

    def floor(self, mode: str, speed: float) -> float:
        """Mean milliseconds to read the floor's bytes."""
        return 1e3 * float(np.mean([floor_bytes(self.engine, plan, mode) for plan in self.plans])) / speed


def measure(bench: GpuBench, speed: float, args: argparse.Namespace) -> list[dict[str, Any]]:
    """One row per mode."""
    rounds: dict[str, list[dict[str, float]]] = {mode: [] for mode in MODES}
    for _ in range(args.repeat):
        for mode in MODES:
            rounds[mode].append(bench.times(mode).figures())
            print(
                f"{mode:7s}" + "".join(f"  {name} {value:.3f}" for name, value in rounds[mode][-1].items()),
                flush=True,
            )
    rows = []
    for mode in MODES:
        rows.append({"mode": mode, "floor_ms": bench.floor(mode, speed), **medians(rounds[mode])})
        if args.repeat > 1:
            rows[-1]["rounds"] = rounds[mode]
        print(mode)
        if args.stages:
            stages(bench.engine, bench.plans[0], bench.options(mode))
        rows[-1]["rates"] = rates(bench.engine, bench.plans, bench.options(mode), args.batches)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--codec", default="int8", choices=CODECS)
    parser.add_argument("--queries", type=int, default=200)
    parser.add_argument("-k", type=int, default=1000)
    parser.add_argument("--batches", type=int, nargs="*", default=list(BATCHES))
    parser.add_argument("--stages", action="store_true", help="time of each kernel, from the profiler")
    parser.add_argument(
        "--repeat", type=int, default=1, help="rounds of latency measurements; medians are reported"
    )
    parser.add_argument(
        "--turn", type=int, default=0, help="queries per turn with the paper's pipeline; 0: all"
    )
    parser.add_argument("--skip-paper", action="store_true")
    parser.add_argument("--anyway", action="store_true", help="dry run on a CPU, at toy size")
    parser.add_argument("--out", default="")
    args = parser.parse_args()
    device, size = torch.device("cuda" if torch.cuda.is_available() else "cpu"), IndexSize()
    if args.anyway:
        size, args.queries, args.k, args.batches = TOY, 4, 100, [2]
    elif device.type == "cpu":
        raise SystemExit("no CUDA device: run on a machine with a GPU, or dry-run with --anyway")
    start = time.perf_counter()
    index = make_device_index(size, device, args.codec)
    wait(device)
    engine = DeviceEngine(index, True, "synthetic")
    [lists] = index.lists
    assert lists is not None
    plans = make_queries(size, lists.sizes, args.queries)
    speed = bandwidth(device)
    products = float(np.mean([lists.sizes[plan.keys].sum() for plan in plans]))
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU (dry run)"
    today = time.strftime("%Y-%m-%d")
    print(
        f"{today}; {name}; copy {speed / 1e12:.2f} TB/s; {args.codec};",
        f"index {index.bytes / 1e9:.1f} GB, made in",
        end=" ",
    )
    print(
        f"{time.perf_counter() - start:.0f} s; {products:,.0f} token products per query; k {args.k}",
        flush=True,
    )
    check_tables(index, plans)
    beside = None if args.skip_paper else PaperPipeline(lists, size.dimension, size.documents, size.semantic)
    bench = GpuBench(engine, plans, beside, args.k, args.turn or len(plans))
    bench.check()
    rows = measure(bench, speed, args)
    table(rows)
    if args.out:
        record = {
            "card": name,
            "date": today,
            "copy_bytes_a_second": speed,
            "codec": args.codec,
            "products": products,
            "rows": rows,
        }
        Path(args.out).write_text(json.dumps(record, indent=1) + "\n")


def table(rows: Sequence[dict[str, Any]]) -> None:
    """Print the results as a table, at the end of the log."""
    names = ("p50 ms", "p95 ms", "floor ms", "÷ floor", "in turn", "p95", "paper ms", "× paper")
    print(f"\n{'mode':8s}" + "".join(f"{name:>10s}" for name in names))
    for row in rows:
        cells = [row["p50_ms"], row["p95_ms"], row["floor_ms"], row["p50_ms"] / row["floor_ms"]]
        cells += [
            row[name] for name in ("turn_p50_ms", "turn_p95_ms", "paper_ms", "times_paper") if name in row
        ]
        print(f"{row['mode']:8s}" + "".join(f"{cell:10.3f}" for cell in cells))


if __name__ == "__main__":
    main()
