"""The log: one JSON object a line, an id that the answer has too, and never what a query says."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from citadel.server.logs import JsonLines
from tests.support.serving import TOKEN, running, text_index


def test_a_request_is_one_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "citadel.server")
    with running(text_index(tmp_path / "i"), access_log=True) as server:
        server.post("/v1/search", {"query": "a secret question"}, **{"X-Request-Id": "mine-1"})
        server.post("/v1/delete", {"ids": ["d9"]}, Authorization=f"Bearer {TOKEN}")
        server.post("/v1/nothing/secret", {"query": "secret"})
    lines = [json.loads(JsonLines().format(record)) for record in caplog.records if record.message == "request"]
    assert [(line["route"], line["method"], line["status"]) for line in lines] == [
        ("/v1/search", "POST", 200),
        ("/v1/delete", "POST", 200),
        ("other", "POST", 404),
    ]
    assert lines[0]["request_id"] == "mine-1" and lines[0]["ms"] > 0 and lines[0]["bytes_out"] > 0
    text = json.dumps(lines)
    assert "secret" not in text and TOKEN not in text


def test_an_id_that_could_break_a_line_is_replaced(tmp_path: Path) -> None:
    with running(text_index(tmp_path / "i")) as server:
        for given in ("x" * 65, "a b", "<b>"):
            _, answer = server.post("/v1/search", {}, **{"X-Request-Id": given})
            assert answer["error"]["request_id"] != given
        _, answer = server.post("/v1/search", {}, **{"X-Request-Id": "fine_1.2-3"})
        assert answer["error"]["request_id"] == "fine_1.2-3"


def test_a_fault_of_ours_is_logged_whole_and_told_in_a_sentence(
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
