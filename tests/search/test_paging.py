"""`k`, `offset` and `min_score` of a search."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest

import citadel
from tests.index.quick import Quick

COUNT = 25


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> citadel.Index:
    made = citadel.Index.create(Quick(tmp_path_factory.mktemp("paging") / "i"), model="bm25")
    made.add({"id": f"d{n}", "text": "physics " + "word " * (n // 2)} for n in range(COUNT))  # equal scores
    return made.commit()


def test_default_k_is_10_everywhere(index: citadel.Index) -> None:
    for kind in (citadel.Index, citadel.Searcher, citadel.Client):
        for name, method in inspect.getmembers(kind, inspect.isfunction):
            if name.startswith("search") and name != "searcher":
                assert inspect.signature(method).parameters["k"].default == 10, (kind, name)
    assert len(index.search("physics")) == 10


@pytest.mark.parametrize("k", [1, 4, 10, 100])
def test_pages_join_to_the_whole_ranking(k: int, index: citadel.Index) -> None:
    whole = index.search("physics", k=COUNT)
    pages = [index.search("physics", k=k, offset=offset) for offset in range(0, COUNT, k)]
    assert [hit for page in pages for hit in page] == list(whole)
    assert [hit.rank for page in pages for hit in page] == list(range(1, COUNT + 1))
    assert [hit.text for page in pages for hit in page] == [hit.text for hit in whole]


@pytest.mark.parametrize("offset", [COUNT, COUNT + 1, 10**30])
def test_page_beyond_the_index_is_empty(offset: int, index: citadel.Index) -> None:
    assert list(index.search("physics", offset=offset)) == []
    assert list(index.search("physics", k=0, offset=offset)) == []


def test_last_page_is_short(index: citadel.Index) -> None:
    assert len(index.search("physics", k=10**30, offset=COUNT - 3)) == 3


def test_min_score_keeps_equal_scores(index: citadel.Index) -> None:
    whole = index.search("physics", k=COUNT)
    for score in {*whole.scores, 0, -1, float("-inf"), float("inf"), 1e300}:
        expected = [hit for hit in whole if hit.score >= score]
        assert list(index.search("physics", k=COUNT, min_score=score)) == expected
        assert list(index.search("physics", k=3, offset=2, min_score=score)) == expected[2:5]


def test_numpy_numbers_are_numbers(index: citadel.Index) -> None:
    threshold = np.float32(index.search("physics", k=5).scores[-1])
    page: dict[str, Any] = {"k": np.int64(3), "offset": np.int8(1), "min_score": threshold}
    plain = index.search("physics", k=3, offset=1, min_score=float(threshold))
    assert list(index.search("physics", **page)) == list(plain)
    assert len(index.search("physics", k=page["k"])) == 3


@pytest.mark.parametrize(
    ("page", "message"),
    [
        ({"offset": -1}, "offset must be a whole number of 0 or more, not -1"),
        ({"offset": True}, "offset must be a whole number of 0 or more, not True"),
        ({"offset": False}, "offset must be a whole number of 0 or more, not False"),
        ({"offset": None}, "offset must be a whole number of 0 or more, not None"),
        ({"offset": 0.0}, "offset must be a whole number of 0 or more, not 0.0"),
        ({"offset": "1"}, "offset must be a whole number of 0 or more, not '1'"),
        ({"k": -1, "offset": 2}, "k must be a whole number of 0 or more, not -1"),
        ({"k": True}, "k must be a whole number of 0 or more, not True"),
        ({"k": 2.0}, "k must be a whole number of 0 or more, not 2.0"),
        ({"min_score": True}, "min_score must be a number, not True"),
        ({"min_score": float("nan")}, "min_score must be a number, not nan"),
        ({"min_score": "1"}, "min_score must be a number, not '1'"),
        ({"min_score": 10**400}, "min_score must be a number in the range of a float"),
    ],
    ids=str,
)
def test_invalid_page_is_refused(page: dict[str, Any], message: str, index: citadel.Index) -> None:
    with pytest.raises(citadel.UsageError, match=message):
        index.search("physics", **page)
