"""Runs the application: sockets, signals, and an end in which nobody loses an answer."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import signal
import socket
import time

import uvicorn

from citadel.api import Index
from citadel.errors import UsageError
from citadel.server.app import create_app
from citadel.server.config import ServerConfig
from citadel.server.middleware import Gate
from citadel.server.protocol import bounded
from citadel.server.service import Service

_QUIET = 1.0  # seconds in which clients that ask on an open connection learn that it ends
_TICK = 0.02
_log = logging.getLogger("citadel.server")


class DrainingServer(uvicorn.Server):
    """Stops in two steps: first it listens no more and every answer says `Connection: close`; then it closes.

    A client that sends its next request at the very moment an idle connection is closed would lose it.
    """

    def __init__(self, config: uvicorn.Config, gate: Gate, service: Service) -> None:
        super().__init__(config)
        self._gate, self._service = gate, service
        self._reloading: asyncio.Task[None] | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):
            asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self._reload)
        for listening in sockets or []:
            host, port = listening.getsockname()[:2]
            _log.info("listening", extra={"url": f"http://{f'[{host}]' if ':' in host else host}:{port}"})

    def _reload(self) -> None:
        self._reloading = asyncio.get_running_loop().create_task(self._service.reload())

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._gate.draining = True
        _log.info("stopping")
        for server in self.servers:
            server.close()
        end = time.monotonic() + min(self._service.config.drain_seconds, _QUIET)
        while self.server_state.connections and time.monotonic() < end:
            await asyncio.sleep(_TICK)
        await super().shutdown(sockets)
        self._captured_signals.clear()  # asked to stop, and stopped: that is no failure
        _log.info("stopped")


def serve(index: Index, config: ServerConfig) -> None:
    """Serve an index until SIGTERM or SIGINT."""
    listening = listen(config.host, config.port, config.share_port)
    with contextlib.suppress(KeyboardInterrupt):
        make_server(Service(index, config)).run(sockets=[listening])


def make_server(service: Service) -> DrainingServer:
    """The server of an index, not yet running."""
    gate, config = create_app(service), service.config
    settings = uvicorn.Config(
        gate,
        http=bounded(config.request_seconds, config.limits.connections, config.access_log),
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=max(1, round(config.request_seconds)),
        timeout_graceful_shutdown=max(1, round(config.drain_seconds)),
    )
    return DrainingServer(settings, gate, service)


def listen(host: str, port: int, shared: bool = False) -> socket.socket:
    """A socket that listens; port 0 takes a free one. Where it is shared the system spreads the connections."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listening.bind((host, port))
    except socket.gaierror:
        listening.close()
        raise UsageError(f"{host}: there is no such address: name one of this machine") from None
    except OSError as error:
        listening.close()
        raise UsageError(f"{host}:{port}: {_bind_problem(error)}") from None
    return listening


def _bind_problem(error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return "another program listens on this port; stop it, or choose another --port"
    if error.errno == errno.EACCES:
        return "ports below 1024 are for the administrator; choose another --port"
    if error.errno == errno.EADDRNOTAVAIL:
        return "this machine does not have that address; choose another --host"
    return f"cannot listen ({error.strerror}); choose another --host or --port"
