"""`citadel serve --cluster`: the engines of sharded indexes whose shards Ray Serve searches."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

from citadel.errors import UsageError

if TYPE_CHECKING:
    from citadel.search.engine import EngineOpener


class ServeCluster(NamedTuple):
    """The options of one `citadel serve --cluster`; without an address there is no cluster."""

    address: str | None
    replicas: int
    cores: float
    threads: int
    shard_seconds: float
    require_complete: bool


@contextlib.contextmanager
def shard_engines(given: ServeCluster, folders: Mapping[str, str]) -> Iterator[dict[str, EngineOpener]]:
    """Connect to the cluster; yield what opens the engine of each index. The shards end with the context."""
    from citadel.cluster.ray_session import ray_session
    from citadel.cluster.remote_engine import RemoteOptions
    from citadel.cluster.shard_pool import ShardOptions, ShardPool

    remote = RemoteOptions(given.shard_seconds, given.require_complete)
    options = ShardOptions(given.replicas, given.cores, given.threads, remote)
    cores = math.ceil(given.replicas * given.cores * sum(map(_shards, folders.values())))
    with ray_session(given.address or "", max(cores, 1)) as ray, contextlib.ExitStack() as stack:
        pools = {name: ShardPool(ray, folder, options) for name, folder in folders.items()}
        for pool in pools.values():
            stack.callback(pool.close)
        yield {name: pool.open_engine for name, pool in pools.items()}


def _shards(folder: str) -> int:
    """The number of shards of an index."""
    from citadel.index.root_manifest import newest_root, root_generations
    from citadel.index.storage import as_storage

    storage = as_storage(folder)
    if not root_generations(storage):
        raise UsageError(f"{folder}: --cluster serves sharded indexes: split it with `citadel shard`")
    return len(newest_root(storage).shards)
