"""Count, facets, listing, and changes by filter over HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import citadel
from citadel.server import kept_generations
from citadel.server.config import Limits
from citadel.server.kept_generations import KeptGenerations, cursor_of
from tests.support.serving import TOKEN, Running, running, text_index

DOCUMENTS: list[dict[str, Any]] = [
    {"id": f"d{n:02}", "title": f"T{n}", "text": f"theory {n}", "year": 1900 + n % 5} for n in range(25)
]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Running]:
    """Two segments, one document deleted."""
    index = text_index(tmp_path / "i", DOCUMENTS[:15])
    index.add(DOCUMENTS[15:])
    index.delete(["d03"])
    with running(index.commit()) as serving:
        yield serving


def call(server: Running, route: str, **body: Any) -> dict[str, Any]:
    return server.client.call("POST", f"/v1/{route}", body)


def refused(server: Running, route: str, **body: Any) -> tuple[int, str]:
    status, answer = server.post(f"/v1/{route}", body, Authorization=f"Bearer {TOKEN}")
    return status, answer["error"]["code"]


def pages(server: Running, **body: Any) -> list[list[Any]]:
    """All pages of a listing."""
    name = "documents" if body.get("documents", True) else "ids"
    answer = call(server, "list", **body)
    listed: list[list[Any]] = [answer[name]]
    while answer["cursor"] is not None:
        answer = call(server, "list", **body | {"cursor": answer["cursor"]})
        listed.append(answer[name])
    return listed


def test_count(server: Running) -> None:
    assert call(server, "count") == {"count": 24, "generation": server.service.generation}
    filter = {"year": {"$gte": 1903}}
    assert call(server, "count", filter=filter)["count"] == server.service.index.count(filter) == 9
    assert refused(server, "count", filter={"year": {"$near": 1}}) == (422, "filter")


def test_facets(server: Running) -> None:
    answer = call(server, "facets", fields=["year", "none"], filter={"year": {"$gt": 1900}}, limit=2)
    assert answer["facets"] == {
        "year": [{"value": 1901, "count": 5}, {"value": 1902, "count": 5}],
        "none": [],
    }
    assert answer["matching"] == 19
    wrong: dict[str, Any]
    for wrong in ({"fields": []}, {"fields": ["year"], "limit": 0}, {"fields": ["year"], "limit": 1001}):
        assert refused(server, "facets", **wrong) == (422, "fields")


@pytest.mark.parametrize("limit", [1, 7, 24, 100])
@pytest.mark.parametrize("filter", [None, {"year": {"$gte": 1903}}, {"year": 7}])
def test_pages_of_a_listing_hold_every_document_once(server: Running, limit: int, filter: Any) -> None:
    ids = [id for page in pages(server, filter=filter, limit=limit, documents=False) for id in page]
    assert ids == list(server.service.index.ids(filter))
    listed = pages(server, filter=filter, limit=limit)
    documents = [citadel.Document(d["id"], d["text"], d["title"], d["metadata"]) for p in listed for d in p]
    assert documents == list(server.service.index.documents(filter))
    assert all(len(page) <= limit for page in listed) and len(listed) == max(-(-len(ids) // limit), 1)


def test_listing_stays_in_its_generation(server: Running) -> None:
    first = call(server, "list", limit=10, documents=False)
    server.client.delete(["d20"], commit=True)
    server.client.add([{"id": "new", "text": "x"}], commit=True)
    second = call(server, "list", limit=100, documents=False, cursor=first["cursor"])
    assert "d20" in second["ids"] and "new" not in second["ids"]
    assert len(first["ids"] + second["ids"]) == 24 and second["cursor"] is None
    assert second["generation"] == first["generation"] < server.service.generation
    assert "new" in call(server, "list", documents=False)["ids"]


def test_cursor_of_a_generation_that_is_gone_is_410(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_generations, "KEEP_SECONDS", -1.0)
    cursor = call(server, "list", limit=10)["cursor"]
    assert call(server, "list", limit=1, cursor=cursor)["documents"]  # still served
    server.client.delete(["d20"], commit=True)
    status, answer = server.post("/v1/list", {"cursor": cursor})
    assert (status, answer["error"]["code"]) == (410, "cursor") and "start" in answer["error"]["message"]
    assert refused(server, "list", cursor="00000000-1-0") == (410, "cursor")


@pytest.mark.parametrize("cursor", ["", "7", "x-1-1", "00000000-1--1", "00000000-1-1-1", 7])
def test_wrong_cursor_is_refused(server: Running, cursor: Any) -> None:
    assert refused(server, "list", cursor=cursor) == (422, "fields")


def test_cursor_beyond_the_end_is_an_empty_page(server: Running) -> None:
    cursor = cursor_of(server.service.searcher.snapshot, 10**14)
    assert call(server, "list", cursor=cursor)["documents"] == []


def test_page_size_has_a_limit(server: Running) -> None:
    assert refused(server, "list", limit=1001) == (422, "limit")
    assert refused(server, "list", limit=0) == (422, "fields")


def test_long_texts_make_short_pages(tmp_path: Path) -> None:
    documents = [{"id": f"d{n}", "text": "w " * 400} for n in range(9)] + [{"id": "long", "text": "w" * 1500}]
    limits = Limits(answer_characters=1600, hit_characters=1000)
    with running(text_index(tmp_path / "i", documents), limits=limits) as server:
        listed = pages(server)
        assert [row["id"] for page in listed for row in page] == [row["id"] for row in documents]
        assert listed[-1][-1]["text_cut"] and len(listed[-1][-1]["text"]) == 1000
        assert "text_cut" not in listed[0][0]


def test_only_recent_generations_are_kept(server: Running) -> None:
    now = [0.0]
    kept, snapshot = KeptGenerations(lambda: now[0]), server.service.searcher.snapshot
    cursors = []
    for n in range(6):
        cursors.append(cursor_of(server.service.searcher.snapshot, 5))
        kept.keep(server.service.searcher.snapshot)
        server.client.delete([f"d1{n}"], commit=True)
    current = server.service.searcher.snapshot
    assert len(kept) == kept_generations.MAX_KEPT
    with pytest.raises(citadel.ServerError, match="start the listing again"):
        kept.open(cursors[0], current)
    old, number = kept.open(cursors[-1], current)
    assert (len(old), number) == (19, 5) and len(snapshot) == 24
    now[0] = kept_generations.KEEP_SECONDS + 1
    kept.prune()
    assert len(kept) == 0


def test_delete_by_filter(server: Running) -> None:
    answer = call(server, "delete", filter={"year": 1904}, commit=True)
    assert answer["deleted"] == 5 and answer["waiting"] == 0
    assert call(server, "count")["count"] == 19 and call(server, "count", filter={"year": 1904})["count"] == 0
    answer = call(server, "delete", filter={"year": 1903})
    assert answer["deleted"] == answer["waiting"] == 4
    assert call(server, "commit", changes=answer["changes"])["documents"] == 15


def test_delete_takes_ids_or_a_filter_with_a_condition(server: Running) -> None:
    assert refused(server, "delete") == (422, "fields")
    assert refused(server, "delete", ids=["d01"], filter={"year": 1904}) == (422, "fields")
    filter: dict[str, Any]
    for filter in ({}, {"$and": [{}]}, {"year": {"$gt": "2024-05-17"}}):
        assert refused(server, "delete", filter=filter) == (422, "filter")
    assert call(server, "delete", filter={"none": 1})["deleted"] == 0
    assert server.service.waiting == 0 and len(server.client) == 24


def test_metadata_by_ids_and_by_filter(server: Running) -> None:
    before = server.service.generation
    answer = call(server, "metadata", ids=["d01", "unknown"], values={"year": 2000, "lang": "en"})
    assert answer == {"updated": 1, "generation": before + 1}
    document = server.client.get("d01")
    assert document is not None and document.metadata == {"year": 2000, "lang": "en"}
    assert call(server, "metadata", filter={"lang": "en"}, values={"lang": None})["updated"] == 1
    assert call(server, "metadata", filter={"lang": "en"}, values={"lang": None})["updated"] == 0
    assert call(server, "search", query="theory", filter={"year": 2000})["matching"] == 1


def test_metadata_is_refused_while_changes_wait(server: Running) -> None:
    token = call(server, "delete", ids=["d01"])["changes"]
    assert refused(server, "metadata", ids=["d02"], values={"year": 1}) == (409, "changes_waiting")
    call(server, "commit", changes=token)
    assert call(server, "metadata", ids=["d02"], values={"year": 1})["updated"] == 1
    assert call(server, "delete", ids=["d05"], commit=True)["deleted"] == 1  # the writer is free again


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({"values": {"year": 1}}, 422, "fields"),
        ({"ids": ["d01"], "filter": {"year": 1}, "values": {"year": 1}}, 422, "fields"),
        ({"ids": ["d01"]}, 422, "fields"),
        ({"ids": ["d01"], "values": {}}, 422, "fields"),
        ({"ids": ["d01"], "values": {"text": "new"}}, 400, "usage"),
        ({"filter": {}, "values": {"year": 1}}, 422, "filter"),
        ({"filter": {"year": {"$near": 1}}, "values": {"year": 1}}, 422, "filter"),
        ({"ids": ["d01"], "values": {"deep": [[[[0]]]], "\ud800": 1}}, 400, "json"),
        ({"ids": [f"d{n}" for n in range(1001)], "values": {"year": 1}}, 422, "limit"),
    ],
)
def test_wrong_metadata_request_changes_nothing(
    server: Running, body: dict[str, Any], status: int, code: str
) -> None:
    before = server.service.generation
    assert refused(server, "metadata", **body) == (status, code)
    assert server.service.generation == before


def test_routes_need_their_tokens(tmp_path: Path) -> None:
    with running(text_index(tmp_path / "i"), read_token="a token for reading only") as server:
        reader = citadel.Client(server.client.url, token="a token for reading only")
        nobody = citadel.Client(server.client.url)
        for route, body in (("count", {}), ("facets", {"fields": ["year"]}), ("list", {})):
            assert reader.call("POST", f"/v1/{route}", body)
            with pytest.raises(citadel.ServerError, match="read token"):
                nobody.call("POST", f"/v1/{route}", body)
        with pytest.raises(citadel.ServerError, match="write token"):
            reader.call("POST", "/v1/metadata", {"ids": ["d1"], "values": {"year": 1}})


def test_changes_by_filter_on_a_read_only_server(tmp_path: Path) -> None:
    with running(text_index(tmp_path / "i"), write_token=None) as server:
        assert refused(server, "metadata", ids=["d1"], values={"a": 1}) == (403, "read_only")
        assert refused(server, "delete", filter={"year": 1905}) == (403, "read_only")
