"""Modes of a hybrid index over HTTP: the same answers as in Python, also while the index changes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import citadel
from citadel.encode.locate import default_model
from tests.index.quick import Quick
from tests.support.serving import Running, running, text_index

pytestmark = pytest.mark.skipif(default_model() is None, reason="the default model is not installed")

TEXTS = ["the lift and drag of a thin wing", "pressure on a delta wing", "heat transfer in a flat plate"]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("hybrid") / "i"
    index = citadel.Index.create(Quick(folder), model="default", hybrid=True)
    index.add({"id": f"d{number}", "text": text, "n": number} for number, text in enumerate(TEXTS))
    with running(index.commit(), workers=2) as serving:
        yield serving


@pytest.mark.parametrize("mode", ["model", "bm25", "hybrid"])
def test_answers_are_those_of_the_library(server: Running, mode: str) -> None:
    index = server.service.index
    for options in ({}, {"k": 1, "offset": 1}, {"filter": {"n": {"$gt": 0}}}):
        hits = server.client.search("thin wing", mode=mode, **options)
        assert hits.to_dicts() == index.search("thin wing", mode=mode, **options).to_dicts()
    ranking = server.client.search_batch({"a": "wing", "b": "heat"}, 2, mode=mode, documents=True)
    expected = index.searcher(mode=mode).search_batch({"a": "wing", "b": "heat"}, 2)
    assert ranking.to_dict() == expected.to_dict()


def test_fusion_weights_parts_and_explanations(server: Running) -> None:
    options: dict[str, Any] = {"mode": "hybrid", "fusion": "rrf", "weights": [1, 3]}
    searcher = server.service.index.searcher(mode="hybrid", fusion="rrf", weights=[1, 3])
    expected = searcher.search("delta wing", k=2)
    hits = server.client.search("delta wing", 2, **options)
    assert [hit.parts for hit in hits] == [hit.parts for hit in expected]
    explained = server.client.explain("delta wing", "d1", **options)
    assert explained == json.loads(json.dumps(searcher.explain("delta wing", "d1").to_json()))
    body = {"query": "delta wing", "k": 1, "explain": True, **options}
    answer = server.client.call("POST", "/v1/search", body)
    assert answer["hits"][0]["explanation"] == explained
    assert answer["tau"] == server.service.searcher.search("wing").tau


def test_requests_of_all_modes_share_a_batch_of_the_encoder(server: Running) -> None:
    modes = ["model", "bm25", "hybrid"] * 20
    with ThreadPoolExecutor(12) as pool:
        answers = list(pool.map(lambda mode: server.client.search("thin wing", mode=mode).to_dicts(), modes))
    expected = {mode: server.client.search("thin wing", mode=mode).to_dicts() for mode in modes}
    assert answers == [expected[mode] for mode in modes]


def test_a_commit_is_served_in_every_mode(tmp_path: Path) -> None:
    index = citadel.Index.create(Quick(tmp_path), model="default", hybrid=True)
    with running(index) as server:
        server.client.add([{"id": "new", "text": "a wing"}], commit=True)
        assert [server.client.search("wing", mode=mode).ids for mode in ("model", "bm25", "hybrid")] == [
            ["new"],
            ["new"],
            ["new"],
        ]
        server.client.delete(["new"], commit=True)
        assert [list(server.client.search("wing", mode=mode)) for mode in ("bm25", "hybrid")] == [[], []]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mode": "both"}, "mode"),
        ({"mode": "hybrid", "fusion": "max"}, "fusion"),
        ({"mode": "hybrid", "weights": [1]}, "weights"),
        ({"mode": "hybrid", "weights": [0, 0]}, "the weights sum to 0"),
        ({"mode": "hybrid", "weights": [-1, 1]}, "a finite number of 0 or more"),
        ({"fusion": "rrf"}, "fusion and weights are for the mode hybrid"),
        ({"mode": "bm25", "weights": [1, 1]}, "fusion and weights are for the mode hybrid"),
    ],
)
def test_bad_options_are_refused(server: Running, options: dict[str, Any], message: str) -> None:
    for path in ("/v1/search", "/v1/explain"):
        body = {"query": "wing", **options} | ({"id": "d1"} if path == "/v1/explain" else {})
        status, answer = server.post(path, body)
        assert status in (400, 422) and message in answer["error"]["message"], answer
    assert server.post("/v1/search", {"query": "wing"})[0] == 200


def test_vectors_and_indexes_without_bm25_lists(server: Running, tmp_path: Path) -> None:
    status, answer = server.post("/v1/search", {"vectors": {"keys": [1]}, "mode": "hybrid"})
    assert status == 422 and "needs the text of each query" in answer["error"]["message"]
    with running(text_index(tmp_path / "i")) as plain:
        assert plain.client.search("physics", mode="bm25").ids == plain.client.search("physics").ids
        status, answer = plain.post("/v1/search", {"query": "physics", "mode": "hybrid"})
        assert status == 400 and "citadel index --hybrid" in answer["error"]["message"]
