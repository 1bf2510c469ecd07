"""Run the server: sockets, signals and graceful shutdown."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import time
from collections.abc import Mapping
from typing import Any

import uvicorn

from citadel.api import Index
from citadel.errors import UsageError
from citadel.search.engine import EngineOpener
from citadel.server.app import create_app, create_context
from citadel.server.config import ServerConfig
from citadel.server.context import ServerContext
from citadel.server.protocol import bounded_protocol
from citadel.server.service import Service, WriteSlots
from citadel.server.sockets import listen

_CLOSE_NOTICE = 1.0  # seconds in which keep-alive clients get `Connection: close`
_TICK = 0.02
_log = logging.getLogger("citadel.server")


class DrainingServer(uvicorn.Server):
    """Shut down in two steps: stop listening and send `Connection: close`, then close all connections.

    Closing idle connections at once would lose a request that a client sends at that moment.
    """

    def __init__(self, config: uvicorn.Config, context: ServerContext) -> None:
        super().__init__(config)
        self.context, self._services = context, context.services
        self._reloading: asyncio.Future[Any] | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):
            asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self._reload)
        for listener in sockets or []:
            host, port = listener.getsockname()[:2]
            _log.info("listening", extra={"url": f"http://{f'[{host}]' if ':' in host else host}:{port}"})

    def _reload(self) -> None:
        reloads = [service.reload() for service in self._services]
        self._reloading = asyncio.gather(*reloads, return_exceptions=True)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self.context.draining = True
        _log.info("stopping")
        for server in self.servers:
            server.close()
        end = time.monotonic() + min(self.context.config.drain_seconds, _CLOSE_NOTICE)
        while self.server_state.connections and time.monotonic() < end:
            await asyncio.sleep(_TICK)
        await super().shutdown(sockets)
        self._captured_signals.clear()  # a requested stop is not a failure: exit with 0
        _log.info("stopped")


def serve(
    indexes: Mapping[str, Index],
    config: ServerConfig,
    tokens: Mapping[str, Mapping[str, Any]] | None = None,
    engines: Mapping[str, EngineOpener] | None = None,
) -> None:
    """Serve indexes by name until SIGTERM or SIGINT; `tokens` and `engines` has those of single indexes."""
    listener = listen(config.host, config.port, config.share_port)
    with contextlib.suppress(KeyboardInterrupt):
        make_server(make_services(indexes, config, tokens or {}, engines)).run(sockets=[listener])


def make_services(
    indexes: Mapping[str, Index],
    config: ServerConfig,
    tokens: Mapping[str, Mapping[str, Any]],
    engines: Mapping[str, EngineOpener] | None = None,
) -> dict[str, Service]:
    """Open the searchers of all indexes."""
    if unknown := sorted(tokens.keys() - indexes.keys()):
        raise UsageError(f"there are tokens for {unknown[0]!r}, and no index has this name: correct the file")
    slots, opened = WriteSlots(config.limits.writes), engines or {}
    return {
        name: Service(index, config.for_index(tokens.get(name, {})), slots, opened.get(name, "native"))
        for name, index in indexes.items()
    }


def make_server(services: Service | Mapping[str, Service]) -> DrainingServer:
    """Build the server of one index, or of several by name, without running it."""
    context = create_context(services)
    config = context.config
    settings = uvicorn.Config(
        create_app(context),
        http=bounded_protocol(config.request_seconds, config.limits.connections, config.access_log),
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=max(1, round(config.request_seconds)),
        timeout_graceful_shutdown=max(1, round(config.drain_seconds)),
    )
    return DrainingServer(settings, context)
