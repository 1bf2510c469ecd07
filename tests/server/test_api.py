"""Routes of the API on a real socket."""

from __future__ import annotations

import datetime
import json
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import citadel
from citadel.server.config import Limits
from citadel.server.errors import as_server_error
from citadel.server.pool import Pool
from tests.support.serving import DOCUMENTS, TOKEN, Running, running, text_index


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Running]:
    with running(text_index(tmp_path / "i")) as serving:
        yield serving


def test_search_equals_the_library(server: Running) -> None:
    hits = server.client.search("who proposed relativity", k=2)
    truth = server.service.searcher.search("who proposed relativity", k=2)
    assert (hits.ids, hits.scores, hits.tau) == (truth.ids, truth.scores, truth.tau)
    assert [hit.document for hit in hits] == [hit.document for hit in truth]
    assert hits[0].title == "Relativity" and hits[0].metadata == {"year": 1905} and hits[0].rank == 1


def test_search_reports_timings(server: Running) -> None:
    answer = server.client.call("POST", "/v1/search", {"query": "physics", "k": 1, "documents": False})
    assert (
        answer["hits"] == [{"rank": 1, "id": "d1", "score": answer["hits"][0]["score"]}]
        or answer["hits"][0]["id"] == "d3"
    )
    assert answer["generation"] == 2 and answer["dot_products"] == 2
    timings = answer["timings"]
    parts = ("queue_ms", "encode_ms", "scan_ms", "documents_ms", "explain_ms")
    assert set(timings) == {*parts, "total_ms"}
    assert 0 < sum(timings[part] for part in parts) <= timings["total_ms"] + 0.01


def test_batch_keeps_order_and_ids(server: Running) -> None:
    ranking = server.client.search_batch({"q2": "evolution", "q1": "gravity"}, k=1)
    assert ranking.trec("x").split()[::6] == ["q2", "q1"]
    assert [hits[0].id for _, hits in ranking] == ["d2", "d3"]
    assert [id for id, _ in server.client.search_batch(["evolution", "nothing at all"], k=1)] == ["1", "2"]


def test_large_batch_is_sent_in_parts(tmp_path: Path) -> None:
    with running(text_index(tmp_path / "i"), limits=Limits(batch=3, hits=20, k=10)) as server:
        queries = {f"q{n}": text for n, text in enumerate(["physics", "evolution", "zebra", "gravity"] * 2)}
        truth = server.service.searcher.search_batch(queries, k=10)
        ranking = server.client.search_batch(queries, k=10)
        assert ranking.trec() == truth.trec() and len(ranking) == 8
        assert ranking.hits[0][0].document == truth.hits[0][0].document  # fetched on access
        assert len(server.client.search_batch([], k=10)) == 0


def test_reading_a_hit_that_was_deleted_since(server: Running) -> None:
    hits = server.client.search("evolution", documents=False)
    server.client.delete(["d2"], commit=True)
    with pytest.raises(citadel.InputError, match="deleted since"):
        _ = hits[0].text


def test_no_hits_is_not_an_error(server: Running) -> None:
    assert list(server.client.search("zebra")) == []
    assert server.client.search("physics", k=0).ids == []


def test_get_returns_the_document(server: Running) -> None:
    assert server.client.get("d1") == server.service.searcher.snapshot.get("d1")
    assert server.client.get("d 4/&") is None


def test_changes_are_visible_after_commit(server: Running) -> None:
    client = server.client
    assert client.add([{"id": "d4", "text": "Curie proposed radioactivity."}]) == 1
    assert client.get("d4") is None and client.search("radioactivity").ids == []
    assert client.stats()["server"]["waiting"] == 1
    before = server.service.generation
    assert client.commit() == before + 1
    assert client.search("radioactivity").ids == ["d4"] and len(client) == 4
    assert client.delete(["d4", "unknown"], commit=True) == 1
    assert client.get("d4") is None and len(client) == 3


