"""`citadel mcp INDEX`: serve an index to language models."""

from __future__ import annotations

import logging
from typing import Annotated

import typer

from citadel.cli.serve import CorsOrigin, Host, HostName, Port, ReadToken, WriteToken, read_token
from citadel.cli.support.options import IndexFolder, LogLevel, Model, Threads, parse_log_level


def mcp(
    index: IndexFolder,
    write: Annotated[bool, typer.Option("--write", help="Offer the tools add and delete.")] = False,
    http: Annotated[bool, typer.Option("--http", help="Serve over HTTP at /mcp instead of stdio.")] = False,
    host: Host = "127.0.0.1",
    host_name: HostName = None,
    port: Port = 8080,
    cors: CorsOrigin = None,
    write_token_file: WriteToken = "",
    read_token_file: ReadToken = "",
    model: Model = None,
    threads: Threads = None,
    log_level: LogLevel = "info",
) -> None:
    """Serve an index to language models (Model Context Protocol), over stdio or HTTP."""
    logging.getLogger("citadel").setLevel(parse_log_level(log_level).upper())
    from citadel.api import Index
    from citadel.integrations.mcp_server import make_server

    if not http:
        with Index.open(index, model=model, threads=threads) as opened:
            make_server(opened, write=write).run()
        return
    from citadel.integrations.mcp_http import serve_http
    from citadel.server.config import ServerConfig

    config = ServerConfig(
        host=host,
        port=port,
        host_names=tuple(host_name or ()),
        cors=tuple(cors or ()),
        write_token=read_token("CITADEL_WRITE_TOKEN", write_token_file),
        read_token=read_token("CITADEL_READ_TOKEN", read_token_file),
    )
    with Index.open(index, model=model, threads=threads) as opened:
        serve_http(opened, config, write=write)
