"""What each operator means for one document."""

from __future__ import annotations

from typing import Any

import pytest

from citadel.errors import FilterError
from citadel.filter.match import matches
from citadel.filter.parse import parse_filter

BIG = (1 << 53) + 1  # the first integer that float64 cannot hold

# filter, values of field "f" that match, values that do not; ... is a missing field
CASES: dict[str, tuple[Any, list[Any], list[Any]]] = {
    "equal number": (1, [1, 1.0], [2, True, "1", ["1"], None, ...]),
    "equal string": ("a", ["a", ["b", "a"]], ["b", 1, True, [], ["b"], None, ...]),
    "equal boolean": (True, [True], [False, 1, 1.0, "true", ["true"], None, ...]),
    "equal list": (["a", "b"], [["a", "b"]], [["b", "a"], ["a"], ["a", "b", "a"], "a", 1, ...]),
    "equal empty list": ([], [[]], [["a"], "", 0, False, None, ...]),
    "equal large integer": (BIG, [BIG], [BIG - 1, float(BIG), BIG + 1]),
    "equal large float": (float(BIG), [BIG - 1, float(BIG)], [BIG]),
    "equal beyond 64 bits": (1 << 70, [float(1 << 70)], [1, "a"]),
    "missing": (None, [None, ...], [0, "", False, [], {}, [1]]),
    "not equal": ({"$ne": 1}, [2, "1", True, ["1"], None, ...], [1, 1.0]),
    "not equal string": ({"$ne": "a"}, ["b", 1, [], ["b"], None, ...], ["a", ["b", "a"]]),
    "present": ({"$ne": None}, [0, "", False, [], {}, [1]], [None, ...]),
    "greater": ({"$gt": 1}, [2, 1.5, BIG], [1, 0, -1.5, None, ...]),
    "greater or equal": ({"$gte": 1.5}, [2, 1.5, BIG], [1, 0, -1.5, None, ...]),
    "less": ({"$lt": 1}, [0, 0.5, -BIG], [1, 2, None, ...]),
    "less or equal": ({"$lte": 1}, [1, 0.5, -BIG], [1.5, 2, None, ...]),
    "greater than a large float": ({"$gt": float(BIG)}, [BIG, BIG + 1], [BIG - 1, float(BIG)]),
    "less than a large integer": ({"$lt": BIG}, [float(BIG), BIG - 1], [BIG, BIG + 1]),
    "greater than null": ({"$gt": None}, [], [1, "a", True, [], {}, None, ...]),
    "less or equal to null": ({"$lte": None}, [], [1, "a", True, [], {}, None, ...]),
    "after a date": (
        {"$gt": "2024-05-17"},
        ["2024-05-18", "2024-05-17T00:00:01", "2024-05-17T01:00+00:30"],
        ["2024-05-17", "2024-05-17T01:00+01:00", "2023-12-31", None, ...],
    ),
    "until a time": (
        {"$lte": "2024-05-17T12:00Z"},
        ["2024-05-17", "2024-05-17T12:00:00"],
        ["2024-05-18", ...],
    ),
    "in": ({"$in": [1, "a", False]}, [1, 1.0, "a", ["b", "a"], False], [2, "b", True, 0, [], None, ...]),
    "in nothing": ({"$in": []}, [], [1, "a", [], None, ...]),
    "not in": ({"$nin": [1, "a"]}, [2, "b", True, [], None, ...], [1, "a", ["a"]]),
    "contains": ({"$contains": "a"}, [["a"], ["b", "a"]], [[], ["b"], None, ...]),
    "contains not": ({"$not_contains": "a"}, [[], ["b"], None, ...], [["a"], ["b", "a"]]),
    "exists": ({"$exists": True}, [0, "", [], {}, [1], 1 << 70], [None, ...]),
    "does not exist": ({"$exists": False}, [None, ...], [0, "", [], {}, [1]]),
    "a range": ({"$gte": 1, "$lt": 3}, [1, 2, 2.5], [0, 3, None, ...]),
}


def document(value: Any) -> dict[str, Any]:
    return {"g": 7} if value is ... else {"f": value}


@pytest.mark.parametrize("case", CASES)
def test_operator(case: str) -> None:
    condition, yes, no = CASES[case]
    filter, opposite = parse_filter({"f": condition}), parse_filter({"$not": {"f": condition}})
    assert [value for value in yes if not matches(filter, document(value))] == []
    assert [value for value in no if matches(filter, document(value))] == []
    assert [matches(opposite, document(value)) for value in yes + no] == [False] * len(yes) + [True] * len(no)


ERRORS: dict[str, tuple[Any, Any, str]] = {
    "number against a string": (
        {"$gt": 1},
        "b",
        '$gt cannot compare with an int: field "f" holds string values',
    ),
    "number against a date": (
        {"$gt": 1},
        "2024-05-17",
        '$gt cannot compare with an int: field "f" holds string',
    ),
    "number against a boolean": ({"$lt": 1.5}, True, '$lt cannot compare with a float: field "f" holds bool'),
    "number against a list": (
        {"$lte": 1},
        ["a"],
        '$lte cannot compare with an int: field "f" holds list values',
    ),
    "date against a number": (
        {"$gte": "2024-05-17"},
        1,
        'cannot compare with a date: field "f" holds int values',
    ),
    "date against a word": (
        {"$gte": "2024-05-17"},
        "b",
        '$gte needs ISO dates, and not all strings of field "f"',
    ),
    "substring": ({"$contains": "a"}, "abc", '$contains needs a list of strings, and field "f" holds string'),
    "negated substring": (
        {"$not_contains": "a"},
        3,
        '$not_contains needs a list of strings, and field "f" holds',
    ),
    "an object": ({"$eq": "a"}, {"a": 1}, "only $exists works on it"),
    "a list of numbers": ({"$in": [1]}, [1], "only $exists works on it"),
    "a huge integer": ({"$ne": 1}, 1 << 63, "only $exists works on it"),
}


@pytest.mark.parametrize("case", ERRORS)
def test_mismatched_operand_is_an_error(case: str) -> None:
    condition, value, message = ERRORS[case]
    with pytest.raises(FilterError) as error:
        matches(parse_filter({"f": condition}), {"f": value})
    assert message in str(error.value)
    assert error.value.field == "f"


def test_and_or_not() -> None:
    filter = parse_filter({"$or": [{"a": 1, "b": 2}, {"$not": {"c": 3}}], "d": {"$exists": False}})
    assert matches(filter, {"a": 1, "b": 2, "c": 3})
    assert matches(filter, {"c": 4})
    assert not matches(filter, {"a": 1, "c": 3})
    assert not matches(filter, {"c": 4, "d": 0})


def test_empty_filter_matches_everything() -> None:
    assert matches(parse_filter({}), {}) and not matches(parse_filter({"$not": {}}), {})


def test_error_does_not_depend_on_other_clauses() -> None:
    for filter in ({"a": 2, "f": {"$gt": 1}}, {"$or": [{"a": 1}, {"f": {"$gt": 1}}]}):
        with pytest.raises(FilterError):
            matches(parse_filter(filter), {"a": 1, "f": "x"})


def test_names_with_dots_are_literal() -> None:
    assert matches(parse_filter({"a.b": 1}), {"a.b": 1})
    assert not matches(parse_filter({"a.b": 1}), {"a": {"b": 1}})
