"""Files and headers of the page: its own origin only, and documents never become markup."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from citadel.server.static_files import page_files
from tests.support.serving import Running, running, text_index

MARKUP = "<script>alert(1)</script><img src=x onerror=alert(1)> \u202egnp.exe\u202c \u2028 ]]> --> </title>"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Running]:
    documents = [{"id": MARKUP.replace("\u2028", ""), "title": MARKUP, "text": MARKUP, MARKUP: MARKUP}]
    with running(text_index(tmp_path / "i", documents)) as serving:
        yield serving


def get(server: Running, path: str, *headers: str) -> tuple[str, bytes]:
    lines = "".join(f"{line}\r\n" for line in headers)
    answer = server.raw(f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{lines}\r\n".encode())
    head, _, body = answer.partition(b"\r\n\r\n")
    return head.decode().lower(), body


def test_content_security_policy_of_every_file(server: Running) -> None:
    for path in page_files():
        head, body = get(server, path)
        assert head.startswith("http/1.1 200") and body
        assert "content-security-policy: default-src 'self'; base-uri 'none'" in head
        assert "unsafe" not in head and "x-content-type-options: nosniff" in head
        assert ("content-type: text/html" in head) == (path == "/")


def test_unchanged_file_is_304(server: Running) -> None:
    head, _ = get(server, "/")
    tag = next(line for line in head.splitlines() if line.startswith("etag:")).removeprefix("etag: ")
    head, body = get(server, "/", f"If-None-Match: {tag}")
    assert head.startswith("http/1.1 304") and not body
    assert "cache-control: no-cache" in head


@pytest.mark.parametrize(
    "path", ["/../etc/passwd", "/%2e%2e/app.py", "/page.py", "/page/index.html", "//", "/app.js/"]
)
def test_other_paths_are_not_served(server: Running, path: str) -> None:
    head, body = get(server, path)
    assert head.startswith(("http/1.1 404", "http/1.1 400")) and json.loads(body)["error"]


def test_markup_is_returned_as_json_text(server: Running) -> None:
    hits = server.client.search("alert")
    assert hits[0].title == MARKUP and hits[0].metadata[MARKUP] == MARKUP
    body = json.dumps({"query": MARKUP, "k": 1}).encode()
    head = b"POST /v1/search HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nConnection: close\r\n"
    answer = server.raw(head + b"Content-Length: %d\r\n\r\n" % len(body) + body)
    assert b"content-type: application/json" in answer and b"nosniff" in answer
    for path in ("/<script>", f"/v1/documents?id={'%3Cscript%3E'}"):
        head_, body_ = get(server, path)
        assert "application/json" in head_ and "<script>" not in json.loads(body_)["error"]["message"]
