"""The shards of an index on Ray Serve: a deployment per shard, with several replicas each."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import math
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple

from citadel import __version__
from citadel._native import Cancel
from citadel.cluster.remote_engine import RemoteEngine, RemoteOptions, with_bits
from citadel.cluster.scatter import Scatter, within
from citadel.cluster.shard_server import ShardReply, ShardRequest, ShardServer
from citadel.errors import ResourceError
from citadel.index.sharded import ShardedSnapshot
from citadel.index.snapshot import Snapshot
from citadel.index.storage import absolute, as_storage

CANCEL_INTERVAL = 0.02  # seconds between looks at the cancel flag
STOP_SECONDS = 5.0
HEALTH_SECONDS, HEALTH_TIMEOUT = 2.0, 3.0  # a replica that hangs is replaced after three failures
QUIET_SECONDS = 60.0  # between warnings of Ray that begin alike
_COMPARED, _MAX_KINDS = 40, 100  # characters; kinds of warnings
# Searches have a thread of their own, so the rest of a replica needs no other one.
_ONE_LOOP = {"RAY_SERVE_RUN_USER_CODE_IN_SEPARATE_THREAD": "0"}
_log = logging.getLogger("citadel.cluster")


class ShardOptions(NamedTuple):
    """How the shards of an index are deployed."""

    replicas: int = 2  # per shard
    cores: float = 1.0  # per replica
    threads: int = 1  # per search
    remote: RemoteOptions = RemoteOptions()


class ShardPool:
    """Replicas of all shards, and the calls to them.

    `open_engine` is given to `Index.searcher(engine=…)`; it deploys shards that a new generation needs."""

    def __init__(self, ray: Any, root: str, options: ShardOptions) -> None:
        self._ray, self._root, self._options = ray, absolute(root), options
        self._apps = f"citadel-{hashlib.sha256(self._root.encode()).hexdigest()[:12]}"
        self._handles: list[Any] = []
        self._own: list[str] = []  # applications that this process deployed
        self._wanted: list[int] = []  # shards of the last generations
        self.scatter = Scatter(self._send, 0)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="citadel-scatter", daemon=True)
        self._thread.start()

    def open_engine(self, snapshot: Snapshot, floor: bool, norm: tuple[float, float]) -> RemoteEngine:
        """The engine of a generation."""
        engine = RemoteEngine(snapshot, floor, norm, self.ask, self._options.remote)
        assert isinstance(snapshot, ShardedSnapshot)  # the engine checked it
        self._deploy(len(snapshot.parts))
        return engine

    def ask(
        self, requests: Sequence[ShardRequest], seconds: float, cancel: Cancel | None
    ) -> list[ShardReply | None]:
        """Send each shard its request; None for a shard without an answer."""
        is_cancelled = cancel.is_set if cancel is not None else bool
        call: Future[list[ShardReply | None] | None] = asyncio.run_coroutine_threadsafe(
            within(self.scatter.ask_all(requests, seconds), is_cancelled, CANCEL_INTERVAL), self._loop
        )
        return call.result() or [None] * len(requests)

    async def _send(self, shard: int, request: ShardRequest) -> ShardReply:
        reply = await self._call(shard, with_bits(request, False))
        if reply.needs_filter:
            reply = await self._call(shard, with_bits(request, True))
        if reply.problem:
            raise ResourceError(reply.problem)
        return reply

    async def _call(self, shard: int, request: ShardRequest) -> ShardReply:
        response = self._handles[shard].search.remote(request)
        try:
            reply: ShardReply = await response
        except asyncio.CancelledError:
            response.cancel()
            raise
        return reply

    # -- deployments -----------------------------------------------------------------------------------------

    def _deploy(self, shards: int) -> None:
        """Have a deployment for each shard of this generation and of the last one.

        Ray Serve is only asked for what changes, so that a generation with as many shards as the last one is
        served while the head of the cluster is away."""
        from ray import serve

        self._wanted = [*self._wanted[-1:], shards]
        if shards > len(self._handles):
            self._connect(serve, shards)
        for shard in range(max(self._wanted), len(self._handles)):
            self._delete(serve, self._name(shard))
        del self._handles[max(self._wanted) :]
        self.scatter.resize(len(self._handles))

    def _connect(self, serve: Any, shards: int) -> None:
        """Deploy the shards that do not run and have a handle of each."""
        logging.getLogger("ray.serve").addFilter(_seldom)
        serve.start(proxy_location="Disabled", logging_config=_QUIET)
        running = {name for name, app in serve.status().applications.items() if app.status == "RUNNING"}
        missing = range(len(self._handles), shards)
        new = [shard for shard in missing if self._name(shard) not in running]
        if new:
            self._run(serve, new)
        for shard in missing:
            handle = serve.get_app_handle(self._name(shard))
            self._handles.append(handle.options(_by_reference=False))  # gRPC: half the time of the default

    def _run(self, serve: Any, shards: list[int]) -> None:
        self._own += [self._name(shard) for shard in shards]
        targets = [
            serve.RunTarget(self._application(serve, shard), self._name(shard), None) for shard in shards
        ]
        try:
            serve.run_many(targets)
        except RuntimeError as error:
            reason, cores = " ".join(str(error).split())[:300], self._options.cores * self._options.replicas
            cores *= len(shards)
            raise ResourceError(
                f"{self._root}: the shards did not start ({reason}); check that {cores:g} cores are free "
                "(`ray status`) and that every machine has the index under this path"
            ) from error

    def _application(self, serve: Any, shard: int) -> Any:
        options = self._options
        nodes = sum(
            node["Alive"] for node in self._ray.nodes() if node["Resources"].get("CPU", 0) >= options.cores
        )
        deployment = serve.deployment(
            ShardServer,
            name=f"shard-{shard}",
            num_replicas=options.replicas,
            max_replicas_per_node=math.ceil(options.replicas / max(nodes, 1)),
            max_ongoing_requests=64,
            ray_actor_options={"num_cpus": options.cores, "runtime_env": {"env_vars": _ONE_LOOP}},
            health_check_period_s=HEALTH_SECONDS,
            health_check_timeout_s=HEALTH_TIMEOUT,
            graceful_shutdown_timeout_s=1.0,
            graceful_shutdown_wait_loop_s=0.1,
            logging_config=_QUIET,
        )
        workers = max(math.ceil(options.cores / options.threads), 1)
        return deployment.bind(as_storage(self._root), shard, options.threads, workers)

    def _name(self, shard: int) -> str:
        """Of another version of citadel, the name differs: its requests may have other fields."""
        return f"{self._apps}-{__version__}-{shard}"

    def _delete(self, serve: Any, name: str) -> None:
        if name in self._own:
            self._own.remove(name)
            serve.delete(name, _blocking=False)

    def close(self) -> None:
        """Delete the deployments that this process made and stop the calls."""
        from ray import serve

        for name in list(self._own):
            self._delete(serve, name)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(STOP_SECONDS)
        if not self._thread.is_alive():
            self._loop.close()


class _SeldomWarnings(logging.Filter):
    """Warnings of Ray Serve, each at most once a minute: it repeats them with every call."""

    def __init__(self) -> None:
        super().__init__()
        self._logged: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether to log a record."""
        kind, now = record.getMessage()[:_COMPARED], time.monotonic()
        if record.levelno < logging.WARNING or now - self._logged.get(kind, -math.inf) < QUIET_SECONDS:
            return False
        self._logged = {**self._logged, kind: now} if len(self._logged) < _MAX_KINDS else {kind: now}
        return True


_seldom = _SeldomWarnings()


_QUIET = {"log_level": "WARNING", "enable_access_log": False}