def test_add_is_all_or_nothing(server: Running) -> None:
    with pytest.raises(citadel.InputError, match=r"documents\.1: .*none was added"):
        server.client.add([{"id": "d5", "text": "fine"}, {"id": "d6", "text": 7}], commit=True)
    assert server.client.get("d5") is None
    assert server.client.stats()["server"]["waiting"] == 0


def test_existing_id_is_replaced(server: Running) -> None:
    server.client.add([{"id": "d2", "text": "Mendel proposed inheritance."}], commit=True)
    assert server.client.search("evolution").ids == [] and server.client.search("inheritance").ids == ["d2"]


def test_documents_without_ids_get_one(server: Running) -> None:
    documents = [{"text": "Curie isolated radium."}, {"id": "d8", "text": "Bohr proposed shells."}]
    answer = server.client.call("POST", "/v1/documents?commit=true", {"documents": documents})
    assert answer["added"] == 2 and len(answer["generated_ids"]) == 1
    assert server.client.search("radium").ids == answer["generated_ids"]


def test_client_generates_ids_and_sends_other_types(server: Running) -> None:
    owner, day = uuid.UUID(int=7), datetime.date(1898, 12, 26)
    documents = [{"text": "Curie isolated radium.", "day": day}, {"id": owner, "text": "x", "n": np.int64(3)}]
    sent = server.client.add(documents, commit=True)
    assert sent == 2 and len(sent.generated_ids) == 1 and (sent.cut, sent.limit) == (0, None)
    [hit] = server.client.search("radium")
    assert hit.to_dict()["metadata"] == {"day": "1898-12-26"} and [hit.id] == sent.generated_ids
    assert json.loads(json.dumps(server.client.search("radium").to_dicts())) == [hit.to_dict()]
    document = server.client.get(owner)
    assert document is not None and document.metadata == {"n": 3}
    assert server.client.delete(owner, commit=True) == 1 and server.client.get(owner) is None
    assert server.client.get("\ud800") is None


@pytest.mark.parametrize("value", [{1}, float("nan"), b"x", {(1, 2): 3}], ids=repr)
def test_client_refuses_what_json_does_not_have(value: object, server: Running) -> None:
    with pytest.raises(citadel.InputError, match="cannot be written as JSON"):
        server.client.add([{"id": "d9", "text": "x", "m": value}])


def test_stats(server: Running) -> None:
    stats = server.client.stats()
    assert stats["index"]["documents"] == 3 and stats["index"]["postings"] == 11
    assert stats["list_sizes"] == [
        {"from": 1, "to": 1, "lists": 6, "postings": 6},
        {"from": 2, "to": 3, "lists": 2, "postings": 5},
    ]
    assert stats["largest_keys"][0] == {"key": None, "word": "propos", "postings": 3}
    assert stats["memory"]["resident_bytes"] > stats["memory"]["index_bytes"] > 0


