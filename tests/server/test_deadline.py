"""Deadlines: a 504 on time, and the scan stops, also when the client disconnects."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import citadel
from citadel.server.config import Limits
from tests.index.quick import Quick
from tests.support.serving import Running, running, wait_until

DIMENSION = 8
SHORT = {"vectors": {"vectors": [[1.0] * DIMENSION]}}
LONG = {"vectors": {"vectors": [[1, 2] * 4] * 60_000}}  # times 400,000 vectors: 24 billion products


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A server with one worker and a list of 400,000 vectors."""
    folder = tmp_path_factory.mktemp("long") / "i"
    index = citadel.Index.create(
        Quick(folder), fields={"lexical": DIMENSION}, router="all_to_all", fingerprint="x"
    )
    vectors = np.random.default_rng(1).normal(size=(400_000, DIMENSION)).astype(np.float32)
    ids = [f"d{n}" for n in range(4000)]
    index.add_vectors({"ids": ids, "offsets": np.arange(0, 400_001, 100), "vectors": vectors})
    with running(index.commit(), workers=1, limits=Limits(tokens=100_000, deadline_ms=60_000)) as serving:
        yield serving


def test_deadline_is_504_and_frees_the_worker(server: Running) -> None:
    status, answer = server.post("/v1/search", LONG | {"deadline_ms": 300})
    assert (status, answer["error"]["code"]) == (504, "deadline")
    assert answer["error"]["message"].startswith("the request took longer than 0.3 seconds")
    answer = server.client.call("POST", "/v1/search", SHORT | {"deadline_ms": 2000})
    assert len(answer["hits"]) == 10


def test_job_that_expires_in_the_queue_never_starts(server: Running) -> None:
    answers: list[Any] = []
    first = threading.Thread(
        target=lambda: answers.append(server.post("/v1/search", LONG | {"deadline_ms": 3000}))
    )
    before = server.taken
    first.start()
    wait_until(lambda: server.taken == before + 1)
    status, _ = server.post("/v1/search", SHORT | {"deadline_ms": 200})
    assert status == 504 and server.taken == before + 1 and not answers
    first.join()
    assert answers[0][0] == 504
    assert len(server.client.call("POST", "/v1/search", SHORT)["hits"]) == 10


def test_disconnect_frees_the_worker(server: Running) -> None:
    body = json.dumps(LONG).encode()
    head = "POST /v1/search HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    head += f"Content-Length: {len(body)}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        before = server.taken
        connection.sendall(head.encode() + body)
        wait_until(lambda: server.taken == before + 1)
    answer = server.client.call("POST", "/v1/search", SHORT | {"deadline_ms": 2000})
    assert len(answer["hits"]) == 10


def test_request_can_only_shorten_the_deadline(server: Running) -> None:
    with running(server.service.index, workers=1, limits=Limits(tokens=100_000, deadline_ms=250)) as strict:
        status, answer = strict.post("/v1/search", LONG | {"deadline_ms": 60_000})
        assert status == 504 and "0.25 seconds" in answer["error"]["message"]
