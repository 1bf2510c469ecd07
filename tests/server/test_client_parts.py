"""The client sends many documents in several requests, and says what a timeout means."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

import citadel
from citadel.server import client as module
from tests.index.quick import Quick
from tests.support.serving import running


@pytest.mark.parametrize("count", [1, 4, 5])
def test_many_documents_are_sent_in_parts(
    count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_DOCUMENTS_PER_REQUEST", 2)
    with running(citadel.Index.create(Quick(tmp_path / "i"), model="bm25").commit()) as server:
        before = server.service.index.generation
        added = server.client.add([{"text": f"rome {n}"} for n in range(count)], commit=True)
        assert added == count == len(added.generated_ids) == len(server.client)
        assert set(server.client.ids()) == set(added.generated_ids)
        assert server.service.index.generation <= before + 1


def test_parts_are_bounded_by_characters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_CHARACTERS_PER_REQUEST", 10)
    documents = [{"text": "x" * size} for size in (4, 4, 4, 30, 1)]
    assert [len(part) for part in module._parts(documents)] == [3, 1, 1]


def test_timeout_says_that_a_change_may_be_made() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        client = citadel.Client(f"http://127.0.0.1:{silent.getsockname()[1]}", timeout=0.2)
        with pytest.raises(citadel.ResourceError, match=r"no answer within 0\.2 s: .* may still be made"):
            client.add([{"id": "d1", "text": "rome"}])
