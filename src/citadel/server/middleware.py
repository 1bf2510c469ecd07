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
from citadel.server.cors import PREFLIGHT, Cors
from citadel.server.errors import as_server_error, error_response, request_id
from citadel.server.hosts import Hosts
from citadel.server.tokens import READ, WRITE, TokenCheck, permission

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
        self._hosts, self._cors = Hosts(config.host, config.host_names), Cors(config.cors)
        self._token_checks = {name: TokenCheck(each.config) for name, each in context.indexes.items()}
        self._only_check = next(iter(self._token_checks.values()))
        self._access_log = config.access_log

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        start = time.perf_counter()
        exchange, location = _Exchange(scope, receive, send, self._context, self._cors), ""
        try:
            self._hosts.check(scope["http_version"], scope["headers"])
            if self._cors.is_preflight(scope["method"], exchange.headers):
                await exchange.send({"type": "http.response.start", "status": 204, "headers": [*PREFLIGHT]})
                await exchange.send({"type": "http.response.body", "body": b""})
                return
            context, scope["path"] = self._context.resolve(scope["path"])
            scope["context"], location = context, context.service.location
            self._check_token(context, scope)
            exchange.check(max_body(self._context.config.limits, scope["method"], scope["path"]))
            await self._dispatch(scope, exchange)
        except (Exception, asyncio.CancelledError) as error:
            response = error_response(as_server_error(error, location), exchange.id)
            if not exchange.status:  # otherwise the response has started, and uvicorn closes the connection
                await response(scope, receive, exchange.send)
        finally:
            self._record(scope, exchange, time.perf_counter() - start)

    def _check_token(self, context: ServerContext, scope: Scope) -> None:
        """Check the token of the request's index; metrics need one that may read every index."""
        method, path, headers = scope["method"], scope["path"], scope["headers"]
        if path == "/metrics":
            for check in self._token_checks.values():
                check.check(method, path, headers)
        elif path != "/v1/indexes":
            (self._token_checks[context.name] if context.name else self._only_check).check(
                method, path, headers
            )
        else:
            scope["readable"] = [
                name for name, check in self._token_checks.items() if check.can_read(headers)
            ]
            if not scope["readable"]:
                self._only_check.check_permission(READ, headers)

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
                    **_index_name(scope),
                    "status": exchange.status,
                    "ms": round(seconds * 1000, 3),
                    "bytes_in": exchange.bytes_in,
                    "bytes_out": exchange.bytes_out,
                    "client": client[0] if client else None,
                },
            )


def _index_name(scope: Scope) -> dict[str, str]:
    """The name of the index, for the log, if the URL has it."""
    name = scope["context"].name if "context" in scope else None
    return {"index": name} if name else {}


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
        "_context", "_cors", "_max_body", "_receive", "_send",
        "bytes_in", "bytes_out", "headers", "id", "method", "status",
    )  # fmt: skip

    def __init__(
        self, scope: Scope, receive: Receive, send: Send, context: ServerContext, cors: Cors
    ) -> None:
        self._receive, self._send, self._context, self._cors = receive, send, context, cors
        self._max_body = 0  # until the request is checked
        self.headers: dict[bytes, bytes] = dict(scope["headers"])
        self.id = request_id(self.headers.get(b"x-request-id", b""))
        self.method = scope["method"] if scope["method"] in ("GET", "HEAD", "POST") else "other"
        self.bytes_in = self.bytes_out = self.status = 0
        scope["request_id"] = self.id

    def check(self, max_body: int) -> None:
        """Reject a request by its headers, before the body is read."""
        self._max_body = max_body
        if self.headers.get(b"content-encoding", b"identity").lower() != b"identity":
            raise ServerError(415, "media_type", "the body is compressed: send plain JSON")
        length = self.headers.get(b"content-length", b"0")
        if not length.isdigit() or int(length) > self._max_body:
            raise self._too_large()
        has_body = length.strip(b"0") or b"transfer-encoding" in self.headers
        media_type = self.headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
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
            headers += self._cors.headers(self.headers)
            if self._context.draining:
                headers.append((b"connection", b"close"))
        else:
            self.bytes_out += len(message.get("body", b""))
        await self._send(message)
