"""An engine whose shards are searched elsewhere: scatter a query, merge the best passages of all shards."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from citadel._native import Cancel
from citadel.cluster.shard_server import FilterBits, ShardReply, ShardRequest, Target, TermQuery
from citadel.errors import Cancelled, ServerError, UsageError
from citadel.index.sharded import ShardedSnapshot
from citadel.index.snapshot import Snapshot
from citadel.search.cpu import CpuEngine
from citadel.search.deadline import remaining_seconds
from citadel.search.plan import Options, Plan, TermStatistics
from citadel.types import Scored

DEFAULT_SECONDS = 10.0  # for a search without a deadline
RESERVED = 0.1  # share of the remaining time that is kept to answer without the missing shards
MIN_RESERVED = 0.02  # seconds


class Ask(Protocol):
    """Sends each shard its request and returns the replies within some seconds; None for a missing one."""

    def __call__(
        self, requests: Sequence[ShardRequest], seconds: float, cancel: Cancel | None
    ) -> list[ShardReply | None]: ...


class RemoteOptions(NamedTuple):
    """How long to wait for a shard, and whether an answer may lack one."""

    shard_seconds: float = 2.0
    require_complete: bool = False


class RemoteFilter:
    """The bits of a filter for each shard; `len` counts the live passages it allows."""

    def __init__(self, snapshot: ShardedSnapshot, masks: Sequence[NDArray[np.bool_]]) -> None:
        pairs = list(zip(snapshot.segments, masks, strict=True))
        self._allowed = sum(int((mask & snapshot.alive(segment)).sum()) for segment, mask in pairs)
        packed = iter([np.packbits(mask, bitorder="little").tobytes() for mask in masks])
        self.shards: list[FilterBits] = []
        for part in snapshot.parts:
            own = tuple(next(packed) for _ in part.segments)
            name = hashlib.sha256(b"".join(own)).hexdigest()[:32]
            self.shards.append(FilterBits(name, own))

    def __len__(self) -> int:
        return self._allowed


class RemoteEngine:
    """Searches a sharded snapshot through `ask`; everything but the search itself is done here."""

    def __init__(
        self,
        snapshot: Snapshot,
        floor: bool,
        norm: tuple[float, float],
        ask: Ask,
        options: RemoteOptions,
    ) -> None:
        where = snapshot.storage.location
        if not isinstance(snapshot, ShardedSnapshot):
            raise UsageError(f"{where}: a cluster serves sharded indexes: split it with `citadel shard`")
        self._snapshot, self._ask, self._options = snapshot, ask, options
        self._floor, self._norm = floor, norm
        root = snapshot.root
        self._target = Target(root.root_id, root.generation, norm)
        sizes = [int(part.passage_bases[-1]) for part in snapshot.parts]
        self._bases = np.cumsum([0, *sizes], dtype=np.int64)

    @cached_property
    def _local(self) -> CpuEngine:
        """The engine that looks up terms: their frequencies are those of the whole collection."""
        return CpuEngine(self._snapshot, self._floor, self._norm)

    def prepare(self, plan: Plan) -> Plan:
        """Return the plan: each shard looks up its own lists."""
        return plan

    def prepare_terms(self, terms: list[bytes], repeats: list[int], statistics: TermStatistics) -> TermQuery:
        """Weigh the terms of a bm25 query by the statistics of the whole collection."""
        return TermQuery(terms, self._local.term_weights(terms, repeats, statistics))

    def prepare_filter(self, masks: Sequence[NDArray[np.bool_]]) -> RemoteFilter:
        """The filter of each shard."""
        return RemoteFilter(self._snapshot, masks)

    def search(
        self,
        query: Plan | TermQuery,
        options: Options,
        cancel: Cancel | None = None,
        allowed: RemoteFilter | None = None,
    ) -> Scored:
        """The best k passages of the shards that answer in time."""
        left = remaining_seconds(DEFAULT_SECONDS)
        seconds = min(self._options.shard_seconds, left - max(RESERVED * left, MIN_RESERVED))
        if seconds <= 0:
            raise Cancelled("the search was cancelled")
        filters = allowed.shards if allowed else [None] * len(self._snapshot.parts)
        requests = [ShardRequest(self._target, query, options, own, seconds) for own in filters]
        replies = self._ask(requests, seconds, cancel)
        if cancel is not None and cancel.is_set():
            raise Cancelled("the search was cancelled")
        return self._merged(replies, options.k)

    def search_batch(
        self,
        queries: Sequence[Plan | TermQuery],
        options: Options,
        cancel: Cancel | None = None,
        allowed: RemoteFilter | None = None,
    ) -> list[Scored]:
        """The best k passages of each query."""
        return [self.search(query, options, cancel, allowed) for query in queries]

    def _merged(self, replies: Sequence[ShardReply | None], k: int) -> Scored:
        parts = [(base, reply) for base, reply in zip(self._bases.tolist(), replies, strict=False) if reply]
        if not parts or (self._options.require_complete and len(parts) < len(replies)):
            missing = len(replies) - len(parts)
            raise ServerError(
                503, "shards", f"{missing} of {len(replies)} shards did not answer in time: retry later", 1
            )
        numbers = np.concatenate([reply.numbers + base for base, reply in parts])
        scores = np.concatenate([reply.scores for _, reply in parts])
        order = np.argsort(-scores, kind="stable")
        ordered = scores[order]
        if (ordered[1:] == ordered[:-1]).any():
            order = np.lexsort((numbers, self._snapshot.positions(numbers), -scores))
        order = order[:k]
        products = sum(reply.dot_products for _, reply in parts)
        return Scored(numbers[order], scores[order], products, (len(parts), len(replies)))


def with_bits(request: ShardRequest, has_bits: bool) -> ShardRequest:
    """A request with the bits of its filter, or with their name alone.

    A replica that does not know the name asks for the bits."""
    bits = request.allowed
    return request if has_bits or bits is None else request._replace(allowed=replace(bits, segments=None))
