"""Long documents: responses are bounded in memory and time, and do not delay other requests."""

from __future__ import annotations

import asyncio
import json
import random
import threading
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
    """Words of a large vocabulary, and the words of the query at the end."""
    chance = random.Random(7)
    words = ["".join(chance.choices("abcdefghijklmnopqrstuvwxyz", k=chance.randint(2, 10))) for _ in range(20_000)]
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


def test_explanations_of_a_long_document_leave_searches_alone(eight_megabytes: Path) -> None:
    """Two at the same time, each within 64 MB; the searches that come meanwhile are all answered."""
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


def test_a_search_with_explanations_of_a_long_document(eight_megabytes: Path) -> None:
    with running(citadel.Index.open(eight_megabytes)) as server:
        answers = server.client.call("POST", "/v1/search", {"query": QUERY, "k": 4, "explain": True})
        [long] = [hit for hit in answers["hits"] if hit["id"] == "long"]
        assert long["text_cut"] is True and len(long["text"]) == 100_000
        assert long["explanation"]["score"] == long["score"]
        assert "text_cut" not in next(hit for hit in answers["hits"] if hit["id"] == "d1")


@pytest.fixture(scope="module")
def sixty_megabytes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index of given vectors, which takes a text as it is."""
    folder = tmp_path_factory.mktemp("longest") / "v"
    with citadel.Index.create(folder, fields={"semantic": citadel.Field(2, "fp16")}, fingerprint="x") as index:
        index.add_vectors([{"id": "v1", "text": "a b\n" * (15 * MEGABYTE), "semantic": [1, 0]}])
        index.add_vectors([{"id": "v2", "text": "short", "title": "t" * 200_000, "semantic": [0, 1]}])
        index.commit()
    return folder


def test_a_hit_of_sixty_megabytes(sixty_megabytes: Path) -> None:
    """Its text is cut in a search, and a client that asks for it gets all of it, in pieces."""
    with command(sixty_megabytes, "--no-access-log") as (process, client):
        client.search_vectors(semantic=[0, 1], k=1)
        before = high_water(process.pid)
        hits = client.search_vectors(semantic=[1, 0.5], k=2)
        assert hits.ids == ["v1", "v2"]
        rows: list[dict[str, Any]] = client.call("POST", "/v1/search", {"vectors": {"semantic": [1, 0]}})["hits"]
        assert [(len(row["text"]), len(row["title"]), row["text_cut"]) for row in rows] == [
            (100_000, 0, True),
            (5, 100_000, True),
        ]
        assert hits[0].text == "a b\n" * (15 * MEGABYTE) and hits[1].title == "t" * 200_000
        # The document, what checks and decodes it, and 64 MB.
        assert high_water(process.pid) - before < 3 * 60 * MEGABYTE + 64 * MEGABYTE


def test_documents_are_read_few_at_a_time_where_they_are_long(sixty_megabytes: Path, eight_megabytes: Path) -> None:
    assert documents_per_read(citadel.Index.open(sixty_megabytes).searcher().snapshot) == 1
    assert documents_per_read(citadel.Index.open(eight_megabytes).searcher().snapshot) in (3, 4)


def test_few_documents_of_usual_length_are_documents_per_read(tmp_path: Path) -> None:
    documents = [{"id": f"d{n}", "text": "physics " * 100} for n in range(200)]
    assert documents_per_read(text_index(tmp_path / "i", documents).searcher().snapshot) == 50
    assert documents_per_read(citadel.Index.create(tmp_path / "empty", model="bm25").searcher().snapshot) == 1


@pytest.mark.parametrize("text", ["", 'a "quoted"\n\\ line\x00 \u2028 🦊' * 30_000, "é" * (1 << 18) + "🦊"])
def test_pieces_are_the_json_of_a_document(text: str) -> None:
    document = citadel.Document('d"1', text, title=text[:40], metadata={"a": [1, {"b": None}]})

    async def whole() -> bytes:
        return b"".join([piece async for piece in document_pieces(document)])

    expected = {"id": 'd"1', "title": text[:40], "text": text, "metadata": {"a": [1, {"b": None}]}}
    assert json.loads(asyncio.run(whole())) == expected


def test_a_text_at_the_limit_is_not_cut(tmp_path: Path) -> None:
    documents = [{"id": "d1", "text": "physics!!!" * 5}, {"id": "d2", "text": "physics!!!" * 5 + "!"}]
    with running(text_index(tmp_path / "i", documents), limits=Limits(hit_characters=50)) as server:
        rows = {row["id"]: row for row in server.client.call("POST", "/v1/search", {"query": "physics"})["hits"]}
        assert "text_cut" not in rows["d1"] and rows["d2"]["text_cut"] and rows["d2"]["text"] == rows["d1"]["text"]
        assert {hit.id: hit.text for hit in server.client.search("physics")} == {d["id"]: d["text"] for d in documents}
