"""One index with a model's lists and BM25 lists: three modes, explanations, copies, bad input."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import citadel
from citadel.encode.locate import default_model
from citadel.errors import EmptyQueryError, InputError, UsageError
from citadel.search.index_hybrid import DEFAULT_WEIGHTS
from tests.index.quick import Quick
from tests.search.test_hybrid import QUERIES, TEXTS

pytestmark = pytest.mark.skipif(default_model() is None, reason="the default model is not installed")


def add_texts(index: citadel.Index) -> citadel.Index:
    rows = enumerate(TEXTS.items())
    index.add({"id": id, "text": text, "year": 1950 + number} for number, (id, text) in rows)
    return index.commit()


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Iterator[citadel.Index]:
    folder = tmp_path_factory.mktemp("both")
    with add_texts(citadel.Index.create(Quick(folder), model="default", hybrid=True)) as made:
        yield made


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> list[citadel.Searcher]:
    """Searchers of two indexes with the same documents."""
    folder = tmp_path_factory.mktemp("alone")
    indexes = [citadel.Index.create(Quick(folder / name), model=name) for name in ("default", "bm25")]
    return [add_texts(each).searcher() for each in indexes]


def test_each_mode_is_the_search_of_an_index_of_its_own(
    index: citadel.Index, alone: list[citadel.Searcher]
) -> None:
    model, bm25 = alone
    two = citadel.Hybrid(alone, weights=DEFAULT_WEIGHTS, names=["model", "bm25"])
    for query in QUERIES.values():
        assert index.search(query).to_dicts() == model.search(query).to_dicts()
        assert index.search(query, mode="model").to_dicts() == model.search(query).to_dicts()
        assert index.search(query, mode="bm25").to_dicts() == bm25.search(query).to_dicts()
        assert index.search(query, mode="hybrid").to_dicts() == two.search(query).to_dicts()


@pytest.mark.parametrize("fusion", ["linear", "rrf"])
def test_options_of_the_fusion(index: citadel.Index, alone: list[citadel.Searcher], fusion: str) -> None:
    both = index.searcher(mode="hybrid", fusion=fusion, weights=(0.4, 0.6), candidates=3)
    two = citadel.Hybrid(alone, fusion, [0.4, 0.6], candidates=3, names=["model", "bm25"])
    for options in ({}, {"k": 2, "offset": 1}, {"filter": {"year": {"$lt": 1953}}}, {"group_by": "year"}):
        assert (
            both.search_batch(QUERIES, **options).to_dict() == two.search_batch(QUERIES, **options).to_dict()
        )
        for query in QUERIES.values():
            assert both.search(query, **options).to_dicts() == two.search(query, **options).to_dicts()


@pytest.mark.parametrize("weights", [(1, 0), (0, 1)])
def test_a_weight_of_zero_leaves_one_part(index: citadel.Index, weights: tuple[int, int]) -> None:
    searcher = index.searcher(mode="hybrid", weights=weights)
    one = index.searcher(mode="model" if weights[0] else "bm25")
    assert searcher.search("thin wing").ids == one.search("thin wing").ids


def test_prepared_queries_give_the_same_hits(index: citadel.Index) -> None:
    searcher = index.searcher(mode="hybrid")
    prepared = searcher.prepare(list(QUERIES.values()))
    encoded = searcher.text_encoder.encode_queries(list(QUERIES.values()))
    for query, one, routed in zip(QUERIES.values(), prepared, encoded, strict=True):
        expected = searcher.search(query, k=3, offset=1).to_dicts()
        assert searcher.search_prepared(one, 3, offset=1).to_dicts() == expected
        again = searcher.prepare_routed(query, routed)
        assert searcher.search_prepared(again, 3, offset=1).to_dicts() == expected


def test_explanations_show_each_part(index: citadel.Index) -> None:
    searcher = index.searcher(mode="hybrid")
    hit = searcher.search("lift of a wing")[0]
    explanation = searcher.explain("lift of a wing", hit.id)
    assert explanation.score == pytest.approx(hit.score)
    assert [(part.name, part.rank, part.score) for part in explanation.parts] == [
        (part.name, part.rank, part.score) for part in hit.parts
    ]
    routers = [part.explanation.router for part in explanation.parts if part.explanation]
    assert routers == ["dynamic", "bm25"]


def test_copies_of_searchers_answer_alike(index: citadel.Index) -> None:
    for mode in ("bm25", "hybrid"):
        searcher = index.searcher(mode=mode)
        again = copy.deepcopy(searcher)
        assert again.search("thin wing").to_dicts() == searcher.search("thin wing").to_dicts()
        assert again.snapshot.manifest.generation == index.generation


def test_later_commits_are_seen_by_the_index_and_not_by_searchers(tmp_path: Path) -> None:
    index = citadel.Index.create(Quick(tmp_path), model="default", hybrid=True)
    index.add([{"id": "d1", "text": "a wing"}])
    before = index.commit().searcher(mode="hybrid")
    index.add([{"id": "d2", "text": "another wing"}])
    index.commit()
    assert sorted(index.search("wing", mode="hybrid").ids) == ["d1", "d2"]
    assert before.search("wing").ids == ["d1"] and len(before) == before.count() == 1


def test_a_query_without_words_for_one_part(index: citadel.Index) -> None:
    searcher = index.searcher(mode="hybrid")
    with pytest.raises(EmptyQueryError, match="no words to search for"):
        searcher.search(" ")
    with pytest.raises(EmptyQueryError, match="no words to search for"):
        searcher.prepare(["wing", " "])
    assert len(searcher.search("?", k=3)) == len(searcher.search_prepared(searcher.prepare(["?"])[0], 3))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"fusion": "max"}, "unknown fusion method 'max': choose one of linear, rrf"),
        ({"weights": (0, 0)}, "the weights sum to 0"),
        ({"weights": (1,)}, "1 weights for 2 rankings"),
        ({"weights": (-1, 2)}, "a finite number of 0 or more"),
        ({"weights": "ab"}, "a finite number of 0 or more"),
        ({"candidates": 0}, "candidates must be a whole number of 1 or more"),
    ],
)
def test_bad_options_are_usage_errors(index: citadel.Index, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        index.searcher(mode="hybrid", **options)


def test_vectors_and_unknown_documents(index: citadel.Index) -> None:
    searcher = index.searcher(mode="hybrid")
    with pytest.raises(UsageError, match="vectors are searched in the model's lists alone"):
        searcher.prepare_vectors([1], [1.0])
    with pytest.raises(InputError, match="no document 'none'"):
        searcher.explain("wing", "none")
