"""Slow clients are disconnected and do not delay others."""

from __future__ import annotations

import contextlib
import math
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

import citadel
from citadel.server.config import Limits
from citadel.server.protocol import RESERVE
from tests.support.serving import DOCUMENTS, Running, command, parsed, running, text_index, wait_until

SLOW = 20  # connections of each kind
HEAD = b"POST /v1/search HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
LARGE = {"id": "large", "text": "elephant " * 2_000_000}  # 18 MB: larger than socket buffers


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A server that allows half a second to receive a request and to send a response."""
    index = text_index(tmp_path_factory.mktemp("slow") / "i", [*DOCUMENTS, LARGE])
    with running(index, request_seconds=0.5) as serving:
        yield serving


@contextlib.contextmanager
def connections(server: Running, first: bytes, count: int = SLOW) -> Iterator[list[socket.socket]]:
    opened = [socket.create_connection(("127.0.0.1", server.port), timeout=10) for _ in range(count)]
    try:
        for connection in opened:
            connection.sendall(first)
        yield opened
    finally:
        for connection in opened:
            connection.close()


def trickle(
    server: Running, opened: list[socket.socket], piece: bytes, request: Callable[[], object]
) -> None:
    """Send a piece on each connection repeatedly until the server has closed all of them."""

    def none_left() -> bool:
        for connection in opened:
            with contextlib.suppress(OSError):
                connection.sendall(piece)
        request()
        return len(server.server.server_state.connections) <= 1  # one belongs to the client

    wait_until(none_left)


@pytest.mark.parametrize(
    ("first", "piece"),
    [
        (b"", b""),
        (b"GET / HT", b""),
        (HEAD, b"X-A: b\r\n"),
        (HEAD + b"Content-Length: 5000\r\n\r\n{", b" "),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n", b"1;" + b"x" * 50 + b"\r\n \r\n"),
    ],
    ids=["nothing", "half a line", "headers", "body", "chunks"],
)
def test_incomplete_requests_are_closed(server: Running, first: bytes, piece: bytes) -> None:
    with connections(server, first) as opened:
        trickle(server, opened, piece, lambda: server.client.search("physics", k=1)[0])


def test_slow_request_is_408(server: Running) -> None:
    status, answer = parsed(server.raw(HEAD + b"Content-Length: 5000\r\n\r\n{"))
    assert (status, answer["error"]["code"]) == (408, "slow")
    assert "within 0.5 seconds" in answer["error"]["message"] and answer["error"]["request_id"]
    assert server.raw(b"") == b""


def test_unread_responses_are_aborted(server: Running) -> None:
    with connections(server, b"GET /v1/documents?id=large HTTP/1.1\r\nHost: x\r\n\r\n", 4) as opened:
        wait_until(lambda: len(server.server.server_state.connections) >= 4)
        trickle(server, opened, b"", lambda: server.client.search("physics", k=1)[0])


def test_steadily_read_large_response_is_complete(server: Running) -> None:
    """The whole response takes longer than the timeout, each part does not."""
    request = b"GET /v1/documents?id=large HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection:
        connection.sendall(request)
        read = 0
        while piece := connection.recv(8 << 20):
            read += len(piece)
            time.sleep(0.02)
    assert read > len(LARGE["text"])


def test_slow_but_steady_requests_are_answered(server: Running) -> None:
    """Twenty bytes at a time, twice on one connection."""
    body = b'{"query": "physics", "k": 1}'
    request = HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection:
        for _ in range(2):
            for start in range(0, len(request), 20):
                connection.sendall(request[start : start + 20])
                time.sleep(0.005)
            assert connection.recv(1 << 16).startswith(b"HTTP/1.1 200")


LIVE = b"GET /health/live HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
WAITING = HEAD + b"Content-Length: 5000\r\n\r\n{"  # an incomplete body


@pytest.mark.parametrize("first", [b"", b"GET / HT", HEAD], ids=["nothing", "half a line", "headers"])
def test_idle_connections_make_room(tmp_path: Path, first: bytes) -> None:
    """At the limit, each new connection closes the oldest idle one."""
    with running(text_index(tmp_path / "i"), limits=Limits(connections=512), request_seconds=60.0) as server:
        with connections(server, first, 512) as opened:
            wait_until(lambda: len(server.server.server_state.connections) == 512)
            for _ in range(3):
                assert parsed(server.raw(LIVE)) == (200, {"status": "live"})
            assert server.client.search("physics").ids
            assert opened[0].recv(1) == b"" and opened[-1].fileno() > 0
            opened[-1].settimeout(0.05)
            with pytest.raises(TimeoutError):
                opened[-1].recv(1)  # the newest one stays open
        wait_until(lambda: len(server.server.server_state.connections) <= 1)


def test_connections_beyond_the_limit_are_refused_except_health_checks(tmp_path: Path) -> None:
    with running(text_index(tmp_path / "i"), limits=Limits(connections=SLOW), request_seconds=60.0) as server:
        protocols = server.server.server_state.connections
        with connections(server, WAITING):
            wait_until(lambda: sum(not one.is_idle for one in protocols) == SLOW)  # type: ignore[union-attr]
            answer = server.raw(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            assert parsed(answer)[1]["error"]["code"] == "busy" and b"retry-after: 1" in answer
            assert b"x-request-id: " in answer
            assert parsed(server.raw(LIVE)) == (200, {"status": "live"})
            with connections(server, b"GET /health/", 2 * RESERVE):  # reserve connections make room, too
                assert parsed(server.raw(LIVE)) == (200, {"status": "live"})
        wait_until(lambda: not protocols)
        assert server.client.search("physics").ids


# ---- at night ----------------------------------------------------------------------------------------------

# 135 kB for each of 300 clients that do not read: more than a socket buffers.
LONG = {"id": "long", "text": "elephant " * 15_000}
A_TIME_SLICE = 0.01  # seconds that another program may delay a request
OPENING = 3.0  # seconds in which slowhttptest opens its 300 connections
KINDS = {
    "H": ("-H", "/"),
    "B": ("-B", "-t", "POST", "-f", "application/json", "/v1/search"),
    "X": ("-X", "/v1/documents?id=long"),
}


@pytest.mark.night
@pytest.mark.parametrize("kind", KINDS)
def test_slowhttptest(tmp_path: Path, kind: str) -> None:
    """Half-open connections live at most 10 seconds, and other requests stay about as fast.

    A few milliseconds are not counted: other programs on the machine cause them, too.
    """
    before, during, after, seconds = attack(tmp_path, *KINDS[kind])
    assert seconds <= OPENING + 10.0
    assert during <= max(3 * before, 3 * after, A_TIME_SLICE), (before, during, after)


def attack(folder: Path, *kind: str) -> tuple[float, float, float, float]:
    """Latency of other requests before, during and after, and the seconds that slow connections lived."""
    program = shutil.which("slowhttptest")
    if program is None:
        pytest.skip("slowhttptest is not installed: apt install slowhttptest")
    text_index(folder / "i", [*DOCUMENTS, LONG]).close()
    with command(folder / "i", "--no-access-log") as (process, client), ThreadPoolExecutor(1) as pool:
        before = latency(client, 15.0)
        rate, url = str(math.ceil(300 / OPENING)), f"{client.url}{kind[-1]}"
        options = [program, *kind[:-1], "-c", "300", "-r", rate, "-l", "60", "-i", "1", "-u", url]
        attacker = subprocess.Popen(options, stdout=subprocess.DEVNULL, cwd=folder)
        try:
            lifetime = pool.submit(seconds_connected, process.pid)
            during = latency(client, 30.0)
            return before, during, latency(client, 15.0), lifetime.result()
        finally:
            attacker.kill()
            attacker.wait()


def seconds_connected(process: int) -> float:
    """Seconds from the first slow connections to the last, polled rarely to leave the CPU to the server."""
    start = 0.0
    while (count := open_connections(process)) > 1 or not start:  # one belongs to the measuring client
        start = start or (time.monotonic() if count > 50 else 0.0)
        time.sleep(0.5)
    return time.monotonic() - start


def open_connections(process: int) -> int:
    """Number of connections that the server has not closed."""
    return sum(
        one.status in ("ESTABLISHED", "CLOSE_WAIT") for one in psutil.Process(process).net_connections("tcp")
    )


def latency(client: citadel.Client, seconds: float) -> float:
    """The 99th percentile of request times."""
    times, end = [], time.monotonic() + seconds
    while time.monotonic() < end:
        start = time.perf_counter()
        client.search("physics", k=1)
        times.append(time.perf_counter() - start)
        time.sleep(0.005)
    return sorted(times)[len(times) * 99 // 100]
