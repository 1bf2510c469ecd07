"""uvicorn's HTTP/1.1 protocol with timeouts and size limits.

uvicorn waits without limit for the rest of a request and for a client to read its response. Here both have
a timeout that only real progress renews, the request head has a size limit, and requests refused before
FastAPI get the same JSON errors as all others.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from citadel.errors import ServerError
from citadel.server.errors import busy, error_body, request_id

MAX_HEAD = 32 << 10  # bytes of request line and headers
MAX_URL = 8 << 10
PROGRESS = 64 << 10  # bytes that renew a timeout
RESERVE = 16  # connections beyond the limit, for /health/ only
HEALTH = "/health/"
MAX_DISCARDED = 64 << 20  # bytes of a refused body to read and discard before the connection is aborted
_ORDER = itertools.count(1)  # the loop's clock is too coarse to order connections
_log = logging.getLogger("citadel.server")


class BoundedProtocol(HttpToolsProtocol):
    """HTTP protocol with limits; `bounded_protocol` sets them."""

    seconds = 8.0
    max_connections = 512
    logs_refusals = True

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._receive_timer: asyncio.TimerHandle | None = None
        self._send_timer: asyncio.TimerHandle | None = None
        self._in_head, self._head, self._body, self._progress = True, 0, 0, 0
        self._refusal: ServerError | None = None
        self._lingers = self._reserved = False
        self._idle_since = 0

    # -- connection ------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._idle_since = next(_ORDER)
        if len(self.connections) > self.max_connections and not self._make_room():
            self._answer(busy("too many connections"))
        else:
            self._start_receive_timer()

    def _make_room(self) -> bool:
        """Close the connection that has been idle longest; if none is idle, use the reserve.

        A connection is idle until a complete head has arrived. So neither idle nor slow connections block
        others, and health checks work while other requests fill the limit.
        """
        others = [other for other in self._open_connections() if other is not self]
        idle = [other for other in others if other.is_idle]
        if idle:
            min(idle, key=lambda other: other._idle_since).transport.close()
            return True
        self._reserved = True
        return len(others) < self.max_connections + RESERVE

    def _open_connections(self) -> list[BoundedProtocol]:
        protocols = [protocol for protocol in self.connections if isinstance(protocol, BoundedProtocol)]
        return [protocol for protocol in protocols if not protocol.transport.is_closing()]

    @property
    def is_idle(self) -> bool:
        """Whether no complete request head has arrived on this connection."""
        return self._in_head and (self.cycle is None or self.cycle.response_complete)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timers()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing() or self.parser is None:
            return
        if self._in_head:
            self._head += len(data)
        first = self._receive_timer is None and (self.cycle is None or self.cycle.response_complete)
        super().data_received(data)
        if first and (self._head or not self._in_head) and self._receive_timer is None:
            self._start_receive_timer()  # wait for the rest of a partial request
        if self._in_head and self._head > MAX_HEAD and not self.transport.is_closing():
            self._answer(_too_many_headers())

    # -- request ---------------------------------------------------------------------------------------------

    def on_url(self, url: bytes) -> None:
        super().on_url(url)
        if len(self.url) > MAX_URL:
            self._refuse(
                ServerError(414, "limit", f"the URL is longer than {MAX_URL:,} bytes: send a body instead")
            )

    def on_headers_complete(self) -> None:
        self._in_head, self._body, self._progress = False, 0, 0
        if sum(len(name) + len(value) for name, value in self.headers) > MAX_HEAD:
            self._refuse(_too_many_headers())
        if self._reserved and not self.url.startswith(HEALTH.encode()) and not self._fits():
            self._refuse(busy("too many connections"))
        super().on_headers_complete()
        self.cycle.transport = _ResponseTransport(self)  # type: ignore[assignment]

    def on_body(self, body: bytes) -> None:
        self._body += len(body)
        if self._body - self._progress >= PROGRESS:
            self._progress = self._body
            self._start_receive_timer()
        if self.cycle.response_complete and self._body > MAX_DISCARDED:
            self.transport.abort()
            return
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._in_head, self._head = True, 0
        self._receive_timer = cancel_timer(self._receive_timer)
        super().on_message_complete()
        if self._lingers:
            self.transport.close()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._idle_since = next(_ORDER)
        self._start_send_timer()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._start_send_timer()

    def resume_writing(self) -> None:
        """Continue a streamed response: the client has read most of the buffer."""
        super().resume_writing()
        if self.cycle is not None and not self.cycle.response_complete:
            self._send_timer = cancel_timer(self._send_timer)

    def send_400_response(self, msg: str) -> None:
        """Reject invalid HTTP or an oversized head."""
        self._answer(
            self._refusal or ServerError(400, "request", "not a valid HTTP/1.1 request: check the client")
        )

    def _refuse(self, refusal: ServerError) -> None:
        """Stop the parser; `send_400_response` sends the refusal."""
        self._refusal = refusal
        raise refusal

    def _fits(self) -> bool:
        """Return whether a reserve connection is now within the limit."""
        self._reserved = len(self._open_connections()) > self.max_connections
        return not self._reserved

    def shutdown(self) -> None:
        """Keep a connection open whose request head has partly arrived, until its timeout."""
        if not (self._in_head and self._head):
            super().shutdown()

    def end(self) -> None:
        """Drain the request before closing: a client still sending would lose the response."""
        if self._in_head or self._receive_timer is None:
            self.transport.close()
        elif not self._lingers and not self.transport.is_closing():
            self._lingers = True
            self.transport.write_eof()

    # -- limits ----------------------------------------------------------------------------------------------

    def _start_receive_timer(self) -> None:
        cancel_timer(self._receive_timer)
        self._receive_timer = self.loop.call_later(self.seconds, self._receive_timeout)

    def _receive_timeout(self) -> None:
        self._receive_timer = None
        if self.transport.is_closing():
            return
        if self._in_head and not self._head:
            self.transport.close()  # no data received
        elif self.cycle is not None and not self._in_head and self.cycle.response_started:
            self.transport.abort()  # it has its response and keeps sending
        else:
            message = f"the request did not arrive within {self.seconds:g} seconds: send it again"
            self._answer(ServerError(408, "slow", message))

    def _start_send_timer(self) -> None:
        """Abort the connection if the client does not read its response."""
        self._send_timer = cancel_timer(self._send_timer)
        if unsent := self.transport.get_write_buffer_size():
            self._send_timer = self.loop.call_later(self.seconds, self._check_sent, unsent)

    def _check_sent(self, before: int) -> None:
        if before - self.transport.get_write_buffer_size() < min(before, PROGRESS):
            self.transport.abort()
        else:
            self._start_send_timer()

    def _answer(self, error: ServerError) -> None:
        """Send an error without the application, then close."""
        id = request_id()
        body = json.dumps(error_body(error.code, str(error), id)).encode()
        lines = [
            b"content-type: application/json",
            b"content-length: %d" % len(body),
            b"connection: close",
            b"x-request-id: %s" % id.encode(),
            b"x-content-type-options: nosniff",
            *([b"retry-after: %d" % error.retry_after] if error.retry_after else []),
        ]
        if self.logs_refusals:
            client = self.client[0] if self.client else None
            fields = {"request_id": id, "status": error.status, "code": error.code, "client": client}
            _log.info("refused", extra=fields)
        self.transport.write(STATUS_LINE[error.status] + b"\r\n".join(lines) + b"\r\n\r\n" + body)
        self.transport.close()
        self._start_send_timer()

    def _stop_timers(self) -> None:
        self._receive_timer, self._send_timer = (
            cancel_timer(self._receive_timer),
            cancel_timer(self._send_timer),
        )


class _ResponseTransport:
    """The transport of a response: head and body are written together, and closing drains the request."""

    __slots__ = ("_cycle", "_head", "_protocol", "_transport", "is_closing")

    def __init__(self, protocol: BoundedProtocol) -> None:
        self._protocol, self._cycle, self._transport = protocol, protocol.cycle, protocol.transport
        self.is_closing = protocol.transport.is_closing
        self._head: bytes | None = None

    def write(self, data: bytes) -> None:
        """Hold the head back until the body follows: saves a system call and a packet."""
        if not self._cycle.response_started or self._cycle.scope["method"] == "HEAD":
            self._transport.write(data)  # 100 Continue, or a head without a body
        elif self._head is None:
            self._head = data
        else:
            self._transport.writelines((self._head, data) if self._head else (data,))
            self._head = b""

    def close(self) -> None:
        if self._head:
            self._transport.write(self._head)  # the application failed between head and body
            self._head = b""
        self._protocol.end()


def _too_many_headers() -> ServerError:
    return ServerError(431, "limit", f"the headers are larger than {MAX_HEAD:,} bytes: send fewer")


def cancel_timer(timer: asyncio.TimerHandle | None) -> asyncio.TimerHandle | None:
    """Cancel a timer and return None.

    >>> cancel_timer(None)
    """
    if timer is not None:
        timer.cancel()
    return None


def bounded_protocol(seconds: float, connections: int, logs: bool = True) -> type[BoundedProtocol]:
    """Return a protocol class with these limits; `logs` writes a line per refusal.

    >>> bounded_protocol(2.0, 100).seconds
    2.0
    """
    return type(
        "Bounded",
        (BoundedProtocol,),
        {"seconds": seconds, "max_connections": connections, "logs_refusals": logs},
    )
