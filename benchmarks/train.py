"""Training and encoding speed on one GPU: passages of 128 tokens per second for every system."""

from __future__ import annotations

import argparse
import datetime
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

from citadel.encode.config import ModelConfig
from citadel.model.checkpoint import load_model, new_model
from citadel.model.citadel import Citadel
from citadel.train.calibrate import shift_logits
from citadel.train.config_tables import LossPart
from citadel.train.inputs import Inputs, Marker
from citadel.train.objective import Labels, objective
from citadel.train.step import forward_backward

DATA = Path(os.environ.get("CITADEL_DATA", ""))
SYSTEMS = {
    "citadel": ModelConfig("dynamic"),
    "citadel-tok": ModelConfig("dynamic", semantic_dimension=0),
    "coil-full": ModelConfig("static"),
    "coil-tok": ModelConfig("static", semantic_dimension=0),
    "colbert": ModelConfig("all_to_all", token_dimension=128, semantic_dimension=0),
    "splade": ModelConfig("sparse", token_dimension=0, semantic_dimension=0),
    "dpr-128": ModelConfig("none", token_dimension=0),
}


def words(options: argparse.Namespace) -> torch.Tensor:
    """Concatenated tokens of real passages, or random ones if none are given."""
    if not options.passages:
        return torch.randint(1000, 30_000, (1 << 20,), generator=torch.Generator().manual_seed(0))
    from citadel.train.data_files import read_passages
    from citadel.train.tokens import load_tokenizer, tokenize

    texts = read_passages(options.passages).texts
    table = tokenize(
        [texts[row] for row in range(min(20_000, len(texts)))], load_tokenizer(options.backbone), 512
    )
    flat = torch.from_numpy(table.values[:].astype("int64"))
    return flat[flat > 103]  # ids up to 103 are special tokens


def batch(model: Citadel, marker: Marker, texts: int, length: int, query: bool, flow: torch.Tensor) -> Inputs:
    """Full passages: words between [CLS] and [SEP], without padding."""
    config = model.config
    start = 0 if query else len(flow) // 2
    ids = flow[start : start + texts * length].view(texts, length).clone()
    ids[:, 0], ids[:, -1] = config.cls_id, config.sep_id
    return marker(ids, torch.ones_like(ids), query)


def synchronize(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def measure(
    name: str, shape: ModelConfig, flow: torch.Tensor, options: argparse.Namespace
) -> dict[str, object]:
    """Median step time of one system: forward, loss, backward, clip, AdamW."""
    torch.manual_seed(0)
    model = load_model(options.checkpoint) if options.checkpoint and name == "citadel" else None
    model = model or new_model(shape, options.backbone)[0]
    device, dtype = options.device, torch.bfloat16 if options.device == "cuda" else torch.float32
    model = model.to(device)
    if options.device == "cuda":
        model.speed_up()
    marker = Marker(model.config, [], device)
    queries = batch(model, marker, options.batch, 32, True, flow)
    passages = batch(model, marker, options.batch * options.group, options.length, False, flow)
    if model.router is not None and not (options.checkpoint and name == "citadel"):
        shift_logits(model, passages.rows(slice(0, 64)), 8, dtype)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-7, fused=device == "cuda")
    loss, labels = LossPart(), Labels(options.group)

    def step() -> float:
        result = forward_backward(
            model,
            queries,
            passages,
            lambda q, p: objective(model, q, p, labels, loss, 1.0),
            dtype,
            options.cache,
        )
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return float(result.loss)

    start = time.perf_counter()
    for _ in range(options.warm_up):
        last = step()
    synchronize(device)
    ready = time.perf_counter() - start
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    times = []
    for _ in range(options.steps):
        start = time.perf_counter()
        last = step()
        synchronize(device)
        times.append(time.perf_counter() - start)
    median = statistics.median(times)
    row: dict[str, object] = {
        "system": name,
        "passages_per_second": round(len(passages.ids) / median),
        "step_ms": round(median * 1e3, 1),
        "peak_gb": round(torch.cuda.max_memory_allocated() / 1e9, 1) if device == "cuda" else None,
        "first_steps_s": round(ready, 1),
        "loss": round(last, 3),
    }
    if options.profile:
        show_profile(step)
    row["encoded_per_second"] = round(encode_rate(model, passages, dtype, options))
    return row


def show_profile(step: Callable[[], float]) -> None:
    """Print the time of one step by kernel."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        step()
        torch.cuda.synchronize()
    print(
        profiler.key_averages().table(sort_by="self_cuda_time_total", row_limit=45, max_name_column_width=70)
    )


def encode_rate(model: Citadel, passages: Inputs, dtype: torch.dtype, options: argparse.Namespace) -> float:
    """Passages encoded per second, as for indexing, with the results copied to the CPU."""
    times = []
    with torch.no_grad():
        for _ in range(3 + max(1, options.steps // 5)):
            start = time.perf_counter()
            routed = model.encode(*passages, dtype=dtype, learning=False)
            for name in ("keys", "weights", "vectors", "semantic", "pooled"):
                part = getattr(routed, name)
                if part is not None:
                    part.cpu()
            times.append(time.perf_counter() - start)
    return len(passages.ids) / statistics.median(times[3:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backbone", default=str(DATA / "models" / "gte-small"), help="folder of a backbone")
    parser.add_argument("--anyway", action="store_true", help="run without a GPU")
    parser.add_argument(
        "--checkpoint",
        default="",
        help="a trained CITADEL; by default its router is untrained and routes to many keys",
    )
    parser.add_argument("--passages", default="", help="JSONL of real passages; random words by default")
    parser.add_argument("--systems", nargs="*", default=list(SYSTEMS), choices=list(SYSTEMS))
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--group", type=int, default=8)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--warm-up", type=int, default=10)
    parser.add_argument("--cache", type=int, default=0)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--json", default="benchmarks/results/train.json")
    options = parser.parse_args()
    if options.device == "cpu" and not options.anyway:
        sys.exit("benchmarks/train.py: no GPU on this machine; --anyway runs on the CPU")
    rows, flow = [], words(options)
    for name in options.systems:
        rows.append(measure(name, SYSTEMS[name], flow, options))
        print(rows[-1], file=sys.stderr, flush=True)
    show(rows, options)


def show(rows: list[dict[str, object]], options: argparse.Namespace) -> None:
    """Print a table and write the same as JSON, without rich or the native module."""
    where = {
        "device": torch.cuda.get_device_name() if options.device == "cuda" else "CPU",
        "date": datetime.date.today().isoformat(),
        "torch": torch.__version__,
        "backbone": Path(options.backbone).name,
    }
    shape = {"batch": options.batch, "group": options.group, "length": options.length}
    Path(options.json).write_text(
        json.dumps({**where, **shape, "rows": rows}, indent=1) + "\n", encoding="utf-8"
    )
    print(f"{'system':12} {'passages/s':>10} {'step ms':>8} {'peak GB':>8} {'encoded/s':>10}")
    columns = ("passages_per_second", "step_ms", "peak_gb", "encoded_per_second")
    for row in rows:
        first, second, third, fourth = (row[column] for column in columns)
        print(f"{row['system']:12} {first:>10} {second:>8} {third or '–':>8} {fourth:>10}")
    print(
        ", ".join([*where.values(), f"{options.batch} × {options.group} passages of {options.length} tokens"])
    )


if __name__ == "__main__":
    main()
