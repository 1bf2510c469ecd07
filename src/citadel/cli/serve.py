"""`citadel serve INDEX`: the HTTP API and the page."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from citadel.cli.options import IndexFolder, Model
from citadel.errors import InputError, UsageError

_LEVELS = ("debug", "info", "warning", "error")


def serve(
    index: IndexFolder,
    host: Annotated[str, typer.Option(envvar="CITADEL_HOST", help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(envvar="CITADEL_PORT", help="0 takes a free one.")] = 8080,
    model: Model = None,
    write_token_file: Annotated[
        str | None,
        typer.Option(
            envvar="CITADEL_WRITE_TOKEN_FILE", metavar="FILE", help="The token for changes; or CITADEL_WRITE_TOKEN."
        ),
    ] = None,
    read_token_file: Annotated[
        str | None,
        typer.Option(
            envvar="CITADEL_READ_TOKEN_FILE", metavar="FILE", help="A token for reading too; or CITADEL_READ_TOKEN."
        ),
    ] = None,
    workers: Annotated[
        int, typer.Option(envvar="CITADEL_WORKERS", min=0, help="Searches at the same time; 0: one a core.")
    ] = 0,
    threads: Annotated[int, typer.Option(envvar="CITADEL_THREADS", min=1, help="Cores for one search.")] = 1,
    queue: Annotated[int, typer.Option(envvar="CITADEL_QUEUE", min=1, help="Requests that may wait.")] = 64,
    deadline: Annotated[
        float, typer.Option(envvar="CITADEL_DEADLINE", min=0.001, metavar="SECONDS", help="For one request.")
    ] = 10.0,
    max_body: Annotated[
        int, typer.Option(envvar="CITADEL_MAX_BODY", min=1, metavar="BYTES", help="The largest body.")
    ] = 8 << 20,
    max_k: Annotated[int, typer.Option(envvar="CITADEL_MAX_K", min=1, help="The most hits a query.")] = 1000,
    max_batch: Annotated[int, typer.Option(envvar="CITADEL_MAX_BATCH", min=1, help="Queries in one request.")] = 100,
    max_connections: Annotated[int, typer.Option(envvar="CITADEL_MAX_CONNECTIONS", min=1)] = 512,
    reload: Annotated[
        float,
        typer.Option(
            envvar="CITADEL_RELOAD",
            min=0,
            metavar="SECONDS",
            help="How often to look for other writers' commits; 0: never.",
        ),
    ] = 5.0,
    log_level: Annotated[
        str, typer.Option(envvar="CITADEL_LOG_LEVEL", metavar="debug|info|warning|error", help="What is logged.")
    ] = "info",
    access_log: Annotated[bool, typer.Option(envvar="CITADEL_ACCESS_LOG", help="Log every request.")] = True,
) -> None:
    """Serve an index over HTTP, with a page at /; every option can be given as CITADEL_… in the environment."""
    if log_level not in _LEVELS:
        raise UsageError(f"unknown log level {log_level!r}: choose one of {', '.join(_LEVELS)}")
    try:
        from citadel.server import logs
        from citadel.server.run import serve as run
    except ImportError as error:
        raise UsageError(f"the server needs more packages ({error}): pip install 'citadel-ir[server]'") from None
    from citadel.library import Index
    from citadel.server.config import Limits, ServerConfig

    limits = Limits(
        body_bytes=max_body, k=max_k, batch=max_batch, queue=queue, connections=max_connections,
        deadline_ms=max(round(deadline * 1000), 1),
    )  # fmt: skip
    config = ServerConfig(
        host=host, port=port, workers=workers, threads=threads, reload_seconds=reload, access_log=access_log,
        write_token=_token("CITADEL_WRITE_TOKEN", write_token_file),
        read_token=_token("CITADEL_READ_TOKEN", read_token_file),
        limits=limits,
    )  # fmt: skip
    opened = Index.open(index, model=model, threads=1)
    logs.set_up(log_level)
    run(opened, config)


def _token(variable: str, file: str | None) -> str | None:
    """A secret comes from a file or the environment: arguments are seen by all users of a machine."""
    if file is None:
        return os.environ.get(variable) or None
    try:
        with open(file, encoding="ascii") as opened:
            return opened.read().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot be read as a token ({type(error).__name__}): name a file of one line", file) from None