def test_health_and_metrics(server: Running) -> None:
    client = server.client
    assert client.call("GET", "/health/live") == {"status": "live"}
    assert client.call("GET", "/health/ready") == {"status": "ready", "generation": 2}
    client.search("physics")
    metrics = server.raw(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").decode()
    assert 'citadel_requests_total{method="POST",route="/v1/search",status="200"} 1.0' in metrics
    assert "citadel_index_documents 3.0" in metrics
    assert 'citadel_search_seconds_count{stage="scan"} 1.0' in metrics


@pytest.mark.parametrize(
    ("body", "status", "code", "words"),
    [
        (b"{", 400, "json", "not JSON"),
        (b'{"query": "\\ud800"}', 400, "json", "not JSON"),
        (b"[" * 500, 400, "json", "nested too deeply"),
        ({"query": "x", "k": "3"}, 422, "fields", "k: input should be a valid integer"),
        ({"query": "x", "kk": 3}, 422, "fields", "kk: extra inputs are not permitted"),
        ({"query": "x", "k": -1}, 422, "fields", "k: input should be greater"),
        ({"k": 3}, 422, "fields", "give either query or vectors"),
        ({"query": "x", "k": 1001}, 422, "limit", "1,001 hits: this server allows 1,000"),
        ({"query": "x" * 4097}, 422, "limit", "4,097 characters"),
        ({"query": "x", "tau": 1.0}, 400, "usage", "this index's router is bm25"),
        ({"query": "x", "semantic_mode": "some"}, 422, "fields", "semantic_mode"),
        ({"query": "x", "effort": 1.1}, 422, "fields", "effort"),
        ({"query": "x", "effort": 1, "ef": 10}, 400, "usage", "give one of them"),
        ({"vectors": {"keys": [1]}}, 400, "usage", "search it with a text query"),
    ],
)
def test_invalid_requests_get_a_message(
    server: Running, body: object, status: int, code: str, words: str
) -> None:
    actual, answer = server.post("/v1/search", body)
    assert (actual, answer["error"]["code"]) == (status, code)
    assert words in answer["error"]["message"] and "\n" not in answer["error"]["message"]


def test_unknown_routes_and_methods(server: Running) -> None:
    assert server.post("/v1/nothing", {})[0] == 404
    status, answer = server.post("/v1/stats", {})
    assert (status, answer["error"]["code"]) == (405, "method")


def test_client_raises_the_errors_of_the_library(server: Running) -> None:
    with pytest.raises(citadel.UsageError, match="this index's router is bm25"):
        server.client.search("x", tau=0.5)
    with pytest.raises(citadel.InputError, match="valid integer"):
        server.client.search("x", k="3")  # type: ignore[arg-type]
    with pytest.raises(citadel.ServerError) as error:
        server.client.search("x", k=5000)
    assert (error.value.status, error.value.code) == (422, "limit")


def test_client_without_a_server() -> None:
    with pytest.raises(citadel.ResourceError, match="is the server running"):
        citadel.Client("http://127.0.0.1:9").search("x")
    with pytest.raises(citadel.UsageError, match="not the address"):
        citadel.Client("idx")


def test_given_vectors_over_http(tmp_path: Path) -> None:
    fields = {"lexical": citadel.Field(dimension=4, codec="fp16"), "semantic": citadel.Field(2, "fp16")}
    index = citadel.Index.create(tmp_path / "v", fields=fields, fingerprint="x")
    rows = {"keys": [7, 9], "weights": [1.0, 0.5], "vectors": [[1, 0, 0, 0], [0, 1, 0, 0]]}
    index.add_vectors([{"id": "v1", **rows, "semantic": [1, 0]}, {"id": "v2", **rows, "semantic": [0, 1]}])
    with running(index.commit()) as server:
        hits = server.client.search_vectors([7], [1.0], [[1, 0, 0, 0]], [0, 1])
        truth = server.service.searcher.search_vectors([7], [1.0], [[1, 0, 0, 0]], [0, 1])
        assert (hits.ids, hits.scores) == (truth.ids, truth.scores) == (["v2", "v1"], [2.0, 1.0])
        given = server.client.search_vectors([7], [1.0], [[1, 0, 0, 0]], [0, 1], effort=0.8)
        assert given.ids == truth.ids
        ranking = server.client.search_vectors_batch(
            {"q": {"keys": [9], "weights": [1.0], "vectors": [[0, 1, 0, 0]]}}
        )
        assert [(hit.id, hit.score) for _, hits in ranking for hit in hits] == [("v1", 0.5), ("v2", 0.5)]
        with pytest.raises(citadel.UsageError, match="was built from vectors"):
            server.client.search("text")
        assert server.client.stats()["largest_keys"][0] == {"key": 7, "word": None, "postings": 2}
        assert TOKEN not in str(server.client.stats())


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"keys": [7], "weights": [1], "vectors": [[1, 0, 0, 0], [1]]}, "cannot be read as numbers"),
        (
            {"keys": [7, 9], "weights": [1, 1], "vectors": [[1, 0, 0, 0], [1, 0, 0]]},
            "cannot be read as numbers",
        ),
        ({"keys": [7], "weights": [1], "vectors": [[1e300, 0, 0, 0]]}, "infinite"),
        ({"keys": [7], "weights": [1e300], "vectors": [[1, 0, 0, 0]]}, "infinite"),
        ({"keys": [7], "weights": [2], "vectors": [[3e38, 0, 0, 0]]}, "infinity"),
        ({"keys": [7], "weights": [1], "vectors": [[3e38, 0, 0, 0]]}, "score is infinite"),
        ({"semantic": [1e300, 0]}, "infinite"),
        ({"semantic": [3e38, 0]}, "score is infinite"),
    ],
)
def test_invalid_vectors_get_a_message(tmp_path: Path, given: dict[str, Any], words: str) -> None:
    """Warnings of numpy are errors in tests."""
    fields = {"lexical": citadel.Field(dimension=4, codec="fp16"), "semantic": citadel.Field(2, "fp16")}
    index = citadel.Index.create(tmp_path / "v", fields=fields, fingerprint="x")
    index.add_vectors(
        [{"id": "v1", "keys": [7], "weights": [1.0], "vectors": [[9, 0, 0, 0]], "semantic": [9, 0]}]
    )
    with running(index.commit()) as server:
        for body in ({"vectors": given}, {"queries": [{"vectors": given}]}):
            status, answer = server.post("/v1/search/batch" if "queries" in body else "/v1/search", body)
            assert (status, answer["error"]["code"]) == (422, "fields"), answer
            assert words in answer["error"]["message"]


