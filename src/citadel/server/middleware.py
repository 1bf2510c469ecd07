"""ASGI middleware: request id, host, token and size checks before a route; log and metrics after it.

It wraps FastAPI because FastAPI reads the body before its own middleware could check who sent it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from citadel.errors import ServerError
from citadel.server.config import Limits
from citadel.server.context import ServerContext
from citadel.server.errors import as_server_error, error_response, request_id
from citadel.server.hosts import Hosts
from citadel.server.tokens import WRITE, TokenCheck, permission

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
Handler = Callable[[Request], Awaitable[Response]]

_log = logging.getLogger("citadel.server")


class RequestMiddleware:
    """Check, dispatch, log and count every request.

    Requests with an entry in `handlers` skip FastAPI's dispatch, which costs as much as a short search.
    """

    def __init__(
        self,
        app: App,
        context: ServerContext,
        paths: frozenset[str],
        handlers: Mapping[tuple[str, str], Handler],
    ) -> None:
        self._app, self._context, self._paths, self._handlers = app, context, paths, handlers
        config = context.config
        self._token_check, self._hosts = TokenCheck(config), Hosts(config.host, config.host_names)
        self._access_log = config.access_log

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        start = time.perf_counter()
        exchange = _Exchange(scope, receive, send, self._context)
        try:
            self._hosts.check(scope["http_version"], scope["headers"])
            self._token_check.check(scope["method"], scope["path"], scope["headers"])
            exchange.check()
            await self._dispatch(scope, exchange)
        except (Exception, asyncio.CancelledError) as error:
            response = error_response(as_server_error(error, self._context.service.location), exchange.id)
            if not exchange.status:  # otherwise the response has started, and uvicorn closes the connection
                await response(scope, receive, exchange.send)
        finally:
            self._record(scope, exchange, time.perf_counter() - start)

    async def _dispatch(self, scope: Scope, exchange: _Exchange) -> None:
        handler = self._handlers.get((scope["method"], scope["path"]))
        if handler is None:
            await self._app(scope, exchange.receive, exchange.send)
            return
        scope["app"] = self._app
        response = await handler(Request(scope, exchange.receive))
        await response(scope, exchange.receive, exchange.send)

    def _record(self, scope: Scope, exchange: _Exchange, seconds: float) -> None:
        path = scope["path"] if scope["path"] in self._paths else "other"
        self._context.metrics.request(path, exchange.method, exchange.status, seconds)
        if self._access_log:
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


def max_body(limits: Limits, method: str, path: str) -> int:
    """Return the largest body in bytes that a route accepts.

    >>> max_body(Limits(), "POST", "/v1/search") == Limits().query_bytes
    True
    """
    if permission(method, path) == WRITE:
        return limits.body_bytes
    return min(limits.body_bytes, limits.query_bytes)


class _Exchange:
    """One request and its response; counts the bytes of both."""

    __slots__ = (
        "_context", "_headers", "_max_body", "_receive", "_send",
        "bytes_in", "bytes_out", "id", "method", "status",
    )  # fmt: skip

    def __init__(self, scope: Scope, receive: Receive, send: Send, context: ServerContext) -> None:
        self._receive, self._send, self._context = receive, send, context
        self._max_body = max_body(context.config.limits, scope["method"], scope["path"])
        self._headers: dict[bytes, bytes] = dict(scope["headers"])
        self.id = request_id(self._headers.get(b"x-request-id", b""))
        self.method = scope["method"] if scope["method"] in ("GET", "HEAD", "POST") else "other"
        self.bytes_in = self.bytes_out = self.status = 0
        scope["request_id"] = self.id

    def check(self) -> None:
        """Reject a request by its headers, before the body is read."""
        if self._headers.get(b"content-encoding", b"identity").lower() != b"identity":
            raise ServerError(415, "media_type", "the body is compressed: send plain JSON")
        length = self._headers.get(b"content-length", b"0")
        if not length.isdigit() or int(length) > self._max_body:
            raise self._too_large()
        has_body = length.strip(b"0") or b"transfer-encoding" in self._headers
        media_type = self._headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
        if has_body and media_type != b"application/json":
            raise ServerError(
                415, "media_type", "the body must be JSON: send `Content-Type: application/json`"
            )

    def _too_large(self) -> ServerError:
        return ServerError(
            413, "limit", f"the body is larger than {self._max_body:,} bytes: send it in parts"
        )

    async def receive(self) -> Message:
        message = await self._receive()
        self.bytes_in += len(message.get("body", b""))
        if self.bytes_in > self._max_body:
            raise self._too_large()
        return message

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = message.setdefault("headers", [])
            headers.append((b"x-request-id", self.id.encode()))
            headers.append((b"x-content-type-options", b"nosniff"))
            if self._context.draining:
                headers.append((b"connection", b"close"))
        else:
            self.bytes_out += len(message.get("body", b""))
        await self._send(message)
