"""Start, stop and reload: no response is lost, and a damaged generation is not served."""

from __future__ import annotations

import http.client
import json
import signal
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import citadel
from tests.cli.conftest import in_process
from tests.conftest import NIGHT
from tests.support.serving import DOCUMENTS, TOKEN, command, running, text_index, wait_until

COMMITS = 40 if NIGHT else 15
READERS = 4
QUERY = json.dumps({"query": "physics", "k": 10}).encode()


def plain_search(connection: http.client.HTTPConnection) -> tuple[int, dict[str, Any]]:
    connection.request("POST", "/v1/search", QUERY, {"Content-Type": "application/json"})
    answer = connection.getresponse()
    return answer.status, json.loads(answer.read())


class Reader:
    """Searches in a loop without retries and records every response."""

    def __init__(self, port: int) -> None:
        self.answers: list[tuple[int, dict[str, Any]]] = []
        self.refused = False
        self._port, self._over = port, threading.Event()

    def run(self) -> None:
        while not self._over.is_set() and not self.refused:
            connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=30)
            try:
                connection.connect()
            except ConnectionRefusedError:
                self.refused = True
                break
            while not self._over.is_set():
                self.answers.append(plain_search(connection))
                if connection.sock is None:  # the server sent Connection: close
                    break
            connection.close()

    def stop(self) -> None:
        self._over.set()


def while_reading(port: int, work: Callable[[list[Reader]], None]) -> list[Reader]:
    """Search before, during and after the work; raise the error of a reader."""
    readers = [Reader(port) for _ in range(READERS)]
    with ThreadPoolExecutor(READERS) as pool:
        running_readers = [pool.submit(reader.run) for reader in readers]
        try:
            wait_until(
                lambda: all(reader.answers for reader in readers) or any(r.done() for r in running_readers)
            )
            work(readers)
        finally:
            for reader in readers:
                reader.stop()
        for one in running_readers:
            one.result(60)
    return readers


def test_searches_succeed_during_commits(tmp_path: Path) -> None:
    """Each commit adds a hit: a response has the hits of the generation it names."""
    with running(text_index(tmp_path / "i")) as server:
        first = server.service.generation
        hits = {first: 2}

        def work(_: list[Reader]) -> None:
            for number in range(COMMITS):
                server.client.add([{"id": f"n{number}", "text": "more physics"}], commit=True)
                hits[server.service.generation] = min(3 + number, 10)

        readers = while_reading(server.port, work)
        answers = [answer for reader in readers for answer in reader.answers]
        assert {status for status, _ in answers} == {200}
        assert all(len(answer["hits"]) == hits[answer["generation"]] for _, answer in answers)
        for reader in readers:
            generations = [answer["generation"] for _, answer in reader.answers]
            assert generations == sorted(generations)
        assert server.client.stats()["index"]["documents"] == len(DOCUMENTS) + COMMITS
        assert max(answer["generation"] for _, answer in answers) > first


def test_commit_is_visible_to_the_next_search(tmp_path: Path) -> None:
    with running(text_index(tmp_path / "i")) as server:
        for number in range(5):
            server.client.add([{"id": f"n{number}", "text": f"word{number}"}], commit=True)
            assert server.client.search(f"word{number}").ids == [f"n{number}"]


def test_commit_of_another_process_is_loaded(tmp_path: Path) -> None:
    with running(text_index(tmp_path / "i"), reload_seconds=0.05) as server:
        with citadel.Index.open(tmp_path / "i") as other:
            other.add([{"id": "d4", "text": "from elsewhere"}])
            with pytest.raises(citadel.LockHeldError) as error:
                server.client.add([{"id": "d5", "text": "mine"}])
            assert str(tmp_path) not in str(error.value)
            other.commit()
        wait_until(lambda: server.client.search("elsewhere").ids == ["d4"])
        server.client.add([{"id": "d5", "text": "mine"}], commit=True)
        assert server.client.search("mine").ids == ["d5"] and len(server.client) == 5


