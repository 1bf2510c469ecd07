"""Uncommitted changes: no commit returns 200 for a change that is not durable."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import citadel
from citadel.index.storage import FolderStorage
from citadel.server.ledger import Ledger
from tests.index.quick import Quick
from tests.support.models import ModelFolder
from tests.support.serving import TOKEN, Running, running, text_index
from tests.support.watched import Fail, WatchedStorage

NEW = {"id": "d4", "text": "Curie proposed radioactivity."}
OTHER = {"id": "d5", "text": "Bohr proposed atoms."}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Running]:
    with running(text_index(tmp_path / "i")) as serving:
        yield serving


def another(server: Running) -> citadel.Client:
    return citadel.Client(server.client.url, token=TOKEN)


def post(server: Running, path: str, body: object) -> tuple[int, dict[str, Any]]:
    return server.post(path, body, Authorization=f"Bearer {TOKEN}")


def full_disk(server: Running, monkeypatch: pytest.MonkeyPatch, method: str, drop: bool = False) -> None:
    """Make a method of the index fail; with `drop`, the failure also drops all changes."""

    def fail(*_: object) -> None:
        if drop:
            server.service.index.rollback()
        raise citadel.ResourceError("no space left on device")

    monkeypatch.setattr(server.service.index, method, fail)


def test_failed_add_keeps_changes_of_other_clients(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    server.client.add([NEW])
    with monkeypatch.context() as broken:
        full_disk(server, broken, "add_checked")
        with pytest.raises(citadel.ResourceError):
            another(server).add([OTHER])
    assert server.client.stats()["server"]["waiting"] == 1
    server.client.commit()
    assert server.client.get("d4") is not None and server.client.get("d5") is None


def test_large_add_on_a_full_disk_keeps_changes_of_other_clients(tmp_path: Path) -> None:
    text_index(tmp_path / "i").close()
    full = Fail(1 << 60, errno.ENOSPC, ("write",), forever=True)
    index = citadel.Index.open(WatchedStorage(FolderStorage(tmp_path / "i"), full), memory=100_000)
    with running(index) as server:
        server.client.add([NEW])
        full.number = full.total + 1
        large = [{"id": f"large{n}", "text": f"{'x' * 1000} {n}"} for n in range(200)]
        with pytest.raises(citadel.ResourceError):
            another(server).add(large)
        full.number = 1 << 60
        assert full.failed > 0
        server.client.commit()
        assert server.client.get("d4") is not None and server.client.get("large0") is None


def test_commit_fails_after_folder_moved(tmp_path: Path) -> None:
    live, new = tmp_path / "live", tmp_path / "new"
    text_index(new, [OTHER]).close()
    with running(text_index(live)) as server:
        server.client.add([NEW])
        live.rename(tmp_path / "old")
        new.rename(live)
        with pytest.raises(citadel.LockHeldError, match="moved, removed or replaced"):
            server.client.commit()
        with pytest.raises(citadel.ChangesLostError):
            server.client.commit()
    assert [len(citadel.Index.open(folder)) for folder in (live, tmp_path / "old")] == [1, 3]
    citadel.Index.open(live).check(deep=True)


def test_failure_that_drops_all_changes_is_reported_to_every_client(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.client.add([NEW])
    with monkeypatch.context() as broken:
        full_disk(server, broken, "add_checked", drop=True)
        with pytest.raises(citadel.ResourceError):
            another(server).add([OTHER])
    with pytest.raises(citadel.ChangesLostError, match="add them again") as error:
        server.client.commit()
    assert (error.value.status, error.value.code) == (409, "lost")
    server.client.add([NEW])
    server.client.commit()
    assert server.client.get("d4") is not None


@pytest.mark.parametrize("method", ["add", "delete", "commit"])
def test_failed_commit_drops_all_uncommitted_changes(
    server: Running, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    server.client.add([NEW])
    second = another(server)
    calls = {
        "add": lambda: second.add([OTHER], commit=True),
        "delete": lambda: second.delete(["d1"], commit=True),
        "commit": second.commit,
    }
    with monkeypatch.context() as broken:
        full_disk(server, broken, "commit")
        with pytest.raises(citadel.ResourceError):
            calls[method]()
    assert server.client.stats()["server"]["waiting"] == 0
    with pytest.raises(citadel.ChangesLostError):
        server.client.commit()
    server.client.add([{"id": "d6", "text": "later"}], commit=True)
    present = [id for id in ("d1", "d4", "d5", "d6") if server.client.get(id) is not None]
    assert present == ["d1", "d6"]


def test_restart_between_add_and_commit_is_reported(tmp_path: Path) -> None:
    with running(text_index(tmp_path / "i")) as server:
        client, port = another(server), server.port
        client.add([NEW])
        client.close()
    with running(citadel.Index.open(tmp_path / "i"), port=port) as server:
        with pytest.raises(citadel.ChangesLostError, match="restarted"):
            client.commit()
        status, answer = post(server, "/v1/commit", {})
        assert (status, answer["error"]["code"]) == (409, "nothing_waiting")
        assert "add them again" in answer["error"]["message"]
        client.add([NEW])
        client.commit()
        assert client.get("d4") is not None
        client.close()


def test_add_with_commit_covers_earlier_changes(tmp_path: Path) -> None:
    with running(text_index(tmp_path / "i")) as server:
        client, port = another(server), server.port
        client.add([NEW])
        client.close()
    with running(citadel.Index.open(tmp_path / "i"), port=port) as server:
        with pytest.raises(citadel.ChangesLostError):
            client.add([OTHER], commit=True)
        assert client.get("d5") is None and server.service.waiting == 0
        assert client.add([NEW, OTHER], commit=True) == 2  # the loss was reported once
        client.close()


def test_commit_of_another_client_covers_mine(server: Running) -> None:
    server.client.add([NEW])
    second = another(server)
    second.add([OTHER])
    generation = second.commit()
    assert server.client.commit() == generation  # nothing is committed twice
    assert server.service.commits == 1 and server.client.get("d4") is not None


def test_commit_can_be_repeated_after_a_lost_response(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, call = server.client, server.client.call
    client.add([NEW])

    def lose(method: str, path: str, body: Any = None) -> dict[str, Any]:
        call(method, path, body)
        raise citadel.ResourceError("no answer")

    with monkeypatch.context() as broken:
        broken.setattr(client, "call", lose)
        with pytest.raises(citadel.ResourceError):
            client.commit()
    assert client.commit() == server.service.generation and server.service.commits == 1


def test_changes_dropped_by_the_index_are_lost(server: Running) -> None:
    for call in (server.client.commit, lambda: server.client.add([OTHER], commit=True)):
        server.client.add([NEW])
        server.service.index.rollback()
        with pytest.raises(citadel.ChangesLostError):
            call()
    _, answer = post(server, "/v1/documents", {"documents": [NEW]})
    server.service.index.rollback()
    assert post(server, "/v1/commit", {})[1]["error"]["code"] == "nothing_waiting"
    assert post(server, "/v1/commit", {"changes": answer["changes"]})[1]["error"]["code"] == "lost"


def test_tokens_over_http(server: Running) -> None:
    _, first = post(server, "/v1/documents", {"documents": [NEW]})
    _, second = post(server, "/v1/delete", {"ids": ["d1"]})
    assert first["changes"] != second["changes"]
    status, answer = post(server, "/v1/commit", {"changes": first["changes"]})
    assert (status, answer["waiting"], server.service.commits) == (200, 0, 1)
    assert post(server, "/v1/commit", {"changes": [first["changes"], second["changes"]]})[0] == 200
    assert server.service.commits == 1
    epoch = first["changes"].partition("-")[0]
    for lost in (f"{epoch}-99", f"{epoch}-0", f"{'0' * 16}-1", [first["changes"], f"{'0' * 16}-1"]):
        status, answer = post(server, "/v1/commit", {"changes": lost})
        assert (status, answer["error"]["code"]) == (409, "lost"), lost
    for wrong in ("", "x", 7, [""], f"{epoch}-x", {"a": 1}):
        assert post(server, "/v1/commit", {"changes": wrong})[0] == 422, wrong


def test_lost_token_commits_nothing(server: Running) -> None:
    server.client.add([NEW])
    assert post(server, "/v1/commit", {"changes": f"{'0' * 16}-1"})[0] == 409
    assert (server.service.commits, server.service.waiting) == (0, 1)


@pytest.mark.parametrize("flag", ["true", "false"])
def test_commit_in_the_url(server: Running, flag: str) -> None:
    status, added = post(server, f"/v1/documents?commit={flag}", {"documents": [NEW]})
    assert (status, added["waiting"]) == (200, 0 if flag == "true" else 1)
    assert (server.client.get("d4") is not None) == (flag == "true")
    status, deleted = post(server, f"/v1/delete?commit={flag}", {"ids": ["d4"]})
    assert (status, deleted["deleted"], server.client.get("d4")) == (200, 1, None)


@pytest.mark.parametrize("query", ["commit=", "commit=yes", "commit=1", "commit=true&commit=true"])
def test_invalid_commit_flag_in_the_url(server: Running, query: str) -> None:
    status, answer = post(server, f"/v1/documents?{query}", {"documents": [NEW]})
    assert (status, answer["error"]["code"]) == (422, "fields") and "?commit=true" in answer["error"][
        "message"
    ]
    assert server.service.waiting == 0


def test_change_without_effect_can_be_committed(server: Running) -> None:
    assert server.client.delete(["unknown"]) == 0
    assert server.client.commit() == server.service.generation
    server.client.add([NEW])
    server.client.delete(["d4"])
    server.client.commit()
    assert server.client.get("d4") is None
    with citadel.Index.open(server.service.location) as index:
        index.add([NEW])  # the lock is free


def test_threads_share_a_client(server: Running) -> None:
    def change(number: int) -> None:
        server.client.add([{"id": f"n{number}", "text": "more physics"}])
        server.client.commit()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(change, range(24)))
    assert len(server.client) == 3 + 24 and server.service.waiting == 0


def test_add_reports_cut_documents(tiny_model: ModelFolder, tmp_path: Path) -> None:
    documents = [{"id": str(n), "text": "who " * 400 if n else "who"} for n in range(3)]
    index = citadel.Index.create(Quick(tmp_path / "i"), model=tiny_model(), long="cut")
    with running(index.commit()) as server:
        limit = server.service.index.max_tokens
        for body, cut in ((documents, 2), (documents[:1], 0)):
            _, answer = post(server, "/v1/documents", {"documents": body})
            assert answer["cut"] == {"documents": cut, "limit": limit}
        with pytest.warns(citadel.TruncatedDocumentsWarning, match=f"longer than the {limit} tokens"):
            added = server.client.add(documents)
        assert (added, added.cut, added.limit) == (3, 2, limit)


def test_add_without_a_model_cuts_nothing(server: Running) -> None:
    _, answer = post(server, "/v1/documents", {"documents": [NEW]})
    assert answer["cut"] == {"documents": 0, "limit": None}
    added = server.client.add([OTHER])
    assert (added, added.cut, added.limit) == (1, 0, None)


def test_durable_changes_of_an_ended_epoch_are_not_lost() -> None:
    ledger = Ledger()
    durable = ledger.accept()
    ledger.commit()
    waiting = ledger.accept()
    ledger.drop()
    assert ledger.is_durable([durable]) and not ledger.has_uncommitted
    with pytest.raises(citadel.ServerError):
        ledger.is_durable([durable, waiting])
