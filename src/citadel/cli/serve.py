"""`citadel serve INDEX`: serve the HTTP API and the web page."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Annotated, Any

import typer

from citadel.cli.support.cluster_serve import ServeCluster, shard_engines
from citadel.cli.support.options import LogLevel, Model, parse_gpu_memory, parse_log_level
from citadel.errors import InputError, UsageError

if TYPE_CHECKING:
    from citadel.api import Index

_TOKENS_HELP = 'write {"NAME": {"read": "TOKEN", "write": "TOKEN"}}'


def _option(name: str, help: str, **more: Any) -> Any:
    """Make an option that CITADEL_NAME in the environment can set."""
    return typer.Option(envvar=f"CITADEL_{name}", help=help, **more)


Indexes = Annotated[
    list[str], typer.Argument(metavar="INDEX...", help="Index folders, or NAME=FOLDER to name one in URLs.")
]
CorsOrigin = Annotated[
    list[str] | None,
    _option("CORS", "An origin whose pages may use the API, or *; repeatable.", metavar="ORIGIN"),
]
IndexTokens = Annotated[
    str, _option("INDEX_TOKENS", "Tokens of single indexes, a JSON file.", metavar="FILE")
]
Host = Annotated[str, _option("HOST", "The address to listen on.")]
HostName = Annotated[
    list[str] | None, _option("HOST_NAME", "A host name that requests may use; repeatable.", metavar="NAME")
]
Port = Annotated[int, _option("PORT", "The port; 0 picks a free one.")]
SharePort = Annotated[bool, _option("SHARE_PORT", "Share the port with other read-only servers.")]
WriteToken = Annotated[
    str, _option("WRITE_TOKEN_FILE", "Token for changes; or CITADEL_WRITE_TOKEN.", metavar="FILE")
]
ReadToken = Annotated[
    str, _option("READ_TOKEN_FILE", "Token for reading; or CITADEL_READ_TOKEN.", metavar="FILE")
]
Workers = Annotated[int, _option("WORKERS", "Concurrent searches; 0: one per core.", min=0)]
Threads = Annotated[int, _option("THREADS", "Threads per search.", min=1)]
Queue = Annotated[int, _option("QUEUE", "Max requests waiting for a worker.", min=1)]
Deadline = Annotated[float, _option("DEADLINE", "Time limit per request.", min=0.001, metavar="SECONDS")]
MaxBody = Annotated[int, _option("MAX_BODY", "Max request body.", min=1, metavar="BYTES")]
MaxK = Annotated[int, _option("MAX_K", "Max hits per query.", min=1)]
MaxBatch = Annotated[int, _option("MAX_BATCH", "Max queries per request.", min=1)]
MaxConnections = Annotated[int, _option("MAX_CONNECTIONS", "Max concurrent connections.", min=1)]
Reload = Annotated[
    float, _option("RELOAD", "Interval of the check for new commits; 0: never.", min=0, metavar="SECONDS")
]
Device = Annotated[
    str, _option("DEVICE", "Where to search; cuda copies the index to the GPU.", metavar="cpu|cuda")
]
GpuMemory = Annotated[
    str,
    typer.Option(
        "--gpu-memory",
        "--card-memory",
        envvar=["CITADEL_GPU_MEMORY", "CITADEL_CARD_MEMORY"],
        metavar="SIZE",
        help="GPU memory limit; the rest of the index stays in RAM.",
    ),
]
Cluster = Annotated[
    str | None,
    _option(
        "CLUSTER", "Search the shards of a sharded index on a Ray cluster.", metavar="auto|local|ADDRESS"
    ),
]
Replicas = Annotated[int, _option("REPLICAS", "With --cluster: replicas of each shard.", min=1)]
ShardCores = Annotated[
    float, _option("SHARD_CORES", "With --cluster: cores that Ray reserves per replica.", min=0.0)
]
ShardTimeout = Annotated[
    float,
    _option("SHARD_TIMEOUT", "With --cluster: max wait for a shard.", min=0.01, metavar="SECONDS"),
]
RequireComplete = Annotated[
    bool, _option("REQUIRE_COMPLETE", "With --cluster: an error instead of an answer without all shards.")
]
QueryModel = Annotated[
    str | None,
    _option("QUERY_MODEL", "Encode queries with another model of the same space.", metavar="NAME|DIR"),
]
AccessLog = Annotated[bool, _option("ACCESS_LOG", "Log every request.")]


def serve(
    index: Indexes,
    host: Host = "127.0.0.1",
    host_name: HostName = None,
    port: Port = 8080,
    share_port: SharePort = False,
    model: Model = None,
    query_model: QueryModel = None,
    cors: CorsOrigin = None,
    write_token_file: WriteToken = "",
    read_token_file: ReadToken = "",
    index_tokens: IndexTokens = "",
    workers: Workers = 0,
    threads: Threads = 1,
    device: Device = "cpu",
    gpu_memory: GpuMemory = "",
    queue: Queue = 64,
    deadline: Deadline = 10.0,
    max_body: MaxBody = 8 << 20,
    max_k: MaxK = 1000,
    max_batch: MaxBatch = 100,
    max_connections: MaxConnections = 512,
    reload: Reload = 5.0,
    log_level: LogLevel = "info",
    access_log: AccessLog = True,
    cluster: Cluster = None,
    replicas: Replicas = 2,
    shard_cores: ShardCores = 1.0,
    shard_timeout: ShardTimeout = 2.0,
    require_complete: RequireComplete = False,
) -> None:
    """Serve indexes over HTTP, with a web page at /. Variables CITADEL_… set the same options."""
    parse_log_level(log_level)
    tokens = {
        "write_token": read_token("CITADEL_WRITE_TOKEN", write_token_file),
        "read_token": read_token("CITADEL_READ_TOKEN", read_token_file),
    }
    limits = {
        "body_bytes": max_body,
        "k": max_k,
        "batch": max_batch,
        "queue": queue,
        "connections": max_connections,
    }
    limits["deadline_ms"] = max(round(deadline * 1000), 1)
    settings: dict[str, Any] = {
        "host": host,
        "port": port,
        "workers": workers,
        "threads": threads,
        "reload_seconds": reload,
    }
    settings |= {
        "host_names": tuple(host_name or ()),
        "cors": tuple(cors or ()),
        "share_port": share_port,
        "device": device,
        "gpu_memory": parse_gpu_memory(gpu_memory),
    }
    settings |= tokens | {"access_log": access_log}
    on_cluster = ServeCluster(cluster, replicas, shard_cores, threads, shard_timeout, require_complete)
    models = (model, query_model)
    _run(index, models, log_level, limits, settings, _index_tokens(index_tokens), on_cluster)


def _run(
    folders: list[str],
    models: tuple[str | None, str | None],
    log_level: str,
    limits: dict[str, int],
    settings: dict[str, Any],
    tokens: dict[str, dict[str, str | None]],
    on_cluster: ServeCluster,
) -> None:
    try:
        from citadel.server import logs, run
    except ImportError as error:
        raise UsageError(
            f"the server needs more packages ({error}): pip install 'citadel-ir[server]'"
        ) from None
    from citadel.cli.support.options import MIN_MEMORY
    from citadel.server.config import Limits, ServerConfig
    from citadel.server.names import named_folders
    from citadel.settings import DEFAULT_MEMORY

    config, named = ServerConfig(limits=Limits(**limits), **settings), named_folders(folders)
    memory = max(DEFAULT_MEMORY // len(named), MIN_MEMORY)  # the indexes share one bound
    opened = {name: _open(folder, models, memory, len(named) == 1) for name, folder in named.items()}
    logs.set_up(log_level)
    if on_cluster.address is None:
        run.serve(opened, config, tokens)
        return
    with shard_engines(on_cluster, named) as engines:
        run.serve(opened, config, tokens, engines)


def _open(folder: str, models: tuple[str | None, str | None], memory: int, is_only: bool) -> Index:
    """Open an index; of several, those without a model ignore the one that is given."""
    from citadel.api import Index

    if not is_only and Index.open(folder).settings.model is None:
        models = (None, None)
    model, query_model = models
    index = Index.open(folder, model=model, query_model=query_model, threads=1, memory=memory)
    index.require_model()
    return index


def _index_tokens(file: str) -> dict[str, dict[str, str | None]]:
    """Read the tokens of single indexes: {"NAME": {"read": TOKEN, "write": TOKEN or null}, …}."""
    if not file:
        return {}
    try:
        with open(file, encoding="utf-8") as opened:
            tokens = json.load(opened)
    except (OSError, ValueError) as error:
        raise InputError(f"cannot be read as JSON ({type(error).__name__}): {_TOKENS_HELP}", file) from None
    if not isinstance(tokens, dict) or not all(map(_are_tokens, tokens.values())):
        raise InputError(f"not the tokens of indexes: {_TOKENS_HELP}", file)
    return tokens


def _are_tokens(value: object) -> bool:
    return (
        isinstance(value, dict)
        and value.keys() <= {"read", "write"}
        and all(token is None or isinstance(token, str) for token in value.values())
    )


def read_token(variable: str, file: str) -> str | None:
    """Read a secret from a file or the environment: all users of a machine see command-line arguments."""
    if not file:
        return os.environ.get(variable) or None
    try:
        with open(file, encoding="ascii") as opened:
            return opened.read().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(
            f"cannot be read as a token ({type(error).__name__}): name a file of one line", file
        ) from None
