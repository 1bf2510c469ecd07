"""`rerank=`: order, scores and parts of reranked hits, and rerankers that fail."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import citadel

TEXTS = {f"d{n}": "wing " * n + "x" * (20 - n) for n in range(1, 9)}


@pytest.fixture(scope="module")
def searcher(tmp_path_factory: pytest.TempPathFactory) -> Iterator[citadel.Searcher]:
    with citadel.Index.create(tmp_path_factory.mktemp("rerank"), model="bm25") as index:
        index.add({"id": id, "title": id, "text": text} for id, text in TEXTS.items())
        yield index.commit().searcher()


def shortest(query: str, texts: list[str]) -> list[float]:
    return [-float(len(text)) for text in texts]


def test_hits_are_ordered_by_the_reranker(searcher: citadel.Searcher) -> None:
    first = searcher.search("wing", k=8)
    hits = searcher.search("wing", k=8, rerank=shortest)
    assert hits.ids == sorted(first.ids, key=lambda id: len(TEXTS[id]))
    assert [hit.rank for hit in hits] == list(range(1, 9))
    assert hits[0].score == -float(len(f"d1 {TEXTS['d1']}".strip()))
    assert hits[0].text == TEXTS["d1"]


def test_parts_have_both_scores(searcher: citadel.Searcher) -> None:
    before = {hit.id: hit for hit in searcher.search("wing")}
    for hit in searcher.search("wing", rerank=shortest):
        search, rerank = hit.parts
        assert (search.name, search.score, search.rank) == (
            "search",
            before[hit.id].score,
            before[hit.id].rank,
        )
        assert (rerank.name, rerank.score, rerank.rank) == ("rerank", hit.score, hit.rank)
        assert search.gain + rerank.gain == hit.score


def test_only_the_best_hits_are_reranked(searcher: citadel.Searcher) -> None:
    seen: list[int] = []

    def count(query: str, texts: list[str]) -> np.ndarray[Any, Any]:
        seen.append(len(texts))
        return np.arange(len(texts), dtype=np.float32)

    best = searcher.search("wing", k=3).ids
    assert searcher.search("wing", k=2, rerank=count, rerank_k=3).ids == best[:0:-1]
    searcher.search("wing", k=4, offset=2, rerank=count, rerank_k=3)
    assert seen == [3, 6]
    assert searcher.search("nothing", rerank=count).ids == []
    assert len(searcher.search("wing", k=0, rerank=count)) == 0
    assert seen == [3, 6]


def test_pages_and_min_score_are_those_of_the_reranker(searcher: citadel.Searcher) -> None:
    everything = searcher.search("wing", rerank=shortest)
    page = searcher.search("wing", k=3, offset=2, rerank=shortest)
    assert page.ids == everything.ids[2:5]
    assert page[0].rank == 3
    assert searcher.search("wing", rerank=shortest, min_score=everything[1].score).ids == everything.ids[:2]


def test_batches_and_hybrids_rerank_too(searcher: citadel.Searcher) -> None:
    alone = searcher.search("wing", rerank=shortest).ids
    assert searcher.search_batch(["wing", "x"], rerank=shortest)["1"].ids == alone  # type: ignore[attr-defined]
    hits = citadel.Hybrid([searcher, searcher]).search("wing", rerank=shortest)
    assert hits.ids == alone
    assert [part.name for part in hits[0].parts] == ["bm25", "bm25 2", "rerank"]


def test_long_documents_are_reranked_by_their_passage(tmp_path: Any) -> None:
    texts: list[str] = []

    def keep(query: str, given: list[str]) -> list[float]:
        texts.extend(given)
        return [1.0] * len(given)

    pytest.importorskip("onnxruntime")
    with citadel.Index.create(tmp_path / "long", model="default", chunk_tokens=32) as index:
        index.add([{"id": "d1", "title": "T", "text": "a history of Rome. " * 300 + "the lift of a wing."}])
        hits = index.commit().searcher().search("lift of a wing", rerank=keep)
    assert texts == [f"T {hits[0].passage.text}"]
    assert len(texts[0]) < 400
    assert hits[0].passage.text.endswith("the lift of a wing.")


def raising(query: str, texts: list[str]) -> list[float]:
    raise ValueError("out of memory")


@pytest.mark.parametrize(
    ("rerank", "message"),
    [
        (raising, "rerank raised ValueError for 8 texts: out of memory"),
        (lambda query, texts: [1.0], "rerank returned 1 scores for 8 texts"),
        (lambda query, texts: [1.0] * 9, "rerank returned 9 scores for 8 texts"),
        (lambda query, texts: None, "rerank raised TypeError"),
        (lambda query, texts: [float("nan")] * 8, "rerank returned nan for text 1"),
        (lambda query, texts: [1.0, float("inf")] * 4, "rerank returned inf for text 2"),
        (lambda query, texts: ["1"] * 8, "rerank returned no number for text 1"),
        (lambda query, texts: np.ones((8, 2)), "rerank returned no number for text 1"),
        (lambda query, texts: [None] * 8, "rerank returned no number for text 1"),
        (lambda query: [1.0], "rerank raised TypeError"),
    ],
)
def test_a_reranker_that_fails_is_one_error(searcher: citadel.Searcher, rerank: Any, message: str) -> None:
    with pytest.raises(citadel.RerankError, match=message):
        searcher.search("wing", rerank=rerank)
    assert len(searcher.search("wing")) == 8  # the searcher is still usable


def test_the_cause_is_kept(searcher: citadel.Searcher) -> None:
    with pytest.raises(citadel.RerankError) as caught:
        searcher.search("wing", rerank=raising)
    assert isinstance(caught.value.__cause__, ValueError)


@pytest.mark.parametrize(
    "options",
    [{"rerank": "model"}, {"rerank": shortest, "rerank_k": 0}, {"rerank": shortest, "rerank_k": True}],
)
def test_bad_options_are_refused(searcher: citadel.Searcher, options: Any) -> None:
    with pytest.raises(citadel.UsageError, match="rerank"):
        searcher.search("wing", **options)
