"""Long documents: responses are bounded in memory and time, and do not delay other requests."""

from __future__ import annotations

import json
import random
import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import citadel
from citadel.server.config import Limits
from citadel.server.routes.documents import document_pieces
from citadel.server.routes.search import documents_per_read
from tests.support.serving import DOCUMENTS, command, running, text_index

MEGABYTE = 1_000_000
QUERY = "who proposed relativity"


def long_text(size: int) -> str:
    """Random words, with the words of the query at the end."""
    chance = random.Random(7)
    words = [
        "".join(chance.choices("abcdefghijklmnopqrstuvwxyz", k=chance.randint(2, 10))) for _ in range(20_000)
    ]
    return " ".join(chance.choices(words, k=size // 7)) + " Einstein proposed relativity."


@pytest.fixture(scope="module")
def eight_megabytes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("long") / "i"
    text_index(folder, [*DOCUMENTS, {"id": "long", "text": long_text(8 * MEGABYTE)}]).close()
    return folder


def high_water(process: int) -> int:
    """Peak memory of a process in bytes."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) * 1024


def test_explaining_a_long_document_does_not_block_searches(eight_megabytes: Path) -> None:
    """Two explanations at once, each within 64 MB; concurrent searches are answered."""
    with command(eight_megabytes, "--no-access-log", "--workers", "2") as (process, client):
        client.explain(QUERY, "d1")
        for query in (QUERY, "evolution"):
            client.search(query)
        before, over, answered = high_water(process.pid), threading.Event(), list[str]()

        def search() -> None:
            while not over.is_set():
                answered.extend(citadel.Client(client.url).search("evolution", k=1).ids)

        with ThreadPoolExecutor(3) as pool:
            searching = pool.submit(search)
            answers = [one.result() for one in [pool.submit(client.explain, QUERY, "long") for _ in range(2)]]
            over.set()
            searching.result()
        assert set(answered) == {"d2"}
        assert high_water(process.pid) - before < 2 * 64 * MEGABYTE
    assert answers[0] == answers[1] and answers[0]["text_cut"] and len(answers[0]["text"]) <= 100_000
    assert answers[0]["snippet"]["text"].endswith("Einstein proposed relativity.")
    assert [answers[0]["text"][span["start"] : span["end"]] for span in answers[0]["text_spans"]] == [
        "proposed",
        "relativity",
    ]


def test_search_with_explanations_of_a_long_document(eight_megabytes: Path) -> None:
    with running(citadel.Index.open(eight_megabytes)) as server:
        answers = server.client.call("POST", "/v1/search", {"query": QUERY, "k": 4, "explain": True})
        [long] = [hit for hit in answers["hits"] if hit["id"] == "long"]
        assert long["text_cut"] is True and len(long["text"]) == 100_000
        assert long["explanation"]["score"] == long["score"]
        assert "text_cut" not in next(hit for hit in answers["hits"] if hit["id"] == "d1")


@pytest.fixture(scope="module")
def sixty_megabytes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index of given vectors with a text of 60 MB."""
    folder = tmp_path_factory.mktemp("longest") / "v"
    with citadel.Index.create(
        folder, fields={"semantic": citadel.Field(2, "fp16")}, fingerprint="x"
    ) as index:
        index.add_vectors([{"id": "v1", "text": "a b\n" * (15 * MEGABYTE), "semantic": [1, 0]}])
        index.add_vectors([{"id": "v2", "text": "short", "title": "t" * 200_000, "semantic": [0, 1]}])
        index.commit()
    return folder


def test_hit_of_sixty_megabytes_is_cut_and_fetched_in_pieces(sixty_megabytes: Path) -> None:
    with command(sixty_megabytes, "--no-access-log") as (process, client):
        client.search_vectors(semantic=[0, 1], k=1)
        before = high_water(process.pid)
        hits = client.search_vectors(semantic=[1, 0.5], k=2)
        assert hits.ids == ["v1", "v2"]
        rows: list[dict[str, Any]] = client.call("POST", "/v1/search", {"vectors": {"semantic": [1, 0]}})[
            "hits"
        ]
        assert [(len(row["text"]), len(row["title"]), row["text_cut"]) for row in rows] == [
            (100_000, 0, True),
            (5, 100_000, True),
        ]
        assert hits[0].text == "a b\n" * (15 * MEGABYTE) and hits[1].title == "t" * 200_000
        assert high_water(process.pid) - before < 32 * MEGABYTE


def own_memory(process: int | str) -> int:
    """Anonymous memory of a process in bytes; pages of mapped files are not counted."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) * 1024


def growth(process: int | str, work: Callable[[], object]) -> int:
    """How many bytes a process grows at most while `work` is done, sampled every 2 ms."""
    before, over = own_memory(process), threading.Event()

    def sample() -> int:
        peak = before
        while not over.wait(0.002):
            peak = max(peak, own_memory(process))
        return peak - before

    with ThreadPoolExecutor(1) as pool:
        sampled = pool.submit(sample)
        try:
            work()
        finally:
            over.set()
        return sampled.result()


@pytest.mark.slow
def test_requests_that_read_a_huge_document(tmp_path: Path) -> None:
    """Search, explanation and download each take less memory than the document has bytes."""
    text_index(tmp_path / "i", [*DOCUMENTS, {"id": "huge", "text": long_text(59 * MEGABYTE)}]).close()
    with command(tmp_path / "i", "--no-access-log") as (process, client):
        client.explain(QUERY, "d1")  # loads what is loaded late
        grown = {
            "search": growth(process.pid, lambda: client.search(QUERY)),
            "explain": growth(process.pid, lambda: client.explain(QUERY, "huge")),
            "get": growth(process.pid, lambda: client.get("huge")),
        }
    assert {name: value for name, value in grown.items() if value > 32 * MEGABYTE} == {}


@pytest.mark.slow
def test_text_of_a_huge_hit(tmp_path: Path) -> None:
    """The caller gets the requested document: no second copy, and none of the other hits."""
    given = [{"id": f"v{n}", "text": f"{n} b\n" * (15 * MEGABYTE), "semantic": [1, n]} for n in range(3)]
    with citadel.Index.create(
        tmp_path / "v", fields={"semantic": citadel.Field(2, "fp16")}, fingerprint="x"
    ) as index:
        for row in given:
            index.add_vectors([row])
        given.clear()
        index.commit()
    hits = citadel.Index.open(tmp_path / "v").searcher().search_vectors(semantic=[0, 1])
    assert hits.ids == ["v2", "v1", "v0"]
    lengths: list[int] = []
    grown = growth("self", lambda: lengths.extend(len(hit.text) for hit in hits))
    assert lengths == [60 * MEGABYTE] * 3 and grown < (60 + 32) * MEGABYTE


def test_long_documents_are_read_few_at_a_time(sixty_megabytes: Path, eight_megabytes: Path) -> None:
    assert documents_per_read(citadel.Index.open(sixty_megabytes).searcher().snapshot) == 1
    assert documents_per_read(citadel.Index.open(eight_megabytes).searcher().snapshot) in (3, 4)


def test_short_documents_are_read_fifty_at_a_time(tmp_path: Path) -> None:
    documents = [{"id": f"d{n}", "text": "physics " * 100} for n in range(200)]
    assert documents_per_read(text_index(tmp_path / "i", documents).searcher().snapshot) == 50
    assert documents_per_read(citadel.Index.create(tmp_path / "empty", model="bm25").searcher().snapshot) == 1


@pytest.mark.parametrize("text", ["", 'a "quoted"\n\\ line\x00 \u2028 🦊' * 30_000, "é" * (1 << 18) + "🦊"])
def test_pieces_are_the_json_of_a_document(text: str, tmp_path: Path) -> None:
    expected = {"id": 'd"1', "title": text[:40], "text": text, "metadata": {"a": [1, {"b": None}]}}
    index = text_index(tmp_path / "i", [expected, {"id": "d2", "text": text}])
    store = index.searcher().snapshot.segments[0].store
    for number, document in enumerate([expected, {"id": "d2", "title": "", "text": text, "metadata": {}}]):
        pieces = list(document_pieces(store, number, store.part(number, 0, 1).document))
        assert json.loads(b"".join(pieces)) == document and max(map(len, pieces)) < 2 * MEGABYTE


def test_damaged_long_document_is_not_sent(tmp_path: Path) -> None:
    """Its checksum is checked before the first byte of the response."""
    text_index(tmp_path / "i", [{"id": "d1", "text": "a b\n" * MEGABYTE}]).close()
    [path] = (tmp_path / "i").glob("docs-*")
    data = bytearray(path.read_bytes())
    data[2 * MEGABYTE] ^= 1
    path.write_bytes(data)
    with running(citadel.Index.open(tmp_path / "i")) as server:
        answer = server.raw(b"GET /v1/documents?id=d1 HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 500 ") and b"checksum" in answer


def test_client_disconnects_in_the_middle_of_a_document(tmp_path: Path) -> None:
    text = "a b\n" * MEGABYTE
    with running(text_index(tmp_path / "i", [{"id": "d1", "text": text}])) as server:
        for _ in range(3):
            with socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection:
                connection.sendall(b"GET /v1/documents?id=d1 HTTP/1.1\r\nHost: test\r\n\r\n")
                assert connection.recv(1 << 16).startswith(b"HTTP/1.1 200 ")
        document = server.client.get("d1")
        assert document is not None and document.text == text


def test_text_at_the_limit_is_not_cut(tmp_path: Path) -> None:
    documents = [{"id": "d1", "text": "physics!!!" * 5}, {"id": "d2", "text": "physics!!!" * 5 + "!"}]
    with running(text_index(tmp_path / "i", documents), limits=Limits(hit_characters=50)) as server:
        rows = {
            row["id"]: row for row in server.client.call("POST", "/v1/search", {"query": "physics"})["hits"]
        }
        assert (
            "text_cut" not in rows["d1"]
            and rows["d2"]["text_cut"]
            and rows["d2"]["text"] == rows["d1"]["text"]
        )
        assert {hit.id: hit.text for hit in server.client.search("physics")} == {
            d["id"]: d["text"] for d in documents
        }
