"""MCP over streamable HTTP: host names, origins and bearer tokens as in `citadel serve`."""

from __future__ import annotations

import contextlib
import json
import logging
import socket
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import urlsplit

from citadel.api import Index
from citadel.errors import ServerError, UsageError
from citadel.integrations import MissingPackageError
from citadel.integrations.mcp_server import make_server
from citadel.server.config import ServerConfig
from citadel.server.hosts import Hosts, host_name
from citadel.server.sockets import listen
from citadel.server.tokens import READ, WRITE, TokenCheck

try:
    import uvicorn
    from mcp.server.transport_security import TransportSecuritySettings
    from starlette.applications import Starlette
    from starlette.routing import Mount
    from starlette.types import ASGIApp, Receive, Scope, Send
except ImportError as error:
    raise MissingPackageError("mcp", error) from None

PATH = "/mcp"
_log = logging.getLogger("citadel.mcp")


class Gate:
    """Checks host, origin and token; the write token leads to the server that can also add and delete."""

    def __init__(self, read: ASGIApp, write: ASGIApp | None, config: ServerConfig) -> None:
        self._read, self._write, self._origins = read, write, config.cors
        self._tokens, self._hosts = TokenCheck(config), Hosts(config.host, config.host_names)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            app = self._permitted(scope)
        except ServerError as error:
            await _refuse(error, send)
            return
        await app(scope, receive, send)

    def _permitted(self, scope: Scope) -> ASGIApp:
        """The server for a request, or ServerError."""
        headers = scope["headers"]
        self._hosts.check(scope["http_version"], headers)
        self._check_origin(headers)
        self._tokens.check_permission(READ, headers)
        if self._write is None:
            return self._read
        try:
            self._tokens.check_permission(WRITE, headers)
        except ServerError:
            return self._read
        return self._write

    def _check_origin(self, headers: list[tuple[bytes, bytes]]) -> None:
        """Refuse pages of other sites: the protocol requires this check of every server."""
        for origin in (value.decode("latin-1") for name, value in headers if name == b"origin"):
            if origin in self._origins or "*" in self._origins:
                continue
            name = host_name(urlsplit(origin).netloc)
            if name is None or not self._hosts.accepts(name):
                raise ServerError(
                    403, "origin", "pages of this origin may not use this server: allow it with --cors ORIGIN"
                )


async def _refuse(error: ServerError, send: Send) -> None:
    """Send an error in the shape of JSON-RPC."""
    body = {"jsonrpc": "2.0", "id": None, "error": {"code": -32600, "message": str(error)}}
    headers = [(b"content-type", b"application/json")]
    if error.status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    await send({"type": "http.response.start", "status": error.status, "headers": headers})
    await send({"type": "http.response.body", "body": json.dumps(body).encode()})


def make_app(index: Index, config: ServerConfig, *, write: bool = False) -> Starlette:
    """The ASGI application. Requests are independent of each other, so several processes can share the load.

    >>> import citadel, tempfile
    >>> index = citadel.Index.create(tempfile.mkdtemp(), model="bm25")
    >>> make_app(index, ServerConfig()).routes[0].path
    ''
    """
    if write and config.read_only:
        raise UsageError(
            "--write over HTTP needs a token: set CITADEL_WRITE_TOKEN, or name a file with --write-token-file"
        )
    servers = [make_server(index, write=can_write) for can_write in ((False, True) if write else (False,))]
    options: dict[str, Any] = {
        "streamable_http_path": PATH,
        "stateless_http": True,
        "json_response": True,
        "max_request_body_size": config.limits.body_bytes,
        # `Gate` checks hosts and origins, by the rules of `citadel serve`
        "transport_security": TransportSecuritySettings(enable_dns_rebinding_protection=False),
    }
    apps = [server.streamable_http_app(**options) for server in servers]

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        async with contextlib.AsyncExitStack() as stack:
            for server in servers:
                await stack.enter_async_context(server.session_manager.run())
            yield

    gate = Gate(apps[0], apps[1] if write else None, config)
    return Starlette(routes=[Mount("/", app=gate)], lifespan=lifespan)


class _Server(uvicorn.Server):
    """Exits with 0 after SIGTERM: a requested stop is not a failure."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for listener in sockets or []:
            host, port = listener.getsockname()[:2]
            _log.info("listening on http://%s:%s%s", f"[{host}]" if ":" in host else host, port, PATH)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await super().shutdown(sockets)
        self._captured_signals.clear()


def serve_http(index: Index, config: ServerConfig, *, write: bool = False) -> None:
    """Serve until SIGTERM or SIGINT."""
    app = make_app(index, config, write=write)
    listener = listen(config.host, config.port, config.share_port)
    settings = uvicorn.Config(
        app,
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        limit_concurrency=config.limits.connections,
        timeout_graceful_shutdown=max(1, round(config.drain_seconds)),
    )
    with contextlib.suppress(KeyboardInterrupt):
        _Server(settings).run(sockets=[listener])
