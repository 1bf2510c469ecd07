"""A server on a free port, in a thread of this process or as the command `citadel serve`."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import citadel
from citadel.server.config import Limits, ServerConfig
from citadel.server.run import DrainingServer, make_server, make_services
from citadel.server.service import Service
from citadel.server.sockets import listen
from tests.index.quick import Quick

TOKEN = "a write token for tests"
DOCUMENTS: list[dict[str, Any]] = [
    {"id": "d1", "title": "Relativity", "text": "Einstein proposed relativity in physics.", "year": 1905},
    {"id": "d2", "text": "Darwin proposed evolution."},
    {"id": "d3", "text": "Newton proposed gravity in physics."},
]


class Running(NamedTuple):
    client: citadel.Client
    service: Service
    server: DrainingServer
    port: int

    @property
    def taken(self) -> int:
        """Number of requests that workers have started."""
        lines = self.server.context.metrics.text().decode().splitlines()
        name = 'citadel_search_seconds_count{stage="queue"} '
        return int(float(next(line for line in lines if line.startswith(name)).removeprefix(name)))

    def raw(self, request: bytes, seconds: float = 10.0) -> bytes:
        """Send bytes; return everything the server sends until it closes the connection."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=seconds) as connection:
            connection.sendall(request)
            return received(connection)

    def post(self, path: str, body: object, **headers: str) -> tuple[int, dict[str, Any]]:
        """POST any body to any route; return status and JSON."""
        payload = body if isinstance(body, bytes) else json.dumps(body).encode()
        lines = {"Content-Type": "application/json", "Content-Length": str(len(payload))} | headers
        head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
        request = f"POST {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\n{head}\r\n".encode() + payload
        return parsed(self.raw(request))


def received(connection: socket.socket) -> bytes:
    pieces = []
    with contextlib.suppress(ConnectionResetError):
        while piece := connection.recv(1 << 16):
            pieces.append(piece)
    return b"".join(pieces)


def parsed(answer: bytes) -> tuple[int, dict[str, Any]]:
    """Status and JSON of the first response."""
    head, _, body = answer.partition(b"\r\n\r\n")
    length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
    return int(head.split()[1]), json.loads(body[: int(length.partition(b":")[2])])


def text_index(folder: Path, documents: Sequence[dict[str, Any]] = DOCUMENTS) -> citadel.Index:
    index = citadel.Index.create(Quick(folder), model="bm25")
    index.add(documents)
    return index.commit()


@contextlib.contextmanager
def running(
    index: citadel.Index | Mapping[str, citadel.Index],
    *,
    limits: Limits | None = None,
    port: int = 0,
    tokens: Mapping[str, Mapping[str, Any]] | None = None,
    engines: Mapping[str, Any] | None = None,
    **settings: Any,
) -> Iterator[Running]:
    """Serve an index, or several by name, from a thread, with a write token."""
    chosen: dict[str, Any] = {"write_token": TOKEN, "access_log": False, "reload_seconds": 0.0}
    chosen |= {"host_names": ("x", "test")} | settings
    named = index if isinstance(index, Mapping) else {"index": index}
    services = make_services(named, ServerConfig(limits=limits or Limits(), **chosen), tokens or {}, engines)
    server, listening = make_server(services), listen("127.0.0.1", port)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    port = listening.getsockname()[1]
    thread.start()
    wait_until(lambda: server.started)
    client = citadel.Client(f"http://127.0.0.1:{port}", token=TOKEN)
    try:
        yield Running(client, next(iter(services.values())), server, port)
    finally:
        client.close()
        server.should_exit = True
        thread.join(30)
        assert not thread.is_alive()


def wait_until(condition: Any, seconds: float = 30.0) -> None:
    """Poll until the condition holds; fail after `seconds`."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "timed out"
        time.sleep(0.01)


@contextlib.contextmanager
def command(
    index: Path, *options: str, **environment: str
) -> Iterator[tuple[subprocess.Popen[str], citadel.Client]]:
    """Run `citadel serve INDEX` as a child process."""
    process = subprocess.Popen(
        [sys.executable, "-W", "error", "-m", "citadel.cli", "serve", str(index), "--port", "0", *options],
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"CITADEL_WRITE_TOKEN": TOKEN} | environment,
    )
    assert process.stderr is not None
    first = process.stderr.readline()
    reading = threading.Thread(target=process.stderr.read, daemon=True)  # a full pipe would block the server
    reading.start()
    try:
        line = json.loads(first)
        assert line["event"] == "listening", line
        yield process, citadel.Client(line["url"], token=TOKEN)
    finally:
        process.kill()
        process.wait()
        reading.join()
        process.stderr.close()
