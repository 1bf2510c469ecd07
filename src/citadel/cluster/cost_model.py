"""Machines, hours, memory, disk and latency of a collection, from measured rates."""

from __future__ import annotations

import math
from dataclasses import dataclass

from citadel.cluster import rates
from citadel.cluster.tail_latency import FanOut, fan_out
from citadel.errors import UsageError
from citadel.index.root_manifest import MAX_SHARDS

SHARD_PASSAGES = 20_000_000  # per shard, by default
HOUR = 3600.0
DOCUMENTS_MS = 0.2  # to read the texts of ten hits; measured within a query of `citadel serve`
MERGE_COPIES = 2  # of a shard on disk while it is joined


@dataclass(frozen=True)
class Machine:
    """One machine of the cluster."""

    cores: int = 64
    memory: int = 256 << 30
    disk: int = 4 << 40
    gpus: int = 0


@dataclass(frozen=True)
class Collection:
    """What is to be served."""

    passages: int
    shards: int = 0  # 0: one per SHARD_PASSAGES
    replicas: int = 2
    codec: str = "int8"
    postings: float = rates.POSTINGS.value  # per passage
    text_bytes: int = rates.TEXT_BYTES

    def __post_init__(self) -> None:
        if self.passages < 1 or self.replicas < 1 or self.postings <= 0 or self.text_bytes < 0:
            raise UsageError("passages, replicas and postings must be positive")
        if self.codec not in rates.POSTING_BYTES:
            raise UsageError(f"unknown codec {self.codec!r}: choose one of {', '.join(rates.POSTING_BYTES)}")
        if not self.shards:
            object.__setattr__(self, "shards", max(math.ceil(self.passages / SHARD_PASSAGES), 1))
        if self.shards > MAX_SHARDS:
            raise UsageError(f"{self.shards:,} shards: an index has at most {MAX_SHARDS:,}")


@dataclass(frozen=True)
class Plan:
    """The estimate for a collection."""

    collection: Collection
    machine: Machine
    index_bytes: float  # one copy, without texts: what memory should hold
    disk_bytes: float  # one copy, with texts
    machines: int
    encode_hours: float
    write_hours: float
    graph_hours: float
    search_ms: float  # of one shard, extrapolated
    plain: FanOut
    hedged: FanOut

    @property
    def build_hours(self) -> float:
        """Hours to build on all machines."""
        return self.encode_hours + self.write_hours + self.graph_hours

    @property
    def query_ms(self) -> tuple[float, float]:
        """p50 and p99 of a query with encoding, fan-out with hedges, and texts."""
        fixed = rates.ENCODE_QUERY.value + DOCUMENTS_MS
        return fixed + self.hedged.p50, fixed + self.hedged.p99


def plan(collection: Collection, machine: Machine | None = None) -> Plan:
    """Estimate what a collection needs.

    >>> plan(Collection(138_000_000)).machines < plan(Collection(1_000_000_000)).machines
    True
    """
    machine = machine or Machine()
    posting = rates.POSTING_BYTES[collection.codec].value * collection.postings
    graph = rates.GRAPH_BYTES.value * collection.postings / 60
    index_bytes = collection.passages * (posting + rates.SEMANTIC_BYTES.value + graph)
    disk_bytes = index_bytes + collection.passages * collection.text_bytes
    machines = max(
        math.ceil(index_bytes * collection.replicas / machine.memory),
        math.ceil(disk_bytes * (collection.replicas + MERGE_COPIES - 1) / machine.disk),
        min(collection.replicas, collection.shards * collection.replicas),
    )
    cores = machines * machine.cores
    encoded = cores * rates.ENCODE_CORE.value
    if machine.gpus:
        encoded = machines * machine.gpus * rates.ENCODE_GPU.value
    search_ms = _search_ms(collection.passages / collection.shards)
    extra = search_ms - rates.GRAPH_SEARCH.value
    return Plan(
        collection,
        machine,
        index_bytes,
        disk_bytes,
        machines,
        collection.passages / encoded / HOUR,
        collection.passages * collection.postings / rates.WRITE.value / cores / HOUR,
        collection.passages * rates.GRAPH_BUILD.value / cores / HOUR,
        search_ms,
        fan_out(collection.shards, False, extra),
        fan_out(collection.shards, True, extra),
    )


def _search_ms(passages: float) -> float:
    """Milliseconds of a graph search of one shard: grows with the logarithm of its size."""
    measured = rates.GRAPH_SEARCH_PASSAGES
    return rates.GRAPH_SEARCH.value * max(math.log2(max(passages, 2)) / math.log2(measured), 0.1)
