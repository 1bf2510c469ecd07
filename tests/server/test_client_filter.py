"""`citadel.Client` with filters, paging, facets and listings gives what `Index` gives."""

from __future__ import annotations

import datetime
import uuid
from collections.abc import Iterator
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import citadel
from citadel.filter.parse import parse_filter
from citadel.server.client_filter import filter_json
from citadel.server.config import Limits
from tests.support.serving import Running, running, text_index

KEY = uuid.UUID(int=7)
DOCUMENTS: list[dict[str, Any]] = [
    {
        "id": f"d{n:02}",
        "text": f"theory {'of ' * n} physics",
        "year": 1900 + n % 5,
        "day": f"2024-05-{n + 1:02}",
        "key": str(KEY) if n == 4 else "x",
    }
    for n in range(25)
]
FILTER = {"year": {"$gte": 1902}}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    index = text_index(tmp_path_factory.mktemp("client") / "i", DOCUMENTS)
    with running(index, limits=Limits(listed=10)) as serving:
        yield serving


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Running]:
    """A server whose index a test may change."""
    with running(text_index(tmp_path / "i", DOCUMENTS)) as serving:
        yield serving


def test_search_equals_the_library(server: Running) -> None:
    options: dict[str, Any] = {"filter": FILTER, "offset": 3, "min_score": 0.01}
    truth = server.service.searcher.search("physics theory", 5, **options)
    for documents in (True, False):
        hits = server.client.search("physics theory", 5, documents=documents, **options)
        assert (hits.ids, hits.scores, [hit.rank for hit in hits]) == (
            truth.ids,
            truth.scores,
            [4, 5, 6, 7, 8],
        )
        assert [hit.document for hit in hits] == [hit.document for hit in truth]
        assert hits.matching == 15 and hits.facets == {} and hits.unknown_fields == []


def test_facets_of_a_search(server: Running) -> None:
    hits = server.client.search("physics", filter=FILTER, facets=["year"])
    assert hits.facets == {"year": server.service.index.facets("year", FILTER)}


def test_batch_equals_the_library(server: Running) -> None:
    queries = {"a": "physics", "b": "theory"}
    options: dict[str, Any] = {"filter": FILTER, "offset": 2, "min_score": 0.01}
    truth, ranking = server.service.searcher, server.client.search_batch(queries, **options)
    assert ranking.trec() == truth.search_batch(queries, **options).trec()
    assert [len(hits) for _, hits in ranking] == [10, 10]  # k is 10 by default
    assert next(iter(ranking))[1][0].document == truth.search("physics", 3, filter=FILTER)[2].document


def test_count_facets_fields_and_listing(server: Running) -> None:
    index, client = server.service.index, server.client
    assert (client.count(), client.count(FILTER)) == (25, index.count(FILTER))
    assert client.facets("year", FILTER, 2) == index.facets("year", FILTER, 2)
    assert client.fields() == index.fields()
    for filter in (None, FILTER, {"year": 7}):
        assert list(client.ids(filter)) == list(index.ids(filter))
        assert list(client.documents(filter)) == list(client.documents(filter, batch=3))
        assert list(client.documents(filter)) == list(index.documents(filter))


def test_long_documents_are_listed_whole(tmp_path: Path) -> None:
    documents = [{"id": "d1", "text": "w" * 300}, {"id": "d2", "text": "short"}]
    with running(text_index(tmp_path / "i", documents), limits=Limits(hit_characters=100)) as serving:
        assert [len(document.text) for document in serving.client.documents()] == [300, 5]


@pytest.mark.parametrize(
    "filter",
    [
        {"day": {"$gte": datetime.date(2024, 5, 20)}},
        {"day": {"$lt": datetime.datetime(2024, 5, 20, 12, tzinfo=datetime.UTC)}},
        {"day": {"$lt": np.datetime64("2024-05-20")}},
        {"key": KEY},
        {"year": {"$in": np.array([1901, 1902])}},
        {"$or": ({"year": np.int64(1901)}, {"year": np.float64(1902)})},
    ],
)
def test_python_values_in_filters(server: Running, filter: dict[str, Any]) -> None:
    assert server.client.count(filter) == server.service.index.count(filter) > 0


@pytest.mark.parametrize(
    "filter", [{"year": {"$near": 1}}, {"year": float("nan")}, {"$or": []}, {"a": object()}]
)
def test_invalid_filter_is_the_error_of_the_library(server: Running, filter: dict[str, Any]) -> None:
    for call in (
        lambda: server.client.search("x", filter=filter),
        lambda: server.client.count(filter),
        lambda: server.client.ids(filter),
        lambda: server.client.documents(filter),
        lambda: server.client.delete(filter=filter),
    ):
        with pytest.raises(citadel.FilterError) as caught:
            call()
        with pytest.raises(citadel.FilterError) as expected:
            server.service.index.count(filter)
        assert str(caught.value) == str(expected.value)


def test_filter_error_of_the_server_has_its_type_and_message(server: Running) -> None:
    filter = {"year": {"$gt": "2024-05-17"}}
    with pytest.raises(citadel.FilterError) as caught:
        server.client.count(filter)
    with pytest.raises(citadel.FilterError) as expected:
        server.service.index.count(filter)
    assert str(caught.value) == str(expected.value)


def test_parsed_filter_is_refused() -> None:
    with pytest.raises(citadel.UsageError, match="as a mapping"):
        filter_json(parse_filter({"year": 1}))


def test_delete_and_update_by_filter(own: Running) -> None:
    client, index = own.client, own.service.index
    assert client.delete(filter={"year": 1904}) == 5
    with pytest.raises(citadel.ServerError) as caught:
        client.update_metadata("d01", {"year": 2000})
    assert caught.value.code == "changes_waiting"
    client.commit()
    assert client.update_metadata("d01", {"year": 2000}) == 1
    assert client.update_metadata(["d02", "d03", "none"], {"lang": "en"}) == 2
    assert client.update_metadata({"lang": "en"}, {"lang": None, "year": 2001}) == 2
    assert client.count({"year": {"$gte": 2000}}) == 3 and len(client) == 20
    with pytest.raises(citadel.UsageError, match="either ids or a filter"):
        client.delete()
    with pytest.raises(citadel.UsageError, match="cannot change the text"):
        client.update_metadata("d01", {"text": "x"})
    with pytest.raises(citadel.InputError, match="cannot be written as JSON"):
        client.update_metadata("d01", {"year": float("nan")})
    assert index.count({"year": 2001}) == 2


def test_client_can_be_pickled(own: Running) -> None:
    copy = ForkingPickler.loads(ForkingPickler.dumps(own.client))
    assert copy.url == own.client.url and copy.delete(["d01"]) == 1  # it has the token
    with pytest.raises(citadel.UsageError, match="uncommitted changes"):
        ForkingPickler.dumps(copy)
    copy.commit()
    ForkingPickler.dumps(copy)
    copy.close()
