"""Tokens: permissions per route, checked before the body is read."""

from __future__ import annotations

from pathlib import Path

import pytest

import citadel
from citadel.server.config import ServerConfig
from citadel.server.tokens import TokenCheck
from tests.support.serving import TOKEN, parsed, running, text_index

READ = "a read token for tests"
WRITES = ("/v1/documents", "/v1/delete", "/v1/commit")
READS = ("/v1/search", "/v1/search/batch", "/v1/explain", "/v1/explain/text")


def test_server_without_write_token_is_read_only(tmp_path: Path) -> None:
    with running(text_index(tmp_path / "i"), write_token=None) as server:
        for path in WRITES:
            for headers in ({}, {"Authorization": "Bearer "}, {"Authorization": f"Bearer {TOKEN}"}):
                status, answer = server.post(path, {}, **headers)
                assert (status, answer["error"]["code"]) == (403, "read_only")
        assert server.client.search("physics").ids


def test_writes_need_the_write_token(tmp_path: Path) -> None:
    with running(text_index(tmp_path / "i")) as server:
        for path in WRITES:
            for given in (
                "",
                "Bearer",
                "Bearer ",
                "Bearer wrong",
                f"Basic {TOKEN}",
                f"Bearer {TOKEN}x",
                TOKEN,
            ):
                status, answer = server.post(path, {}, Authorization=given)
                assert (status, answer["error"]["code"]) == (401, "token"), given
        assert server.post("/v1/delete", {"ids": ["d9"]}, Authorization=f"bearer {TOKEN}")[0] == 200
        assert citadel.Client(server.client.url).search("physics").ids


def test_read_token_protects_reads(tmp_path: Path) -> None:
    with running(text_index(tmp_path / "i"), read_token=READ) as server:
        for path in READS:
            assert server.post(path, {"query": "x"})[0] == 401
        for path in ("/v1/stats", "/metrics", "/v1/documents?id=d1"):
            answer = server.raw(b"GET %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n" % path.encode())
            assert (
                answer.startswith(b"HTTP/1.1 401") and b'www-authenticate: Bearer realm="citadel"' in answer
            )
        for path in ("/", "/health/live", "/health/ready", "/openapi.json"):
            answer = server.raw(b"GET %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n" % path.encode())
            assert answer.startswith(b"HTTP/1.1 200")
        for token in (READ, TOKEN):
            assert citadel.Client(server.client.url, token=token).search("physics").ids
        assert server.post("/v1/commit", {}, Authorization=f"Bearer {READ}")[0] == 401


def test_token_is_checked_before_the_body(tmp_path: Path) -> None:
    """The response arrives although the body is never sent."""
    with running(text_index(tmp_path / "i")) as server:
        head = "POST /v1/documents HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        head += "Connection: close\r\n"
        status, _ = parsed(server.raw(f"{head}Content-Length: 5000\r\n\r\n".encode()))
        assert status == 401


def test_duplicate_authorization_header_is_refused() -> None:
    check = TokenCheck(ServerConfig(write_token=TOKEN))
    given = (b"authorization", f"Bearer {TOKEN}".encode())
    check.check("POST", "/v1/commit", [given])
    with pytest.raises(citadel.ServerError, match="a write token is needed"):
        check.check("POST", "/v1/commit", [given, given])


@pytest.mark.parametrize("token", ["", "short", "a token with an é in it", "a token with\nlines"])
def test_short_or_unprintable_token_is_refused(token: str) -> None:
    with pytest.raises(citadel.UsageError, match="printable ASCII"):
        ServerConfig(write_token=token)
    assert TOKEN not in repr(ServerConfig(write_token=TOKEN))
