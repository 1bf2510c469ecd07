"""Filters, paging and facets of a search over HTTP, and the list of fields."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import citadel
from citadel import _native
from citadel.filter.column import Column
from citadel.index.listing import count_fields
from citadel.index.segment_columns import SegmentColumns
from citadel.server.config import Limits
from tests.support.serving import Running, running, text_index

DOCUMENTS: list[dict[str, Any]] = [
    {
        "id": f"d{n}",
        "text": f"physics {'theory ' * (n % 5 + 1)}",
        "year": 1900 + n % 4,
        "lang": "en" if n % 3 else "de",
        "tags": ["old", "new"][: n % 3],
        "is_open": n % 2 == 0,
        "day": f"2024-05-{n + 1:02}",
        "author": {"name": "x"},
        "code": n if n % 2 else str(n),
    }
    for n in range(20)
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """Two segments, one document deleted."""
    index = text_index(tmp_path_factory.mktemp("filter") / "i", DOCUMENTS[:12])
    index.add(DOCUMENTS[12:])
    index.delete(["d3"])
    with running(index.commit()) as serving:
        yield serving


def search(server: Running, **fields: Any) -> dict[str, Any]:
    return server.client.call("POST", "/v1/search", {"query": "theory"} | fields)


def refused(server: Running, path: str, body: object) -> tuple[int, str, str]:
    status, answer = server.post(path, body)
    return status, answer["error"]["code"], answer["error"]["message"]


def test_unknown_fields_are_named(server: Running) -> None:
    filter = {"yaer": {"$gte": 1902}, "$or": [{"lang": "de"}, {"langs": "en"}], "gone": {"$exists": False}}
    answer = search(server, filter=filter, facets=["year", "topic"], group_by="lang")
    assert answer["unknown_fields"] == ["topic", "yaer", "langs"] and answer["hits"] == []
    assert "unknown_fields" not in search(server, filter={"lang": "de"}, facets=["year"])
    _, batch = server.post("/v1/search/batch", {"queries": [{"query": "theory"}], "filter": {"x": 1}})
    assert batch["unknown_fields"] == ["x"]


def test_filter_equals_the_library(server: Running) -> None:
    filter = {"year": {"$gte": 1902}, "$or": [{"lang": "de"}, {"tags": {"$contains": "new"}}]}
    answer = search(server, filter=filter, k=5)
    truth = server.service.searcher.search("theory", 5, filter=filter)
    assert [hit["id"] for hit in answer["hits"]] == truth.ids and len(truth) == 5
    assert answer["matching"] == server.service.index.count(filter)
    assert search(server)["matching"] == 19 == search(server, filter={})["matching"]


def test_offset_and_min_score_select_a_page(server: Running) -> None:
    whole = search(server, k=19)["hits"]
    for documents in (True, False):
        page = search(server, offset=7, k=5, documents=documents)["hits"]
        assert [(hit["rank"], hit["id"]) for hit in page] == [(h["rank"], h["id"]) for h in whole[7:12]]
    best = whole[0]["score"]
    assert all(hit["score"] >= best for hit in search(server, min_score=best)["hits"])
    assert search(server, min_score=best + 1)["hits"] == [] == search(server, min_score=1.7e308)["hits"]
    assert len(search(server, min_score=-1.7e308, k=19)["hits"]) == 19


def test_offset_beyond_the_index_has_no_hits(server: Running) -> None:
    assert search(server, offset=9990)["hits"] == [] == search(server, offset=19)["hits"]
    assert len(search(server, offset=17)["hits"]) == 2


def test_offset_and_k_have_a_limit(server: Running) -> None:
    status, code, message = refused(server, "/v1/search", {"query": "theory", "offset": 9991})
    assert (status, code) == (422, "limit") and message.startswith("10,001 hits (offset + k)")
    assert refused(server, "/v1/search", {"query": "theory", "offset": 10**30})[:2] == (422, "limit")


@pytest.mark.parametrize("wrong", [{"offset": -1}, {"offset": 1.5}, {"offset": True}, {"min_score": "1"}])
def test_wrong_page_is_refused(server: Running, wrong: dict[str, Any]) -> None:
    assert refused(server, "/v1/search", {"query": "theory"} | wrong)[:2] == (422, "fields")


def test_batch_takes_the_same_options(server: Running) -> None:
    body = {"queries": [{"query": "theory"}, {"query": "physics"}], "k": 3, "offset": 1}
    body |= {"filter": {"lang": "de"}, "min_score": 0.001}
    answer = server.client.call("POST", "/v1/search/batch", body)
    options: dict[str, Any] = {"filter": {"lang": "de"}, "offset": 1, "min_score": 0.001}
    for result in answer["results"]:
        truth = server.service.searcher.search(result["query"], 3, **options)
        assert [hit["id"] for hit in result["hits"]] == truth.ids
        assert [hit["rank"] for hit in result["hits"]] == [2, 3, 4]
    assert answer["matching"] == server.service.index.count({"lang": "de"})


def test_facets_count_over_the_filter_and_not_the_query(server: Running) -> None:
    filter = {"year": {"$gte": 1902}}
    answer = search(server, query="nothing", filter=filter, facets=["lang", "year", "is_open", "tags", "no"])
    assert answer["hits"] == []
    for name, rows in answer["facets"].items():
        assert [(row["value"], row["count"]) for row in rows] == server.service.index.facets(name, filter)
    assert answer["facets"]["no"] == [] and {"value": True, "count": 5} in answer["facets"]["is_open"]
    assert "facets" not in search(server)


def test_facets_have_limits(server: Running, tmp_path: Path) -> None:
    body = {"query": "theory", "facets": [f"f{n}" for n in range(17)]}
    assert refused(server, "/v1/search", body)[:2] == (422, "fields")
    assert refused(server, "/v1/search", {"query": "theory", "facets": ["f" * 1001]})[:2] == (422, "fields")
    status, code, message = refused(server, "/v1/search", {"query": "theory", "facets": ["code"]})
    assert (status, code) == (422, "filter") and '"code" holds int and string' in message
    many = [{"id": f"d{n}", "text": "theory", "n": n} for n in range(150)]
    with running(text_index(tmp_path / "i", many)) as serving:
        assert len(search(serving, facets=["n"])["facets"]["n"]) == 100


@pytest.mark.parametrize(
    ("filter", "names"),
    [
        ({"year": {"$near": 1900}}, '"$near" for field "year"'),
        ({"$nor": []}, '"$nor"'),
        ({"lang": {"$gt": "en"}}, 'field "lang"'),
        ({"year": {"$gt": "2024-05-17"}}, 'field "year"'),
        ({"code": 1}, 'field "code"'),
        ({"author": "x"}, 'field "author"'),
        ({"lang": {"$in": "en"}}, "takes a list"),
        ({"$or": [{"n": n} for n in range(10_000)]}, "more than 1,000 clauses"),
        ({"lang": "x" * (1 << 20)}, "is longer than 64,000 bytes"),
        ({"x" * 1001: 1}, "longer than 1,000 characters"),
    ],
)
def test_invalid_filter_is_422_and_names_the_cause(server: Running, filter: Any, names: str) -> None:
    for path, body in (("/v1/search", {"query": "q"}), ("/v1/search/batch", {"queries": [{"query": "q"}]})):
        status, code, message = refused(server, path, body | {"filter": filter})
        assert (status, code) == (422, "filter") and names in message and len(message) < 400


def test_deep_filter_is_refused(server: Running) -> None:
    for levels, status in ((31, 200), (32, 422), (90, 422), (200, 400), (5000, 400)):
        filter = '{"$not":' * levels + '{"year":1900}' + "}" * levels
        body = f'{{"query": "theory", "filter": {filter}}}'.encode()
        answer = server.post("/v1/search", body)
        assert answer[0] == status, answer
        assert status == 200 or "nested" in answer[1]["error"]["message"]


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_filter_with_a_number_that_is_not_finite_is_refused(server: Running, number: str) -> None:
    body = f'{{"query": "theory", "filter": {{"year": {{"$gt": {number}}}}}}}'.encode()
    status, answer = server.post("/v1/search", body)
    assert 400 <= status < 500 and answer["error"]["code"] in ("json", "fields", "filter")


def test_filter_with_a_key_twice_is_refused(server: Running) -> None:
    body = b'{"query": "theory", "filter": {"year": 1900, "year": 1901}}'
    assert refused(server, "/v1/search", body)[:2] == (422, "fields")


@pytest.mark.parametrize("name", ["a.b", "a\0b", "", "ü", "a b"])
def test_any_field_name_can_be_filtered(tmp_path: Path, name: str) -> None:
    documents: list[dict[str, Any]] = [
        {"id": "d1", "text": "theory", name: 1},
        {"id": "d2", "text": "theory", "a": {"b": 1}},
    ]
    with running(text_index(tmp_path / "i", documents)) as serving:
        answer = search(serving, filter={name: 1}, facets=[name])
        assert [hit["id"] for hit in answer["hits"]] == ["d1"] and answer["matching"] == 1
        assert answer["facets"][name] == [{"value": 1, "count": 1}]


@pytest.mark.parametrize("filter", [[], "lang", 7, True])
def test_filter_is_an_object(server: Running, filter: Any) -> None:
    assert refused(server, "/v1/search", {"query": "theory", "filter": filter})[:2] == (422, "fields")


def test_fields_lists_names_and_kinds(server: Running) -> None:
    answer = server.client.call("GET", "/v1/fields")
    assert {row["name"]: row["kind"] for row in answer["fields"]} == server.service.index.fields()
    assert server.service.index.fields() == {
        "year": "number",
        "lang": "string",
        "tags": "list",
        "is_open": "boolean",
        "day": "date",
        "author": "nested",
        "code": "mixed",
    }
    assert answer["generation"] == server.service.generation


def test_fields_needs_the_read_token(tmp_path: Path) -> None:
    secret = "another token for reading"
    with running(text_index(tmp_path / "i"), read_token=secret) as serving:
        without = citadel.Client(serving.client.url)
        with pytest.raises(citadel.ServerError) as caught:
            without.call("GET", "/v1/fields")
        assert caught.value.status == 401
        assert citadel.Client(serving.client.url, token=secret).call("GET", "/v1/fields")["fields"]


def test_filter_evaluation_stops_when_cancelled(server: Running) -> None:
    snapshot, cancel = server.service.searcher.snapshot, _native.Cancel()
    cancel.set()
    for work in (
        lambda: server.service.searcher.count({"year": 1904}, cancel=cancel),
        lambda: count_fields(snapshot, ["year"], None, 10, cancel),
        lambda: server.service.searcher.search("theory", filter={"year": 1905}, cancel=cancel),
    ):
        with pytest.raises(citadel.Cancelled):
            work()


def test_slow_filter_is_504_and_does_not_block_the_server(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    proceed, looked_up = threading.Event(), list[str]()
    column = SegmentColumns.column

    def slow_column(columns: SegmentColumns, name: str) -> Column | None:
        looked_up.append(name)
        proceed.wait(30)
        return column(columns, name)

    monkeypatch.setattr(SegmentColumns, "column", slow_column)
    filter = {"$or": [{"year": 1900}, {"lang": "en"}]}
    status, code, _ = refused(server, "/v1/search", {"query": "theory", "filter": filter, "deadline_ms": 100})
    assert (status, code) == (504, "deadline")
    assert server.client.call("GET", "/health/live") == {"status": "live"}
    assert not proceed.is_set() and looked_up == ["year"]
    proceed.set()
    assert search(server)["matching"] == 19  # the worker is free again
    assert looked_up == ["year"]  # and did not evaluate the rest


def test_filter_is_in_the_openapi_document(server: Running) -> None:
    schemas = server.client.call("GET", "/openapi.json")["components"]["schemas"]
    for model in ("SearchRequest", "BatchRequest"):
        described = json.dumps(schemas[model]["properties"]["filter"])
        assert '"type": "object"' in described and '"$gte"' in described and '"$or"' in described
        assert schemas[model]["properties"]["offset"]["maximum"] == Limits().depth
