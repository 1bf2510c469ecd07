"""What every request passes before a route sees it (id, host, token, size) and after it (log, metrics).

It stands outside of FastAPI, which reads a body before anything of ours could ask who sent it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from citadel.errors import ServerError
from citadel.server.config import ServerConfig
from citadel.server.errors import as_server_error, error_response, request_id
from citadel.server.hosts import Hosts
from citadel.server.metrics import Metrics
from citadel.server.tokens import PERMISSIONS, READ, WRITE, Guard, permission

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
Handler = Callable[[Request], Awaitable[Response]]

_log = logging.getLogger("citadel.server")


class Gate:
    """Wraps an application. Routes in `direct` are called from here: FastAPI's way to them costs as much as a scan."""

    def __init__(self, app: App, config: ServerConfig, metrics: Metrics, routes: frozenset[str], location: str) -> None:
        self.app, self._metrics, self._routes, self._location = app, metrics, routes, location
        self.direct: dict[tuple[str, str], Handler] = {}
        self.admit: Callable[[], Awaitable[None]] | None = None  # refuses searches when too many wait
        self._guard, self._limits, self._logs = Guard(config), config.limits, config.access_log
        self._hosts = Hosts(config.host, config.host_names)
        self.draining = False

    def most_bytes(self, scope: Scope) -> int:
        """How large the body of a request may be."""
        changes = permission(scope["method"], scope["path"]) == WRITE
        return self._limits.body_bytes if changes else min(self._limits.body_bytes, self._limits.query_bytes)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        start = time.perf_counter()
        exchange = _Exchange(scope, receive, send, self)
        try:
            self._hosts.check(scope["http_version"], scope["headers"])
            self._guard.check(scope["method"], scope["path"], scope["headers"])
            exchange.check()
            await self._pass(scope, exchange)
        except (Exception, asyncio.CancelledError) as error:
            response = error_response(as_server_error(error, self._location), exchange.id)
            if not exchange.status:  # else the client has its answer, or a part of one and uvicorn cuts the connection
                await response(scope, receive, exchange.send)
        finally:
            self._note(scope, exchange, time.perf_counter() - start)

    async def _pass(self, scope: Scope, exchange: _Exchange) -> None:
        handler = self.direct.get((scope["method"], scope["path"]))
        if handler is None:
            await self.app(scope, exchange.receive, exchange.send)
            return
        if self.admit is not None and PERMISSIONS.get(scope["path"]) == READ:
            await self.admit()
        scope["app"] = self.app
        response = await handler(Request(scope, exchange.receive))
        await response(scope, exchange.receive, exchange.send)

    def _note(self, scope: Scope, exchange: _Exchange, seconds: float) -> None:
        path = scope["path"] if scope["path"] in self._routes else "other"
        self._metrics.request(path, exchange.method, exchange.status, seconds)
        if self._logs:
            client = scope.get("client")
            _log.info(
                "request",
                extra={
                    "request_id": exchange.id,
                    "method": exchange.method,
                    "route": path,
                    "status": exchange.status,
                    "ms": round(seconds * 1000, 3),
                    "bytes_in": exchange.bytes_in,
                    "bytes_out": exchange.bytes_out,
                    "client": client[0] if client else None,
                },
            )


class _Exchange:
    """One request and its answer, counted while they pass."""

    __slots__ = ("_gate", "_headers", "_most", "_receive", "_send", "bytes_in", "bytes_out", "id", "method", "status")

    def __init__(self, scope: Scope, receive: Receive, send: Send, gate: Gate) -> None:
        self._receive, self._send, self._most, self._gate = receive, send, gate.most_bytes(scope), gate
        self._headers: dict[bytes, bytes] = dict(scope["headers"])
        self.id = request_id(self._headers.get(b"x-request-id", b""))
        self.method = scope["method"] if scope["method"] in ("GET", "HEAD", "POST") else "other"
        self.bytes_in = self.bytes_out = self.status = 0
        scope["request_id"] = self.id

    def check(self) -> None:
        """Refuse by the headers alone, before a byte of the body is read."""
        if self._headers.get(b"content-encoding", b"identity").lower() != b"identity":
            raise ServerError(415, "media_type", "a compressed body is not read: send plain JSON")
        length = self._headers.get(b"content-length", b"0")
        if not length.isdigit() or int(length) > self._most:
            raise self._too_large()
        has_body = length.strip(b"0") or b"transfer-encoding" in self._headers
        kind = self._headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
        if has_body and kind != b"application/json":
            raise ServerError(415, "media_type", "a body is JSON: send it with `Content-Type: application/json`")

    def _too_large(self) -> ServerError:
        return ServerError(413, "limit", f"the body is larger than {self._most:,} bytes: send it in parts")

    async def receive(self) -> Message:
        message = await self._receive()
        self.bytes_in += len(message.get("body", b""))
        if self.bytes_in > self._most:
            raise self._too_large()
        return message

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = message.setdefault("headers", [])
            headers.append((b"x-request-id", self.id.encode()))
            headers.append((b"x-content-type-options", b"nosniff"))
            if self._gate.draining:
                headers.append((b"connection", b"close"))
        else:
            self.bytes_out += len(message.get("body", b""))
        await self._send(message)