def test_duplicate_json_key_is_named(server: Running) -> None:
    _, answer = server.post("/v1/search", b'{"query": "x", "query": "y"}')
    assert "'query' occurs twice" in answer["error"]["message"]
    assert server.post("/v1/search", {"query": 'a "colon": here', "k": 1})[0] == 200


@pytest.mark.parametrize(
    ("location", "message", "expected"),
    [
        ("t", "t: the latest state is intact", "the index: the latest state is intact"),
        ("t", "the latest state is not there", "the latest state is not there"),
        ("index", "cannot open the index: index is damaged", "cannot open the index: index is damaged"),
        ("/srv/t", "/srv/t: no space on /srv/tmp", "the index: no space on /srv/tmp"),
        ("/srv/t", "no space for '/srv/t/seg-1.cit'", "no space for 'the index/seg-1.cit'"),
        ("", "no index", "no index"),
    ],
)
def test_messages_do_not_name_the_index_folder(location: str, message: str, expected: str) -> None:
    assert str(as_server_error(citadel.ResourceError(message), location)) == expected


# ---- explanations, and an index with a model ---------------------------------------------------------------


def test_explanation_equals_the_library(server: Running) -> None:
    query, searcher = "who proposed relativity", server.service.searcher
    assert server.client.explain(query, "d1") == as_json(searcher.explain(query, "d1").to_json())
    assert server.client.explain_text("Einstein proposed") == as_json(
        searcher.explain_text("Einstein proposed").to_json()
    )
    answer = server.client.call("POST", "/v1/search", {"query": query, "k": 2, "explain": True})
    for hit in answer["hits"]:
        assert hit["explanation"] == as_json(searcher.explain(query, hit["id"]).to_json())
        assert hit["explanation"]["score"] == hit["score"]


def test_invalid_explain_requests(server: Running) -> None:
    status, answer = server.post("/v1/explain", {"query": "x", "id": "no such"})
    assert (status, answer["error"]["code"]) == (404, "not_found")
    status, answer = server.post("/v1/search", {"vectors": {"keys": [1]}, "explain": True})
    assert (status, answer["error"]["code"]) == (422, "fields") and "only a text query" in answer["error"][
        "message"
    ]
    assert server.post("/v1/search", {"query": "x", "k": 21, "explain": True})[0] == 422


