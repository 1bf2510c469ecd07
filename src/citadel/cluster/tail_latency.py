"""Simulated latency of a query that waits for all shards, from measured latencies of single shards."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from citadel.cluster.shard_latencies import SHARD_MS, SHARD_QUANTILES
from citadel.types import Floats

QUERIES = 20_000
_AT_ONCE = 2_000  # queries simulated at a time
HEDGED_FROM = 0.95  # quantile after which another replica is asked


class FanOut(NamedTuple):
    """Milliseconds until the slowest of some shards has answered."""

    shards: int
    hedged: bool
    p50: float
    p95: float
    p99: float


def fan_out(shards: int, hedged: bool, extra_ms: float = 0.0, seed: int = 7) -> FanOut:
    """Simulate queries over some shards; `extra_ms` is added to each measured latency.

    A hedge asks a second replica when the p95 of one shard has passed; the first answer counts. Replicas
    are taken to be slow independently of each other.

    >>> fan_out(64, True).p99 <= fan_out(64, False).p99
    True
    >>> fan_out(1, False).p50 < fan_out(256, False).p50
    True
    """
    generator = np.random.default_rng(seed)
    after = float(np.interp(HEDGED_FROM, SHARD_QUANTILES, SHARD_MS))
    parts = []
    for _ in range(0, QUERIES, _AT_ONCE):
        first = _sampled(generator, (_AT_ONCE, shards))
        if hedged:
            late = first > after
            first[late] = np.minimum(first[late], after + _sampled(generator, (int(late.sum()),)))
        parts.append(first.max(axis=1))
    p50, p95, p99 = np.quantile(np.concatenate(parts), [0.5, 0.95, 0.99]).tolist()
    return FanOut(shards, hedged, p50 + extra_ms, p95 + extra_ms, p99 + extra_ms)


def _sampled(generator: np.random.Generator, shape: tuple[int, ...]) -> NDArray[np.float64] | Floats:
    """Random latencies with the measured distribution."""
    return np.interp(generator.random(shape), SHARD_QUANTILES, SHARD_MS)
