"""Hits and rankings as plain Python values."""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Any

import pytest

import citadel
from tests.index.quick import Quick

METADATA: list[dict[str, Any]] = [
    {},
    {"year": 1905},
    {"a": [1, None, {"b": 0.5}], "c": True},
    {"day": datetime.date(1905, 6, 30)},
]


@pytest.fixture
def index(tmp_path: Path) -> citadel.Index:
    made = citadel.Index.create(Quick(tmp_path / "i"), model="bm25")
    made.add({"id": f"d{n}", "text": "physics " * (n + 1), **METADATA[n]} for n in range(4))
    return made.commit()


def test_hits_are_json(index: citadel.Index) -> None:
    hits = index.search("physics")
    assert json.loads(json.dumps(hits.to_dicts())) == [hit.to_dict() for hit in hits] == hits.to_dicts()
    best = hits[0].to_dict()
    assert best == {
        "id": hits.ids[0],
        "score": hits.scores[0],
        "rank": 1,
        "title": "",
        "text": hits[0].text,
        "metadata": hits[0].metadata,
    }
    assert {type(best["score"]), type(best["rank"])} == {float, int}
    assert [hit["rank"] for hit in index.search("physics", offset=2).to_dicts()] == [3, 4]


def test_a_dict_of_a_hit_can_be_changed(index: citadel.Index) -> None:
    hits = index.search("physics")
    hits[0].to_dict()["metadata"]["new"] = 1
    assert "new" not in hits[0].metadata


def test_hits_of_a_query_by_id(index: citadel.Index) -> None:
    ranking = index.searcher().search_batch({"q1": "physics", "q2": "zebra"})
    assert [hit.id for hit in ranking["q1"]] == index.search("physics").ids
    assert list(ranking["q2"]) == []
    assert "q1" in ranking and "q3" not in ranking and 1 not in ranking
    assert ranking.to_dict() == {
        "q1": dict(zip(ranking["q1"].ids, ranking["q1"].scores, strict=True)),  # type: ignore[attr-defined]
        "q2": {},
    }


@pytest.mark.parametrize("unknown", ["q3", 0, None, ["q1"]])
def test_unknown_query_is_named(unknown: Any, index: citadel.Index) -> None:
    ranking = index.searcher().search_batch({"q1": "physics"})
    with pytest.raises(citadel.UnknownQueryError) as caught:
        ranking[unknown]
    assert isinstance(caught.value, KeyError) and caught.value.exit_code == 2
    assert str(caught.value).startswith(f"the ranking has no query {unknown!r}: ")


def test_queries_of_equal_ids_are_refused(index: citadel.Index) -> None:
    with pytest.raises(citadel.InputError, match="the query id 'q1' occurs twice"):
        index.searcher().search_batch([("q1", "physics"), ("q1", "zebra")])


def test_query_ids_become_strings(index: citadel.Index) -> None:
    searcher = index.searcher()
    assert searcher.search_batch({7: "physics"}).query_ids == ("7",)  # type: ignore[dict-item]
    with pytest.raises(citadel.UsageError, match="the id of a query is a string or an integer, not float"):
        searcher.search_batch({1.5: "physics"})  # type: ignore[dict-item]


def test_ids_of_query_vectors_become_strings(tmp_path: Path) -> None:
    index = citadel.Index.create(Quick(tmp_path / "v"), fields={"semantic": 2}, fingerprint="m")
    index.add_vectors([{"id": "d1", "semantic": [0, 1]}])
    queries: Any = {7: {"semantic": [0, 1]}}
    assert index.commit().searcher().search_vectors_batch(queries)["7"][0].id == "d1"


def test_added_count_is_a_number() -> None:
    added = citadel.AddedCount(2, 1, 512, ["a"])
    assert (added, added.cut, added.limit, added.generated_ids) == (2, 1, 512, ["a"])
    assert json.dumps(added) == repr(added) == "2"
