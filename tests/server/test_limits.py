"""Limits: oversized, deep or invalid requests are refused at once, without extra memory."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from citadel.server.config import Limits
from citadel.server.index_stats import resident_bytes
from tests.support.serving import TOKEN, Running, parsed, running, text_index

LIMITS = Limits(body_bytes=100_000, query_characters=50, k=20, batch=3, hits=40, documents=2, tokens=4)
BOMB = gzip.compress(bytes(50 << 20))
CODED = b"Content-Encoding: gzip\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(BOMB)
LAST = b"0\r\n\r\nGET / HTTP/1.1\r\nConnection: close\r\n\r\n"
CLOSE = b"Connection: close\r\n"
HEAD = b"POST /v1/search HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(text_index(tmp_path_factory.mktemp("limits") / "i"), limits=LIMITS) as serving:
        yield serving


def nested(depth: int) -> bytes:
    return b'{"documents": [{"id": "x", "text": "t", "deep": ' + b"[" * depth + b"]" * depth + b"}]}"


def queries(count: int, **more: Any) -> dict[str, Any]:
    return {"queries": [{"query": "x"}] * count, **more}


BODIES: list[tuple[str, object, int, str]] = [
    ("/v1/search", {"query": "x", "k": 21}, 422, "limit"),
    ("/v1/search", {"query": "x", "k": 10**30}, 422, "limit"),
    ("/v1/search", {"query": "x", "k": -1}, 422, "fields"),
    ("/v1/search", {"query": "x", "k": 1.5}, 422, "fields"),
    ("/v1/search", {"query": "x", "k": True}, 422, "fields"),
    ("/v1/search", {"query": "x", "k": None}, 422, "fields"),
    ("/v1/search", b'{"query": "x", "k": 1e400}', 422, "fields"),
    ("/v1/search", b'{"query": "x", "k": ' + b"9" * 5000 + b"}", 400, "json"),
    ("/v1/search", b'{"query": "x", "tau": NaN}', 422, "fields"),
    ("/v1/search", b'{"query": "x", "tau": -Infinity}', 422, "fields"),
    ("/v1/search", {"query": "x", "tau": -0.1}, 422, "fields"),
    ("/v1/search", {"query": "x", "deadline_ms": 0}, 422, "fields"),
    ("/v1/search", {"query": "x" * 51}, 422, "limit"),
    ("/v1/search", {"query": 7}, 422, "fields"),
    ("/v1/search", {"query": None}, 422, "fields"),
    ("/v1/search", {"query": ["x"]}, 422, "fields"),
    ("/v1/search", {}, 422, "fields"),
    ("/v1/search", b"", 422, "fields"),
    ("/v1/search", b"null", 422, "fields"),
    ("/v1/search", b'"x"', 422, "fields"),
    ("/v1/search", b"[]", 422, "fields"),
    ("/v1/search", b"{", 400, "json"),
    ("/v1/search", b"query=x", 400, "json"),
    ("/v1/search", b'{"query": "x"} {}', 400, "json"),
    ("/v1/search", b'{"query": "\xff"}', 400, "json"),
    ("/v1/search", b'{"query": "\\ud800"}', 400, "json"),
    ("/v1/search", b"\xef\xbb\xbf{}", 400, "json"),
    ("/v1/search", b"[" * 50_000, 400, "json"),
    ("/v1/search", b'{"a":' * 20_000, 400, "json"),
    ("/v1/search", {"query": "x", "explain": True, "k": 21}, 422, "limit"),
    ("/v1/search", {"vectors": {"keys": [1] * 5}}, 422, "limit"),
    ("/v1/search", {"vectors": {"keys": ["1"]}}, 422, "fields"),
    ("/v1/search", b'{"query": "x", "k": 3, "k": 3}', 422, "fields"),
    ("/v1/search", b'{"vectors": {"keys": [1], "keys": [1]}}', 422, "fields"),
    ("/v1/search/batch", b'{"queries": [{"query": "x", "query": "y"}]}', 422, "fields"),
    ("/v1/documents", b'{"documents": [{"id": "x", "text": "t", "a": {"b": 1, "b": 2}}]}', 422, "fields"),
    ("/v1/delete", b'{"ids": ["a"], "ids": ["b"]}', 422, "fields"),
    ("/v1/commit", b'{"changes": null, "changes": null}', 422, "fields"),
    ("/v1/search", {"query": "x", "vectors": {"keys": [1]}}, 422, "fields"),
    ("/v1/search", {"query": "x", "model": "/etc/passwd"}, 422, "fields"),
    ("/v1/search/batch", queries(4), 422, "limit"),
    ("/v1/search/batch", queries(3, k=20), 422, "limit"),
    ("/v1/search/batch", queries(0), 422, "fields"),
    ("/v1/search/batch", {"queries": "x"}, 422, "fields"),
    ("/v1/search/batch", {"queries": [{"id": 1, "query": "x"}]}, 422, "fields"),
    ("/v1/search/batch", {"queries": [{"query": "x" * 51}]}, 422, "limit"),
    ("/v1/documents", {"documents": [{"id": f"n{n}", "text": "t"} for n in range(3)]}, 422, "limit"),
    ("/v1/documents", {"documents": []}, 422, "fields"),
    ("/v1/documents", {"documents": [{"id": None, "text": "x"}]}, 422, "fields"),
    ("/v1/documents", {"documents": [{"id": "a\nb", "text": "t"}]}, 422, "fields"),
    ("/v1/documents", {"documents": [{"id": "x" * 513, "text": "t"}]}, 422, "fields"),
    ("/v1/documents", {"documents": [{"id": "x"}]}, 422, "fields"),
    ("/v1/documents", nested(70), 422, "fields"),
    ("/v1/documents", nested(10_000), 400, "json"),
    ("/v1/documents", b'{"documents": [{"id": "x", "text": "t", "n": NaN}]}', 422, "fields"),
    ("/v1/documents", {"documents": [{"id": "x", "text": "t"}], "path": "/etc/passwd"}, 422, "fields"),
    ("/v1/delete", {"ids": ["a", "b", "c"]}, 422, "limit"),
    ("/v1/delete", {"ids": [7]}, 422, "fields"),
    ("/v1/explain/text", {"text": "x", "side": "both"}, 422, "fields"),
    ("/v1/commit", {"force": True}, 422, "fields"),
    ("/v1/search", b'{"query": "' + b"x" * 100_000 + b'"}', 413, "limit"),
]


@pytest.mark.parametrize(("path", "body", "status", "code"), BODIES)
def test_invalid_bodies(server: Running, path: str, body: object, status: int, code: str) -> None:
    actual, answer = server.post(path, body, Authorization=f"Bearer {TOKEN}")
    assert (actual, answer["error"]["code"]) == (status, code), answer
    assert set(answer) == {"error"} and answer["error"]["message"].count("\n") == 0


RAW: list[tuple[str, bytes, int, str]] = [
    ("no HTTP", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400, "request"),
    ("another version", b"GET / HTTP/9.9\r\n\r\n", 400, "request"),
    ("two lengths", HEAD + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}", 400, "request"),
    (
        "length and chunks",
        HEAD + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        400,
        "request",
    ),
    ("negative length", HEAD + b"Content-Length: -2\r\n\r\n{}", 400, "request"),
    ("length beyond 64 bits", HEAD + b"Content-Length: 99999999999999999999999\r\n\r\n{}", 400, "request"),
    ("invalid chunk", HEAD + b"Transfer-Encoding: chunked\r\n\r\nxyz\r\n", 400, "request"),
    ("length above the limit", HEAD + b"Content-Length: 100001\r\nConnection: close\r\n\r\n", 413, "limit"),
    (
        "long chunks",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + (b"8000\r\n" + b" " * 0x8000 + b"\r\n") * 4 + LAST,
        413,
        "limit",
    ),
    ("compressed body", HEAD + CODED + BOMB, 415, "media_type"),
    ("XML", HEAD.replace(b"json", b"xml") + CLOSE + b"Content-Length: 7\r\n\r\nquery=x", 415, "media_type"),
    ("a long URL", b"GET /" + b"x" * 9000 + b" HTTP/1.1\r\nHost: x\r\n\r\n", 414, "limit"),
    ("a URL without end", b"GET /" + b"x" * 50_000, 414, "limit"),
    ("many headers", b"GET / HTTP/1.1\r\n" + b"X-A: yyyyyyyy\r\n" * 4000 + b"\r\n", 431, "limit"),
    ("a header without end", b"GET / HTTP/1.1\r\nX-A: " + b"y" * 50_000, 431, "limit"),
    ("headers without end", b"GET / HTTP/1.1\r\n" + b"X-A: yyyyyyyy\r\n" * 4000, 431, "limit"),
    ("a bare CR", b"GET / HTTP/1.1\r\nX-A: a\rb\r\n\r\n", 400, "request"),
    ("a header name with a space", b"GET / HTTP/1.1\r\nX A: b\r\n\r\n", 400, "request"),
    ("a NUL", b"GET / HTTP/1.1\r\nX-A: a\0b\r\n\r\n", 400, "request"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("request_bytes", "status", "code"), [case[1:] for case in RAW], ids=[case[0] for case in RAW]
)
def test_invalid_http_requests(server: Running, request_bytes: bytes, status: int, code: str) -> None:
    raw = server.raw(request_bytes)
    actual, answer = parsed(raw)
    assert (actual, answer["error"]["code"]) == (status, code), answer
    assert f"x-request-id: {answer['error']['request_id']}\r\n".encode() in raw


def test_refused_bodies_are_not_kept_in_memory(server: Running) -> None:
    """Bodies of 50 MB are refused by their length, read and discarded."""
    server.post("/v1/search", {"query": "x"})
    before = resident_bytes()
    body = bytes(50 << 20)
    own = resident_bytes() - before
    for _ in range(2):
        assert server.post("/v1/search", body)[0] == 413
    assert resident_bytes() - before < own + (16 << 20)


def test_connection_continues_after_a_refused_body(server: Running) -> None:
    large = HEAD + b"Content-Length: 200000\r\n\r\n" + b" " * 200_000
    small = HEAD + b"Content-Length: 14\r\nConnection: close\r\n\r\n" + b'{"query": "x"}'
    answer = server.raw(large + small)
    assert [part[:3] for part in answer.split(b"HTTP/1.1 ")] == [b"", b"413", b"200"]


def test_body_at_the_limit_is_accepted(server: Running) -> None:
    body = json.dumps({"query": "physics"}).encode().ljust(LIMITS.body_bytes)
    assert server.post("/v1/search", body)[0] == 200


def test_response_size_is_limited(tmp_path: Path) -> None:
    documents = [{"id": f"d{n}", "text": "physics " * 100} for n in range(120)]
    with running(text_index(tmp_path / "i", documents), limits=Limits(answer_characters=50_000)) as server:
        assert len(server.client.search("physics", k=50)) == 50
        status, answer = server.post("/v1/search", {"query": "physics", "k": 100})
        assert (status, answer["error"]["code"]) == (422, "limit") and "documents: false" in answer["error"][
            "message"
        ]
        assert len(server.client.search("physics", k=100, documents=False)) == 100


def test_bodies_without_a_write_token_have_a_lower_limit(tmp_path: Path) -> None:
    with running(text_index(tmp_path / "i"), limits=Limits(body_bytes=10_000, query_bytes=1000)) as server:
        text = "x " * 1000
        assert server.post("/v1/search", {"query": text})[0] == 413
        documents = {"documents": [{"id": "d9", "text": text}]}
        assert server.post("/v1/documents", documents)[0] == 401
        assert server.post("/v1/documents", documents, Authorization=f"Bearer {TOKEN}")[0] == 200


def test_limits_can_be_set(tmp_path: Path) -> None:
    with running(text_index(tmp_path / "i"), limits=Limits(k=2)) as server:
        assert server.client.stats()["server"]["limits"]["k"] == 2
        assert server.post("/v1/search", {"query": "x", "k": 3})[0] == 422
