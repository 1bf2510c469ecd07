"""`citadel plan --documents 1e9`: what a collection needs on a cluster."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Annotated

import typer

from citadel.cli.support.options import parse_size
from citadel.errors import UsageError

if TYPE_CHECKING:
    from citadel.cluster.cost_model import Plan


def plan(
    documents: Annotated[str, typer.Option("--documents", metavar="N", help="Passages, such as 1e9.")],
    shards: Annotated[int, typer.Option(min=0, help="Shards; 0: one per 20 million passages.")] = 0,
    replicas: Annotated[int, typer.Option(min=1, help="Replicas of each shard.")] = 2,
    codec: Annotated[str, typer.Option(metavar="fp16|int8|pq2|pq1", help="Codec of token vectors.")] = "int8",
    postings: Annotated[float, typer.Option(help="Postings per passage.")] = 61.0,
    text_bytes: Annotated[int, typer.Option(min=0, help="Bytes of text per passage.")] = 400,
    cores: Annotated[int, typer.Option(min=1, help="Cores per machine.")] = 64,
    memory: Annotated[str, typer.Option(metavar="SIZE", help="Memory per machine.")] = "256GiB",
    disk: Annotated[str, typer.Option(metavar="SIZE", help="Disk per machine.")] = "4096GiB",
    gpus: Annotated[int, typer.Option(min=0, help="GPUs per machine, to encode.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Estimate machines, hours, memory, disk and latency of a collection from measured rates."""
    from citadel.cluster import cost_model

    collection = cost_model.Collection(_count(documents), shards, replicas, codec, postings, text_bytes)
    machine = cost_model.Machine(cores, parse_size(memory), parse_size(disk), gpus)
    made = cost_model.plan(collection, machine)
    print(json.dumps(dataclasses.asdict(made)) if as_json else "\n".join(_lines(made)))


def _count(given: str) -> int:
    """A number of passages, such as 138e6.

    >>> _count("1e9")
    1000000000
    """
    try:
        count = int(float(given))
    except (ValueError, OverflowError):
        count = 0
    if not 1 <= count <= 10**12:
        raise UsageError(f"--documents {given!r} is no number from 1 to 1e12: write 1e9, for example")
    return count


def _lines(made: Plan) -> list[str]:
    collection, machine = made.collection, made.machine
    p50, p99 = made.query_ms
    encoders = f"{machine.gpus} GPUs each" if machine.gpus else f"{machine.cores} cores each"
    each = collection.passages // collection.shards
    return [
        f"passages      {collection.passages:,} in {collection.shards:,} shards of {each:,}, "
        f"{collection.replicas} replicas, {collection.codec}",
        f"one copy      {_size(made.index_bytes)} of index, {_size(made.disk_bytes)} with texts",
        f"all replicas  {_size(made.index_bytes * collection.replicas)} of memory, "
        f"{_size(made.disk_bytes * collection.replicas)} of disk",
        f"machines      {made.machines:,} of {machine.cores} cores, {_size(machine.memory)} of memory, "
        f"{_size(machine.disk)} of disk",
        f"build         {made.build_hours:,.1f} hours on them: encode {made.encode_hours:,.1f} ({encoders}), "
        f"write {made.write_hours:,.2f}, graphs {made.graph_hours:,.2f}",
        f"query         p50 {p50:.1f} ms, p99 {p99:.1f} ms: encode 5.2, then the slowest of "
        f"{collection.shards:,} shards",
        f"fan-out       p50 {made.hedged.p50:.1f}, p99 {made.hedged.p99:.1f} ms with hedges; "
        f"p50 {made.plain.p50:.1f}, p99 {made.plain.p99:.1f} without",
        "An estimate from rates measured on other machines; docs/how-it-works/cluster-cost.md lists them.",
    ]


def _size(count: float) -> str:
    """Bytes as text.

    >>> _size(3 << 40)
    '3.0 TiB'
    """
    return f"{count / 2**40:.1f} TiB" if count >= 2**40 else f"{count / 2**30:.0f} GiB"
