"""Filters over whole indexes: types that change between commits, many fields and strings, odd names."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

import citadel
from tests.index.quick import Quick


@pytest.fixture
def index(tmp_path: Path) -> citadel.Index:
    return citadel.Index.create(Quick(tmp_path / "index"), analyser="plain")


def commit(index: citadel.Index, rows: Iterable[dict[str, Any]], first: int = 0) -> citadel.Index:
    index.add({"id": f"d{n}", "text": "ant"} | row for n, row in enumerate(rows, first))
    return index.commit()


def ids(index: citadel.Index, filter: dict[str, Any]) -> list[str]:
    return index.searcher().search("ant", k=10, filter=filter).ids


@pytest.mark.parametrize(
    ("before", "after", "kinds"),
    [
        (1, "a", "int and string"),
        (1.5, True, "float and bool"),
        (["a"], "a", "string and list"),
        ("2024-05-17", {"a": 1}, "string and nested"),
    ],
)
def test_a_type_that_changes_between_commits_is_an_error_until_it_is_one_type(
    index: citadel.Index, before: Any, after: Any, kinds: str
) -> None:
    commit(index, [{"f": before}, {"g": 1}])
    commit(index, [{"f": after}], first=2)
    for changed in (index, index.merge()):  # in several segments, and in one
        with pytest.raises(citadel.FilterError) as caught:
            ids(changed, {"f": before})
        assert str(caught.value).endswith(
            f'field "f" holds {kinds} values; give it one type in all documents'
        )
        assert caught.value.field == "f"
        assert ids(changed, {"f": {"$exists": True}}) == ["d0", "d2"]
        assert ids(changed, {"g": 1}) == ["d1"]
    index.update_metadata("d2", {"f": before})
    assert ids(index.commit(), {"f": before}) == ["d0", "d2"]


def test_ints_and_floats_of_different_commits_are_one_type(index: citadel.Index) -> None:
    commit(index, [{"f": 1}, {"f": 3}])
    commit(index, [{"f": 1.0}, {"f": 2.5}], first=2)
    for changed in (index, index.merge()):
        assert ids(changed, {"f": 1}) == ["d0", "d2"]
        assert ids(changed, {"f": {"$gt": 2}}) == ["d1", "d3"]


def test_a_string_that_is_no_date_ends_the_dates_of_all_segments(index: citadel.Index) -> None:
    commit(index, [{"f": "2024-05-17"}])
    assert ids(index, {"f": {"$gt": "2024-01-01"}}) == ["d0"]
    commit(index, [{"f": "soon"}], first=1)
    with pytest.raises(citadel.FilterError, match='not all strings of field "f" are'):
        ids(index, {"f": {"$gt": "2024-01-01"}})


def test_fields_beyond_the_limit_are_filtered_too(index: citadel.Index) -> None:
    """1,001 fields: the last one has no column and is read from the documents."""
    commit(index, [{f"f{n}": 7 for n in range(1001)}, {"f1000": 8}])
    columns = index._snapshot.segments[0].columns
    assert len(columns.names or ()) == 1000
    for changed in (index, index.merge()):
        assert ids(changed, {"f0": 7}) == ["d0"]
        assert ids(changed, {"f1000": {"$gte": 7}}) == ["d0", "d1"]
        assert ids(changed, {"f1000": 8, "f1": None}) == ["d1"]
        assert ids(changed, {"f1001": {"$exists": True}}) == []
        assert changed.facets("f1000") == [(7, 1), (8, 1)]
    index.check(deep=True)


def test_more_strings_than_a_dictionary_holds(index: citadel.Index) -> None:
    """65,537 distinct strings are hashed, and what matches is confirmed."""
    commit(index, ({"f": f"v{n}", "g": [f"v{n}"]} for n in range((1 << 16) + 1)))
    for field, operator in (("f", "$eq"), ("g", "$contains")):
        assert ids(index, {field: {operator: "v65536"}}) == ["d65536"]
        assert ids(index, {field: {operator: "v65537"}}) == []
    assert index.count(filter={"f": {"$ne": "v0"}}) == 1 << 16


@pytest.mark.parametrize("name", ["a.b", "a\0b", "\0", "", " ", "é" * 500, "a" * 1000])
def test_odd_field_names(index: citadel.Index, name: str) -> None:
    commit(index, [{name: 1}, {"a": {"b": 1}}, {name: 2}])
    for changed in (index, index.merge()):
        assert ids(changed, {name: 1}) == ["d0"]
        assert ids(changed, {name: None}) == ["d1"]


@pytest.mark.parametrize(
    ("filter", "message"),
    [
        ({"$or": [{"f": n} for n in range(10_000)]}, "more than 1,000 clauses"),
        ({"f": "x" * (1 << 20)}, "is longer than 64,000 bytes"),
        ({"f": float("nan")}, "takes finite numbers, not nan"),
        ({"f": {"$in": list(range(10_000))}}, "10,000 members, the limit is 1,000"),
        ({"f" * 1001: 1}, "is longer than 1,000 characters"),
        ({"f": {"$regex": "a"}}, r'unknown operator "\$regex" for field "f"'),
    ],
)
def test_bad_filters_name_the_problem(index: citadel.Index, filter: dict[str, Any], message: str) -> None:
    commit(index, [{"f": 1}])
    with pytest.raises(citadel.FilterError, match=message):
        ids(index, filter)
    with pytest.raises(citadel.FilterError, match=message):
        index.count(filter=filter)
    with pytest.raises(citadel.FilterError, match=message):
        index.delete(filter=filter)
    assert len(index) == 1


def test_200_levels_are_refused(index: citadel.Index) -> None:
    commit(index, [{"f": 1}])
    filter: dict[str, Any] = {"f": 1}
    for _ in range(200):
        filter = {"$not": filter}
    with pytest.raises(citadel.FilterError, match="nested deeper than 32 levels"):
        ids(index, filter)