def test_short_folder_name_is_not_replaced_within_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder is named t, a letter that occurs in many messages."""
    monkeypatch.chdir(tmp_path)
    text_index(Path("t")).close()
    with command(Path("t")) as (_, client), citadel.Index.open("t") as other:
        other.add([{"id": "d4", "text": "the lock is held"}])
        with pytest.raises(citadel.LockHeldError) as library:
            citadel.Index.open("t").add([{"id": "d5", "text": "refused"}])
        with pytest.raises(citadel.LockHeldError) as remote:
            client.add([{"id": "d5", "text": "refused"}])
        assert str(remote.value) == f"the index: {str(library.value).partition(': ')[2]}"


def test_full_disk_is_reported_and_drops_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with running(text_index(tmp_path / "i")) as server:

        def full() -> None:
            raise citadel.ResourceError(f"{tmp_path / 'i'}: no space left on device")

        server.client.add([{"id": "d4", "text": "lost"}])
        monkeypatch.setattr(server.service.index, "commit", full)
        with pytest.raises(citadel.ResourceError, match="the index: no space left") as error:
            server.client.commit()
        assert str(tmp_path) not in str(error.value)
        monkeypatch.undo()
        assert server.client.stats()["server"]["waiting"] == 0
        assert server.client.search("physics").ids


def cut(data: bytes) -> bytes:
    return data[: len(data) // 2]


def flip(data: bytes) -> bytes:
    """Flip a bit inside a section, which opening does not read."""
    offset = data.index(b"again")
    return data[:offset] + bytes([data[offset] ^ 1]) + data[offset + 1 :]


def break_newest(folder: Path, how: Callable[[bytes], bytes] = cut, kind: str = "seg-*.cit") -> Path:
    """Damage the newest file of a kind and return its path."""
    newest = max(folder.glob(kind), key=lambda path: path.stat().st_mtime_ns)
    newest.write_bytes(how(newest.read_bytes()))
    return newest


@pytest.mark.parametrize(("how", "kind"), [(cut, "seg-*.cit"), (flip, "seg-*.cit"), (flip, "docs-*.sqlite")])
def test_damaged_generation_is_not_served(tmp_path: Path, how: Callable[[bytes], bytes], kind: str) -> None:
    text_index(tmp_path / "i").close()
    with command(tmp_path / "i", "--reload", "0") as (process, client):
        before = client.search("physics")
        with citadel.Index.open(tmp_path / "i") as other:
            other.add([{"id": "d4", "text": "physics again"}])
            other.commit()
        newest = break_newest(tmp_path / "i", how, kind)
        process.send_signal(signal.SIGHUP)
        wait_until(lambda: client.stats()["server"]["reload_error"] is not None)
        after = client.search("physics")
        assert (after.ids, after.scores) == (before.ids, before.scores)
        assert client.call("GET", "/health/ready")["status"] == "ready"
        assert newest.name not in str(client.stats()) and len(client) == len(DOCUMENTS)


def test_start_fails_on_a_damaged_index(tmp_path: Path) -> None:
    text_index(tmp_path / "i").close()
    break_newest(tmp_path / "i")
    done = in_process("serve", tmp_path / "i", "--port", 0)
    assert done.code == 3
    assert done.err.startswith("citadel: ") and len(done.err.splitlines()) == 1


def test_start_fails_without_index_or_on_a_used_port(tmp_path: Path) -> None:
    assert in_process("serve", tmp_path / "none", "--port", 0).code == 4
    with running(text_index(tmp_path / "i")) as server:
        done = in_process("serve", tmp_path / "i", "--port", server.port)
        assert done.code == 2 and "choose another --port" in done.err


@pytest.mark.parametrize("stop", [signal.SIGTERM, signal.SIGINT])
def test_stop_under_load_loses_no_response(tmp_path: Path, stop: signal.Signals) -> None:
    text_index(tmp_path / "i").close()
    with command(tmp_path / "i", "--no-access-log") as (process, client):

        def work(readers: list[Reader]) -> None:
            process.send_signal(stop)
            wait_until(lambda: all(reader.refused for reader in readers))

        readers = while_reading(int(client.url.rpartition(":")[2]), work)
        assert {status for reader in readers for status, _ in reader.answers} == {200}
        assert process.wait(30) == 0


def test_stop_drops_uncommitted_changes_and_releases_the_lock(tmp_path: Path) -> None:
    text_index(tmp_path / "i").close()
    with command(tmp_path / "i") as (process, client):
        client.add([{"id": "d9", "text": "never committed"}])
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    with citadel.Index.open(tmp_path / "i") as index:
        assert len(index) == len(DOCUMENTS)
        index.add([{"id": "d9", "text": "the lock is free"}])


def test_sighup_loads_a_new_generation(tmp_path: Path) -> None:
    text_index(tmp_path / "i").close()
    with command(tmp_path / "i", "--reload", "0") as (process, client):
        with citadel.Index.open(tmp_path / "i") as other:
            other.add([{"id": "d4", "text": "elsewhere"}])
            other.commit()
        assert client.search("elsewhere").ids == []
        process.send_signal(signal.SIGHUP)
        wait_until(lambda: client.search("elsewhere").ids == ["d4"])


def test_settings_from_flags_and_the_environment(tmp_path: Path) -> None:
    text_index(tmp_path / "i").close()
    read = "a read token for tests"
    with command(tmp_path / "i", "--max-k", "7", CITADEL_MAX_BATCH="2", CITADEL_READ_TOKEN=read) as (
        _,
        client,
    ):
        limits = client.stats()["server"]["limits"]
        assert (limits["k"], limits["batch"]) == (7, 2)
        with pytest.raises(citadel.ServerError, match="a read token is needed"):
            citadel.Client(client.url).search("physics")
    token = tmp_path / "token"
    token.write_text(f"{TOKEN}\n")
    with command(tmp_path / "i", "--write-token-file", str(token), CITADEL_WRITE_TOKEN="") as (_, client):
        assert client.delete(["d1"], commit=True) == 1
    assert in_process("serve", tmp_path / "i", CITADEL_WRITE_TOKEN="short").code == 2
    assert in_process("serve", tmp_path / "i", "--write-token-file", tmp_path / "none").code == 4
