"""Long documents and groups over HTTP and with the client."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import citadel
from tests.index.quick import Quick
from tests.support.models import ModelFolder
from tests.support.serving import TOKEN, Running, running

TEXT = "a history of rome. " * 20 + "darwin proposed evolution. " + "a history of rome. " * 20


def post(server: Running, path: str, body: object) -> tuple[int, dict[str, Any]]:
    return server.post(path, body, Authorization=f"Bearer {TOKEN}")


@pytest.fixture(scope="module")
def server(tiny_model: ModelFolder, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    index = citadel.Index.create(Quick(tmp_path_factory.mktemp("long") / "i"), model=tiny_model())
    index.add([{"id": "d1", "text": TEXT, "book": "b"}, {"id": "d2", "text": "darwin", "book": "b"}])
    with running(index.commit()) as server:
        yield server


def test_hit_of_a_long_document_has_its_best_passage(server: Running) -> None:
    status, answer = post(server, "/v1/search", {"query": "evolution"})
    assert status == 200 and sorted(hit["id"] for hit in answer["hits"]) == ["d1", "d2"]
    by_id = {hit["id"]: hit for hit in answer["hits"]}
    passage = by_id["d1"]["passage"]
    assert TEXT[passage["start"] : passage["end"]] == passage["text"]
    assert passage["score"] == by_id["d1"]["score"]
    assert "passage" not in by_id["d2"] and "passages" not in by_id["d1"]


def test_other_passages_are_returned_on_request(server: Running) -> None:
    _, answer = post(server, "/v1/search", {"query": "evolution", "passages": True})
    [hit] = [hit for hit in answer["hits"] if hit["id"] == "d1"]
    assert len(hit["passages"]) > 5 and hit["passage"] not in hit["passages"]


def test_client_has_the_interface_of_the_library(server: Running) -> None:
    own = {hit.id: hit for hit in server.service.searcher.search("evolution")}
    for hit in server.client.search("evolution", passages=True):
        assert (hit.passage, list(hit.passages)) == (own[hit.id].passage, list(own[hit.id].passages))
    assert len(server.client.search("evolution", group_by="book")) == 1
    ranking = server.client.search_batch({"q1": "evolution", "q2": "rome"}, group_by="book")
    assert [len(hits) for _, hits in ranking] == [1, 1]


def test_matching_and_facets_count_documents(server: Running) -> None:
    _, answer = post(server, "/v1/search", {"query": "rome", "filter": {"book": "b"}, "facets": ["book"]})
    assert answer["matching"] == 2 and answer["facets"] == {"book": [{"value": "b", "count": 2}]}


def test_explanation_is_of_the_best_passage(server: Running) -> None:
    _, answer = post(server, "/v1/search", {"query": "evolution", "explain": True})
    [hit] = [hit for hit in answer["hits"] if hit["id"] == "d1"]
    explanation = hit["explanation"]
    assert explanation["score"] == pytest.approx(hit["score"])
    assert explanation["text_start"] == hit["passage"]["start"]


def test_group_by_of_a_list_is_refused(tmp_path: Path) -> None:
    index = citadel.Index.create(Quick(tmp_path / "i"), model="bm25")
    index.add([{"id": "d1", "text": "rome", "tags": ["a"]}])
    with running(index.commit()) as server:
        status, answer = post(server, "/v1/search", {"query": "rome", "group_by": "tags"})
        assert status == 422 and "'tags' holds lists" in answer["error"]["message"]


def test_passages_without_documents(server: Running) -> None:
    body = {"query": "evolution", "documents": False, "passages": True}
    _, answer = post(server, "/v1/search", body)
    by_id = {hit["id"]: hit for hit in answer["hits"]}
    assert "text" not in by_id["d1"] and "passage" not in by_id["d2"]
    assert by_id["d1"]["passage"]["text"] in TEXT and by_id["d1"]["passages"]
