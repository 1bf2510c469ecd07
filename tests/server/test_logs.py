"""Logs: one JSON object per line, with the request id and without query texts."""

from __future__ import annotations

import asyncio
import json
import logging
from pathlib import Path
from typing import Any

import pytest

from citadel.server.app import create_context
from citadel.server.config import ServerConfig
from citadel.server.logs import JsonLines
from citadel.server.middleware import RequestMiddleware
from citadel.server.service import Service
from tests.support.serving import TOKEN, parsed, running, text_index


def test_request_is_one_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "citadel.server")
    with running(text_index(tmp_path / "i"), access_log=True) as server:
        server.post("/v1/search", {"query": "a secret question"}, **{"X-Request-Id": "mine-1"})
        server.post("/v1/delete", {"ids": ["d9"]}, Authorization=f"Bearer {TOKEN}")
        server.post("/v1/nothing/secret", {"query": "secret"})
    lines = [
        json.loads(JsonLines().format(record)) for record in caplog.records if record.message == "request"
    ]
    assert [(line["route"], line["method"], line["status"]) for line in lines] == [
        ("/v1/search", "POST", 200),
        ("/v1/delete", "POST", 200),
        ("other", "POST", 404),
    ]
    assert lines[0]["request_id"] == "mine-1" and lines[0]["ms"] > 0 and lines[0]["bytes_out"] > 0
    text = json.dumps(lines)
    assert "secret" not in text and TOKEN not in text


def test_invalid_http_is_one_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "citadel.server")
    with running(text_index(tmp_path / "i"), access_log=True) as server:
        status, answer = parsed(server.raw(b"secret\r\n\r\n"))
    [line] = [
        json.loads(JsonLines().format(record)) for record in caplog.records if record.message == "refused"
    ]
    assert status == 400 and (line["status"], line["code"], line["client"]) == (400, "request", "127.0.0.1")
    assert line["request_id"] == answer["error"]["request_id"] and "secret" not in json.dumps(line)


def test_request_cancelled_at_shutdown_gets_a_response(tmp_path: Path) -> None:

    async def stopped(*_: Any) -> None:
        raise asyncio.CancelledError

    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    service = Service(text_index(tmp_path / "i"), ServerConfig(access_log=False))
    middleware = RequestMiddleware(stopped, create_context(service), frozenset(), {})
    scope = {
        "type": "http",
        "http_version": "1.1",
        "method": "GET",
        "path": "/",
        "headers": [(b"host", b"localhost")],
    }
    asyncio.run(middleware(scope, send, send))  # type: ignore[arg-type]
    service.close()
    assert sent[0]["status"] == 503 and b"x-request-id" in dict(sent[0]["headers"])
    assert json.loads(sent[1]["body"])["error"]["code"] == "stopping"


def test_invalid_request_id_is_replaced(tmp_path: Path) -> None:
    with running(text_index(tmp_path / "i")) as server:
        for given in ("x" * 65, "a b", "<b>"):
            _, answer = server.post("/v1/search", {}, **{"X-Request-Id": given})
            assert answer["error"]["request_id"] != given
        _, answer = server.post("/v1/search", {}, **{"X-Request-Id": "fine_1.2-3"})
        assert answer["error"]["request_id"] == "fine_1.2-3"


def test_internal_error_is_logged_with_traceback_and_hidden_from_clients(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(text_index(tmp_path / "i")) as server:

        def fail(*_: object, **__: object) -> None:
            raise RuntimeError(f"something in {tmp_path}")

        monkeypatch.setattr(server.service.searcher, "search_prepared", fail)
        monkeypatch.setattr(server.service, "commit", fail)
        for path in ("/v1/search", "/v1/commit"):
            body = {"query": "x"} if path == "/v1/search" else {}
            status, answer = server.post(path, body, Authorization=f"Bearer {TOKEN}")
            assert (status, answer["error"]["code"]) == (500, "internal")
            assert str(tmp_path) not in answer["error"]["message"] and "RuntimeError" not in str(answer)
        assert server.client.get("d1") is not None
    assert "something in" in caplog.text and "Traceback" in caplog.text
