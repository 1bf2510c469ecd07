"""HTTP/1.1 on one connection: uvicorn's protocol, with bounds on what a client may take of time and size.

uvicorn waits for ever for the rest of a request's head or body, and for a client to read its answer. Here each of these
has a time, which only real progress renews; a head has a size; and what is refused before FastAPI is told in our shape.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from citadel.server.answers import BUSY_SECONDS, error_body

MAX_HEAD = 32 << 10  # bytes of request line and headers
MAX_URL = 8 << 10
PROGRESS = 64 << 10  # bytes that renew a timer
DROPPED = 64 << 20  # bytes of a refused body that are read and dropped; then the connection is cut


class BoundedProtocol(HttpToolsProtocol):
    """Use it through `bounded`, which sets the bounds."""

    seconds = 8.0
    most_connections = 512

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._arrival: asyncio.TimerHandle | None = None
        self._leaving: asyncio.TimerHandle | None = None
        self._in_head, self._head, self._body, self._progress = True, 0, 0, 0
        self._refusal: tuple[int, str, str] | None = None
        self._lingers = False

    # -- a connection --------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self.most_connections:
            self._answer(503, "busy", f"too many connections: ask again in {BUSY_SECONDS} second", BUSY_SECONDS)
        else:
            self._await_arrival()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timers()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing() or self.parser is None:
            return
        if self._in_head:
            self._head += len(data)
        first = self._arrival is None and (self.cycle is None or self.cycle.response_complete)
        super().data_received(data)
        if first and (self._head or not self._in_head) and self._arrival is None:
            self._await_arrival()  # the rest of a request that came in part; most are here at once
        if self._in_head and self._head > MAX_HEAD and not self.transport.is_closing():
            self._answer(431, "limit", f"the headers are larger than {MAX_HEAD:,} bytes: send fewer")

    # -- a request -----------------------------------------------------------------------------------------------------

    def on_url(self, url: bytes) -> None:
        super().on_url(url)
        if len(self.url) > MAX_URL:
            self._refusal = (414, "limit", f"the URL is longer than {MAX_URL:,} bytes: send a body instead")
            raise ValueError(self._refusal)

    def on_headers_complete(self) -> None:
        self._in_head, self._body, self._progress = False, 0, 0
        if sum(len(name) + len(value) for name, value in self.headers) > MAX_HEAD:
            self._refusal = (431, "limit", f"the headers are larger than {MAX_HEAD:,} bytes: send fewer")
            raise ValueError(self._refusal)
        super().on_headers_complete()
        self.cycle.transport = _Late(self)  # type: ignore[assignment]

    def on_body(self, body: bytes) -> None:
        self._body += len(body)
        if self._body - self._progress >= PROGRESS:
            self._progress = self._body
            self._await_arrival()
        if self.cycle.response_complete and self._body > DROPPED:
            self.transport.abort()
            return
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._in_head, self._head = True, 0
        self._arrival = stopped(self._arrival)
        super().on_message_complete()
        if self._lingers:
            self.transport.close()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._watch_leaving()

    def send_400_response(self, msg: str) -> None:
        """What is no HTTP, or beyond the bounds of a head."""
        status, code, sentence = self._refusal or (400, "request", "this is not an HTTP/1.1 request: send it again")
        self._answer(status, code, sentence)

    def shutdown(self) -> None:
        """A request whose head is half here gets its answer too, within the time it has to arrive."""
        if not (self._in_head and self._head):
            super().shutdown()

    def end(self) -> None:
        """Close; but a client that is still sending would lose its answer, so hear it out first, within its time."""
        if self._in_head or self._arrival is None:
            self.transport.close()
        elif not self._lingers and not self.transport.is_closing():
            self._lingers = True
            self.transport.write_eof()

    # -- bounds --------------------------------------------------------------------------------------------------------

    def _await_arrival(self) -> None:
        stopped(self._arrival)
        self._arrival = self.loop.call_later(self.seconds, self._too_slow)

    def _too_slow(self) -> None:
        self._arrival = None
        if self.transport.is_closing():
            return
        if self._in_head and not self._head:
            self.transport.close()  # nothing came at all
        elif self.cycle is not None and not self._in_head and self.cycle.response_started:
            self.transport.abort()  # it has its answer and goes on sending
        else:
            self._answer(408, "slow", f"the request did not arrive within {self.seconds:g} seconds: send it again")

    def _watch_leaving(self) -> None:
        """Cut a client that does not read its answer."""
        self._leaving = stopped(self._leaving)
        if waiting := self.transport.get_write_buffer_size():
            self._leaving = self.loop.call_later(self.seconds, self._not_left, waiting)

    def _not_left(self, before: int) -> None:
        if before - self.transport.get_write_buffer_size() < min(before, PROGRESS):
            self.transport.abort()
        else:
            self._watch_leaving()

    def _answer(self, status: int, code: str, sentence: str, retry_after: int | None = None) -> None:
        """An answer without the application, and the end of the connection."""
        body = json.dumps(error_body(code, sentence)).encode()
        lines = [
            b"content-type: application/json",
            b"content-length: %d" % len(body),
            b"connection: close",
            *([b"retry-after: %d" % retry_after] if retry_after else []),
        ]
        self.transport.write(STATUS_LINE[status] + b"\r\n".join(lines) + b"\r\n\r\n" + body)
        self.transport.close()
        self._watch_leaving()

    def _stop_timers(self) -> None:
        self._arrival, self._leaving = stopped(self._arrival), stopped(self._leaving)


class _Late:
    """A connection's transport as an answer sees it: head and body go out together, and closing may take a while."""

    __slots__ = ("_cycle", "_head", "_protocol", "_transport", "is_closing")

    def __init__(self, protocol: BoundedProtocol) -> None:
        self._protocol, self._cycle, self._transport = protocol, protocol.cycle, protocol.transport
        self.is_closing = protocol.transport.is_closing
        self._head: bytes | None = None

    def write(self, data: bytes) -> None:
        """Keep the head until the body is here: one call of the system and one packet less."""
        if not self._cycle.response_started or self._cycle.scope["method"] == "HEAD":
            self._transport.write(data)  # 100 Continue, or a head that no body follows
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


def stopped(timer: asyncio.TimerHandle | None) -> asyncio.TimerHandle | None:
    """No timer any more.

    >>> stopped(None)
    """
    if timer is not None:
        timer.cancel()
    return None


def bounded(seconds: float, connections: int) -> type[BoundedProtocol]:
    """The protocol with these bounds.

    >>> bounded(2.0, 100).seconds
    2.0
    """
    return type("Bounded", (BoundedProtocol,), {"seconds": seconds, "most_connections": connections})
