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
LARGE = {"id": "large", "text": "elephant " * 2_000_000}  # 18 MB: no socket's buffer takes it in


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A request has half a second to arrive, an answer half a second to leave."""
    index = text_index(tmp_path_factory.mktemp("slow") / "i", [*DOCUMENTS, LARGE])
    with running(index, request_seconds=0.5) as found:
        yield found


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


def trickle(server: Running, opened: list[socket.socket], piece: bytes, honest: Callable[[], object]) -> None:
    """A piece on each connection now and then, until the server has closed them all; honest requests meanwhile."""

    def none_left() -> bool:
        for connection in opened:
            with contextlib.suppress(OSError):
                connection.sendall(piece)
        honest()
        return len(server.server.server_state.connections) <= 1  # the honest client's own

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
def test_a_request_that_never_arrives(server: Running, first: bytes, piece: bytes) -> None:
    with connections(server, first) as opened:
        trickle(server, opened, piece, lambda: server.client.search("physics", k=1)[0])


def test_what_a_slow_client_is_told(server: Running) -> None:
    status, answer = parsed(server.raw(HEAD + b"Content-Length: 5000\r\n\r\n{"))
    assert (status, answer["error"]["code"]) == (408, "slow")
    assert "within 0.5 seconds" in answer["error"]["message"] and answer["error"]["request_id"]
    assert server.raw(b"") == b""


def test_an_answer_that_is_never_read(server: Running) -> None:
    with connections(server, b"GET /v1/documents?id=large HTTP/1.1\r\nHost: x\r\n\r\n", 4) as opened:
        wait_until(lambda: len(server.server.server_state.connections) >= 4)
        trickle(server, opened, b"", lambda: server.client.search("physics", k=1)[0])


def test_a_large_answer_that_is_read_in_time(server: Running) -> None:
    """Reading pauses longer than the bound in all, but goes on before each time is over."""
    request = b"GET /v1/documents?id=large HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection:
        connection.sendall(request)
        read = 0
        while piece := connection.recv(8 << 20):
            read += len(piece)
            time.sleep(0.02)
    assert read > len(LARGE["text"])


def test_requests_at_a_walking_pace_are_answered(server: Running) -> None:
    """Each byte alone, but all of them in time; twice on one connection."""
    body = b'{"query": "physics", "k": 1}'
    request = HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection:
        for _ in range(2):
            for start in range(0, len(request), 20):
                connection.sendall(request[start : start + 20])
                time.sleep(0.005)
            assert connection.recv(1 << 16).startswith(b"HTTP/1.1 200")


LIVE = b"GET /health/live HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
WAITING = HEAD + b"Content-Length: 5000\r\n\r\n{"  # a request whose body is on its way


@pytest.mark.parametrize("first", [b"", b"GET / HT", HEAD], ids=["nothing", "half a line", "headers"])
def test_idle_connections_keep_nobody_out(tmp_path: Path, first: bytes) -> None:
    """As many as allowed are open and send nothing whole: the oldest makes room for each new one."""
    with running(text_index(tmp_path / "i"), limits=Limits(connections=512), request_seconds=60.0) as server:
        with connections(server, first, 512) as opened:
            wait_until(lambda: len(server.server.server_state.connections) == 512)
            for _ in range(3):
                assert parsed(server.raw(LIVE)) == (200, {"status": "live"})
            assert server.client.search("physics").ids
            assert opened[0].recv(1) == b"" and opened[-1].fileno() > 0
            opened[-1].settimeout(0.05)
            with pytest.raises(TimeoutError):
                opened[-1].recv(1)  # a young one is left alone
        wait_until(lambda: len(server.server.server_state.connections) <= 1)


def test_more_requests_than_connections(tmp_path: Path) -> None:
    """None of them is idle: others are refused, and health checks still work."""
    with running(text_index(tmp_path / "i"), limits=Limits(connections=SLOW), request_seconds=60.0) as server:
        protocols = server.server.server_state.connections
        with connections(server, WAITING):
            wait_until(lambda: sum(not one.is_idle for one in protocols) == SLOW)  # type: ignore[union-attr]
            answer = server.raw(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            assert parsed(answer)[1]["error"]["code"] == "busy" and b"retry-after: 1" in answer
            assert b"x-request-id: " in answer
            assert parsed(server.raw(LIVE)) == (200, {"status": "live"})
            with connections(server, b"GET /health/", 2 * RESERVE):  # those of the reserve make room, too
                assert parsed(server.raw(LIVE)) == (200, {"status": "live"})
        wait_until(lambda: not protocols)
        assert server.client.search("physics").ids


# ---- at night --------------------------------------------------------------------------------------------------------

LONG = {"id": "long", "text": "elephant " * 15_000}  # 135 kB for each of 300 who do not read: more than a socket takes
OPENING = 3.0  # seconds in which the 300 come
KINDS = {
    "H": ("-H", "/"),
    "B": ("-B", "-t", "POST", "-f", "application/json", "/v1/search"),
    "X": ("-X", "/v1/documents?id=long"),
}


@pytest.mark.night
@pytest.mark.parametrize("kind", KINDS)
def test_slowhttptest(tmp_path: Path, kind: str) -> None:
    """300 connections for a minute; half-open ones live 10 seconds at most, and honest requests stay about as fast."""
    before, under, after, seconds = attacked(tmp_path, *KINDS[kind])
    assert seconds <= OPENING + 10.0
    assert under <= 3 * max(before, after), (before, under, after)


def attacked(folder: Path, *kind: str) -> tuple[float, float, float, float]:
    """Honest latency before, under and after; and how long the slow connections were there, while nobody gave up."""
    program = shutil.which("slowhttptest")
    if program is None:
        pytest.skip("slowhttptest is not installed: apt install slowhttptest")
    text_index(folder / "i", [*DOCUMENTS, LONG]).close()
    with command(folder / "i", "--no-access-log") as (process, client), ThreadPoolExecutor(1) as watching:
        before = latency(client, 15.0)
        rate, url = str(math.ceil(300 / OPENING)), f"{client.url}{kind[-1]}"
        options = [program, *kind[:-1], "-c", "300", "-r", rate, "-l", "60", "-i", "1", "-u", url]
        attack = subprocess.Popen(options, stdout=subprocess.DEVNULL, cwd=folder)
        try:
            there = watching.submit(seconds_there, process.pid)
            under = latency(client, 30.0)
            return before, under, latency(client, 15.0), there.result()
        finally:
            attack.kill()
            attack.wait()


def seconds_there(process: int) -> float:
    """From the first slow connections to the last; to look costs time that honest requests would miss."""
    start = 0.0
    while (count := open_connections(process)) > 1 or not start:  # one is the honest client's own
        start = start or (time.monotonic() if count > 50 else 0.0)
        time.sleep(0.5)
    return time.monotonic() - start


def open_connections(process: int) -> int:
    """Those the server has not closed; what it has closed and a client has not is the system's."""
    return sum(one.status in ("ESTABLISHED", "CLOSE_WAIT") for one in psutil.Process(process).net_connections("tcp"))


def latency(client: citadel.Client, seconds: float) -> float:
    """The 99th percentile of honest requests."""
    taken, end = [], time.monotonic() + seconds
    while time.monotonic() < end:
        start = time.perf_counter()
        client.search("physics", k=1)
        taken.append(time.perf_counter() - start)
        time.sleep(0.005)
    return sorted(taken)[len(taken) * 99 // 100]