def test_concurrent_queries_with_a_model(tiny_model: Callable[..., Path], tmp_path: Path) -> None:
    with citadel.Index.create(tmp_path / "m", model=tiny_model()) as index:
        index.add(DOCUMENTS)
        index.commit()
    with running(citadel.Index.open(tmp_path / "m", model=tiny_model(), threads=1), workers=1) as server:
        truth = {
            query: server.service.searcher.search(query, k=3)
            for query in ("relativity", "physics", "evolution")
        }

        def search(number: int) -> None:
            query = list(truth)[number % 3]
            hits = server.client.search(query, k=3)
            assert (hits.ids, hits.scores) == (truth[query].ids, truth[query].scores)

        with ThreadPoolExecutor(6) as pool:
            list(pool.map(search, range(30)))
        stats = server.client.stats()
        assert stats["memory"]["model_bytes"] > 0 and str(tmp_path) not in str(stats)
        assert any(key["word"] for key in stats["largest_keys"])
        assert server.client.explain("relativity", "d1")["score"] is not None
        tokens = server.client.explain_text("relativity")["tokens"]
        assert tokens and all("keys" in token for token in tokens)
        server.client.add([{"id": "d4", "text": "radioactivity"}], commit=True)
        assert "d4" in server.client.search("radioactivity").ids


def as_json(value: Any) -> Any:
    """Convert tuples to lists, as JSON does."""
    return json.loads(json.dumps(value))


# ---- admission, empty queries, cut queries -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/search", {"query": "physics"}),
        ("/v1/search/batch", {"queries": [{"query": "physics"}]}),
        ("/v1/explain", {"query": "physics", "id": "d1"}),
        ("/v1/explain/text", {"text": "physics"}),
        ("/v1/stats", None),
        ("/v1/documents?id=d1", None),
    ],
)
def test_admission_is_checked_once_per_request(
    server: Running, monkeypatch: pytest.MonkeyPatch, path: str, body: object
) -> None:
    checks: list[str] = []

    def is_full(pool: Pool) -> bool:
        checks.append(path)
        return False

    monkeypatch.setattr(Pool, "is_full", property(is_full))
    server.client.call("GET" if body is None else "POST", path, body)
    assert checks == [path]


def test_full_queue_refuses_before_parsing_the_body(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Pool, "is_full", property(lambda pool: True))
    status, answer = server.post("/v1/search", b"not JSON")
    assert (status, answer["error"]["code"]) == (503, "busy")
    assert server.post("/v1/delete", {"ids": ["d9"]}, Authorization=f"Bearer {TOKEN}")[0] == 200


@pytest.mark.parametrize("query", ["", " \t\n"])
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/search", lambda query: {"query": query}),
        ("/v1/search/batch", lambda query: {"queries": [{"query": "physics"}, {"query": query}]}),
        ("/v1/explain", lambda query: {"query": query, "id": "d1"}),
    ],
)
def test_empty_query_is_refused(
    server: Running, path: str, body: Callable[[str], object], query: str
) -> None:
    status, answer = server.post(path, body(query))
    assert (status, answer["error"]["code"]) == (422, "fields")
    assert "query: the query is empty: send one word or more" in answer["error"]["message"]


def test_cut_query_is_reported(tiny_model: Callable[..., Path], tmp_path: Path) -> None:
    with citadel.Index.create(tmp_path / "m", model=tiny_model()) as index:
        index.add(DOCUMENTS)
        index.commit()
    with running(citadel.Index.open(tmp_path / "m", model=tiny_model(), threads=1), workers=1) as server:
        length = server.service.searcher.encoder.config.query_length - 2
        whole, cut = " ".join(["physics"] * length), " ".join(["physics"] * (length + 1))
        assert not server.client.search(whole).query_cut and server.client.search(cut).query_cut
        _, answer = server.post("/v1/search/batch", {"queries": [{"query": whole}, {"query": cut}]})
        assert [result["query_cut"] for result in answer["results"]] == [False, True]
        ranking = server.client.search_batch([whole, cut])
        assert [hits.query_cut for _, hits in ranking] == [False, True]  # type: ignore[attr-defined]


def test_bm25_query_is_never_cut(server: Running) -> None:
    assert server.post("/v1/search", {"query": "physics " * 100})[1]["query_cut"] is False


def test_example_queries_are_titles_or_first_words(server: Running) -> None:
    assert server.client.stats()["example_queries"] == [
        "Relativity",
        "Darwin proposed evolution.",
        "Newton proposed gravity in physics.",
    ]
    server.client.delete(["d1"], commit=True)
    assert "Relativity" not in server.client.stats()["example_queries"]
