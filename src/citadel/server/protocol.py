"""HTTP/1.1 on one connection: uvicorn's protocol, with bounds on what a client may take of time and size.

uvicorn waits for ever for the rest of a request's head or body, and for a client to read its answer. Here each of these
has a time, which only real progress renews; a head has a size; and what is refused before FastAPI is told in our shape.
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
PROGRESS = 64 << 10  # bytes that renew a timer
RESERVE = 16  # connections beyond the limit that may ask for /health/ only
HEALTH = "/health/"
DROPPED = 64 << 20  # bytes of a refused body that are read and dropped; then the connection is cut
_ORDER = itertools.count(1)  # the loop's clock does not tell connections of one moment apart
_log = logging.getLogger("citadel.server")


class BoundedProtocol(HttpToolsProtocol):
    """Use it through `bounded`, which sets the bounds."""

    seconds = 8.0
    max_connections = 512
    logs = True

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._arrival: asyncio.TimerHandle | None = None
        self._leaving: asyncio.TimerHandle | None = None
        self._in_head, self._head, self._body, self._progress = True, 0, 0, 0
        self._refusal: ServerError | None = None
        self._lingers = self._reserved = False
        self._idle_since = 0

    # -- a connection --------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._idle_since = next(_ORDER)
        if len(self.connections) > self.max_connections and not self._make_room():
            self._answer(busy("too many connections"))
        else:
            self._await_arrival()

    def _make_room(self) -> bool:
        """Close the connection that has been idle longest; where none is idle, take one of the reserve.

        A connection is idle until a whole head has arrived. So neither idle nor slow connections keep others
        out, and while requests of others fill the limit, health can still be asked.
        """
        others = [one for one in self._open_connections() if one is not self]
        idle = [one for one in others if one.is_idle]
        if idle:
            min(idle, key=lambda one: one._idle_since).transport.close()
            return True
        self._reserved = True
        return len(others) < self.max_connections + RESERVE

    def _open_connections(self) -> list[BoundedProtocol]:
        return [one for one in self.connections if isinstance(one, BoundedProtocol) and not one.transport.is_closing()]

    @property
    def is_idle(self) -> bool:
        """Whether this connection has no request whose head has arrived."""
        return self._in_head and (self.cycle is None or self.cycle.response_complete)

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
            self._answer(_too_many_headers())

    # -- a request -----------------------------------------------------------------------------------------------------

    def on_url(self, url: bytes) -> None:
        super().on_url(url)
        if len(self.url) > MAX_URL:
            self._refuse(ServerError(414, "limit", f"the URL is longer than {MAX_URL:,} bytes: send a body instead"))

    def on_headers_complete(self) -> None:
        self._in_head, self._body, self._progress = False, 0, 0
        if sum(len(name) + len(value) for name, value in self.headers) > MAX_HEAD:
            self._refuse(_too_many_headers())
        if self._reserved and not self.url.startswith(HEALTH.encode()) and not self._fits():
            self._refuse(busy("too many connections"))
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
        self._idle_since = next(_ORDER)
        self._watch_leaving()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch_leaving()

    def resume_writing(self) -> None:
        """The client has read most of what waited: an answer that is sent in pieces goes on."""
        super().resume_writing()
        if self.cycle is not None and not self.cycle.response_complete:
            self._leaving = stopped(self._leaving)

    def send_400_response(self, msg: str) -> None:
        """What is no HTTP, or beyond the bounds of a head."""
        self._answer(self._refusal or ServerError(400, "request", "this is not an HTTP/1.1 request: send it again"))

    def _refuse(self, refusal: ServerError) -> None:
        """Stop the parser; `send_400_response` gives the answer."""
        self._refusal = refusal
        raise refusal

    def _fits(self) -> bool:
        """Whether a connection of the reserve has become one within the limit."""
        self._reserved = len(self._open_connections()) > self.max_connections
        return not self._reserved

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
            sentence = f"the request did not arrive within {self.seconds:g} seconds: send it again"
            self._answer(ServerError(408, "slow", sentence))

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

    def _answer(self, error: ServerError) -> None:
        """An answer without the application, and the end of the connection."""
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
        if self.logs:
            client = self.client[0] if self.client else None
            refused = {"request_id": id, "status": error.status, "code": error.code, "client": client}
            _log.info("refused", extra=refused)
        self.transport.write(STATUS_LINE[error.status] + b"\r\n".join(lines) + b"\r\n\r\n" + body)
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


def _too_many_headers() -> ServerError:
    return ServerError(431, "limit", f"the headers are larger than {MAX_HEAD:,} bytes: send fewer")


def stopped(timer: asyncio.TimerHandle | None) -> asyncio.TimerHandle | None:
    """No timer any more.

    >>> stopped(None)
    """
    if timer is not None:
        timer.cancel()
    return None


def bounded(seconds: float, connections: int, logs: bool = True) -> type[BoundedProtocol]:
    """The protocol with these bounds; `logs` writes a line for each refusal.

    >>> bounded(2.0, 100).seconds
    2.0
    """
    return type("Bounded", (BoundedProtocol,), {"seconds": seconds, "max_connections": connections, "logs": logs})
