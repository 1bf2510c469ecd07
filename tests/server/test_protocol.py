"""Responses on the wire: head and body are written together, and nothing is held back."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import pytest

from citadel.server.protocol import _ResponseTransport
from tests.support.serving import Running, parsed, received, running, text_index

BODY = b'{"query": "physics", "k": 1, "documents": false}'
SEARCH = (
    b"POST /v1/search HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n"
    % len(BODY)
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(text_index(tmp_path_factory.mktemp("wire") / "i")) as serving:
        yield serving


def test_head_request(server: Running) -> None:
    answer = server.raw(b"HEAD / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 200 OK\r\n") and answer.endswith(b"\r\n\r\n")
    assert b"content-length: 0\r\n" not in answer and answer.count(b"\r\n\r\n") == 1


def test_pipelined_requests_are_answered_in_order(server: Running) -> None:
    one = SEARCH + b"X-Request-Id: r%d\r\n\r\n" + BODY
    last = b"GET /health/live HTTP/1.1\r\nHost: x\r\nX-Request-Id: r3\r\nConnection: close\r\n\r\n"
    answer = server.raw(one % 1 + one % 2 + last)
    assert [answer.count(b"x-request-id: r%d\r\n" % n) for n in (1, 2, 3)] == [1, 1, 1]
    assert answer.index(b": r1") < answer.index(b": r2") < answer.index(b": r3")
    assert parsed(answer)[1]["hits"][0]["rank"] == 1 and answer.endswith(b'{"status":"live"}')


def test_expect_100_continue(server: Running) -> None:
    """100 Continue is sent before the body arrives."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection:
        connection.sendall(SEARCH + b"Expect: 100-continue\r\nConnection: close\r\n\r\n")
        assert connection.recv(1 << 10) == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.sendall(BODY)
        assert parsed(received(connection))[0] == 200


class Wire:
    """Transport, protocol and cycle in one; records every call."""

    def __init__(self, method: str) -> None:
        self.transport = self.cycle = self
        self.scope, self.response_started, self.calls = {"method": method}, False, list[Any]()

    def is_closing(self) -> bool:
        return False

    def write(self, data: bytes) -> None:
        self.calls.append(data)

    def writelines(self, parts: tuple[bytes, ...]) -> None:
        self.calls.append(b"|".join(parts))

    def end(self) -> None:
        self.calls.append("end")


@pytest.mark.parametrize(
    ("method", "expected"),
    [("GET", [b"100", b"head|body", b"more", "end"]), ("HEAD", [b"100", b"head", b"body", b"more", "end"])],
)
def test_head_and_body_are_written_together(method: str, expected: list[Any]) -> None:
    wire = Wire(method)
    transport = _ResponseTransport(wire)  # type: ignore[arg-type]
    transport.write(b"100")
    wire.response_started = True
    for part in (b"head", b"body", b"more"):
        transport.write(part)
    transport.close()
    assert wire.calls == expected


def test_close_writes_a_head_without_body() -> None:
    wire = Wire("GET")
    wire.response_started = True
    transport = _ResponseTransport(wire)  # type: ignore[arg-type]
    transport.write(b"head")
    assert wire.calls == []
    transport.close()
    assert wire.calls == [b"head", "end"]
