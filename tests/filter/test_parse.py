"""The filter language: what is read as what, and the sentence for everything else."""

from __future__ import annotations

import datetime
import json
import uuid
from enum import Enum
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from citadel.errors import FilterError, UsageError
from citadel.filter.parse import And, Compare, Filter, Instant, Not, Or, parse_filter, parse_filter_json

LONG = "x" * 64_001


def compare(operator: str, value: object) -> Any:
    parsed = parse_filter({"f": {operator: value}})
    assert isinstance(parsed, Compare)
    return parsed.value


def test_the_example_of_the_guide() -> None:
    text = '{"year": {"$gte": 1900}, "$or": [{"lang": "en"}, {"tags": {"$contains": "physics"}}]}'
    lang, tags = Compare("lang", "$eq", "en"), Compare("tags", "$contains", "physics")
    expected = And((Compare("year", "$gte", 1900), Or((lang, tags))))
    assert parse_filter_json(text) == expected == parse_filter(json.loads(text))


def test_several_operators_of_a_field_are_joined() -> None:
    parsed = parse_filter({"year": {"$gt": 1, "$lte": 9}})
    assert parsed == And((Compare("year", "$gt", 1), Compare("year", "$lte", 9)))


def test_not_negates_one_filter() -> None:
    assert parse_filter({"$not": {"lang": None}}) == Not(Compare("lang", "$eq", None))
    assert parse_filter({"$not": {}}) == Not(And(()))


@pytest.mark.parametrize("name", ["a.b", "", "\0", "über", "a b", "eq"])
def test_a_field_name_is_taken_literally(name: str) -> None:
    assert parse_filter({name: 1}) == Compare(name, "$eq", 1)


def test_filters_are_keys_that_tell_types_apart() -> None:
    values = (1, True, 1.0, "1", (1,), (True,))
    assert len({Compare("f", "$eq", value) for value in values}) == len(values)
    assert hash(parse_filter({"a": 1, "$not": {"b": [2]}})) == hash(
        parse_filter({"a": 1, "$not": {"b": [2]}})
    )


class Colour(str, Enum):  # noqa: UP042 - str() of it is not its value
    RED = "red"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (np.int32(7), 7),
        (np.float32(0.5), 0.5),
        (np.bool_(True), True),
        (np.str_("a"), "a"),
        (Colour.RED, "red"),
        (datetime.date(2024, 5, 17), "2024-05-17"),
        (datetime.datetime(2024, 5, 17, 12), "2024-05-17T12:00:00"),
        (np.datetime64("2024-05-17"), "2024-05-17"),
        (uuid.UUID(int=7), "00000000-0000-0000-0000-000000000007"),
        (1 << 200, 1 << 200),
        ([], ()),
        (np.array([1, 2]), (1, 2)),
        (("a", np.int8(1)), ("a", 1)),
    ],
)
def test_values_become_plain_python(given: object, expected: object) -> None:
    value = compare("$eq", given)
    assert value == expected
    assert type(value) is type(expected)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("1970-01-01", 0),
        ("1970-01-01T00:00:01", 1_000_000),
        ("1970-01-01 00:00:01.5Z", 1_500_000),
        ("1970-01-01T00:00:00.123456789Z", 123_456),
        ("1970-01-01T00:30+01:00", -1_800_000_000),
        ("1970-01-01T00:00-0130", 5_400_000_000),
        ("0001-01-01T00:00+23:59", -62_135_683_140_000_000),
        (datetime.date(1970, 1, 2), 86_400_000_000),
        (datetime.datetime(1970, 1, 1, 0, 0, 0, 7), 7),
        (datetime.datetime(1970, 1, 1, 1, tzinfo=datetime.timezone(datetime.timedelta(hours=1))), 0),
        (np.datetime64("1970-01-01T00:00:00.000001999", "ns"), 1),
    ],
)
def test_dates_are_ordered_as_instants(given: object, expected: int) -> None:
    assert compare("$lt", given) == Instant(expected)


NESTED_LISTS = '{"$and": [' * 33 + "{}" + "]}" * 33
REFUSED: dict[str, tuple[object, str]] = {
    "no object": ([], "a filter is an object such as"),
    "null": (None, "a filter is an object such as"),
    "unknown operator": (
        {"year": {"$near": 3}},
        'unknown operator "$near" for field "year"; use $eq, $ne, $gt, $gte, $lt, $lte, $in, $nin, '
        "$contains, $not_contains, $exists",
    ),
    "an object as a value": ({"year": {"from": 3}}, 'unknown operator "from" for field "year"'),
    "logical operator in a field": ({"year": {"$and": [{}]}}, 'unknown operator "$and" for field "year"'),
    "unknown logical operator": ({"$nor": []}, 'unknown operator "$nor"; use $and, $or, $not'),
    "operator without a field": ({"$eq": 3}, 'operator "$eq" needs a field'),
    "no operator": ({"year": {}}, 'field "year" has no operator'),
    "name that is a number": ({3: 4}, "a field name is a string, not an int"),
    "operator that is a number": ({"a": {3: 4}}, 'unknown operator an int for field "a"'),
    "long name": ({"n" * 1001: 1}, "is longer than 1,000 characters"),
    "name with half a pair": ({"\ud800": 1}, "half a surrogate pair"),
    "empty and": ({"$and": []}, "$and takes a list of at least one filter"),
    "or of an object": ({"$or": {"a": 1}}, "$or takes a list of at least one filter"),
    "not of a list": ({"$not": [{"a": 1}]}, "a filter is an object such as"),
    "member that is no filter": ({"$or": [1]}, "a filter is an object such as"),
    "in without a list": ({"a": {"$in": "b"}}, '$in for field "a" takes a list, not a string'),
    "nin without a list": ({"a": {"$nin": 4}}, '$nin for field "a" takes a list, not an int'),
    "null among members": ({"a": {"$in": [None]}}, "takes strings, numbers and booleans, not null"),
    "list among members": ({"a": {"$in": [["b"]]}}, "takes strings, numbers and booleans, not a list"),
    "many members": ({"a": {"$in": [1] * 1001}}, "has 1,001 members, the limit is 1,000"),
    "NaN": ({"a": float("nan")}, "takes finite numbers, not nan"),
    "infinity": ({"a": {"$lt": float("-inf")}}, "takes finite numbers, not -inf"),
    "NaN of numpy": ({"a": {"$in": [np.float32("nan")]}}, "takes finite numbers, not nan"),
    "long integer": ({"a": 1 << 1024}, "has more than 1,024 bits"),
    "long string": ({"a": LONG}, "is longer than 64,000 bytes"),
    "long string in bytes": ({"a": "ü" * 32_001}, "is longer than 64,000 bytes"),
    "long member": ({"a": {"$contains": LONG}}, "is longer than 64,000 bytes"),
    "half a pair": ({"a": "\udfff"}, "half a surrogate pair"),
    "no date": ({"a": {"$gt": "b"}}, '$gt for field "a" takes a number or an ISO date such as'),
    "no day": ({"a": {"$gt": "2023-02-30"}}, '"2023-02-30" is neither'),
    "digits": ({"a": {"$gt": "20230101"}}, '"20230101" is neither'),
    "other digits": ({"a": {"$gt": "２０２３-01-01"}}, "is neither"),
    "line end": ({"a": {"$gt": "2023-01-01\n"}}, "is neither"),
    "ordered booleans": ({"a": {"$gte": True}}, "takes a number or an ISO date, not a boolean"),
    "ordered lists": ({"a": {"$lte": [1]}}, "takes a number or an ISO date, not a list"),
    "not a time": ({"a": {"$lt": np.datetime64("NaT")}}, "takes a number or an ISO date"),
    "contains a number": ({"a": {"$contains": 3}}, '$contains for field "a" takes a string, not an int'),
    "contains null": ({"a": {"$not_contains": None}}, "takes a string, not null"),
    "contains a list": ({"a": {"$contains": ["b"]}}, "takes a string, not a list"),
    "exists with a number": ({"a": {"$exists": 1}}, '$exists for field "a" takes true or false, not an int'),
    "bytes": ({"a": b"b"}, "takes a string, number or boolean, not a bytes"),
    "many clauses": ({"$or": [{"a": 1}] * 1000}, "more than 1,000 clauses"),
    "many operators": ({str(i): 1 for i in range(1001)}, "more than 1,000 clauses"),
    "deep": (json.loads(NESTED_LISTS), "nested deeper than 32 levels"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_with_one_sentence(case: str) -> None:
    value, message = REFUSED[case]
    with pytest.raises(FilterError) as error:
        parse_filter(value)
    assert str(error.value).startswith("filter: ")
    assert message in str(error.value)
    assert "\n" not in str(error.value) and len(str(error.value)) < 300
    assert isinstance(error.value, UsageError) and error.value.exit_code == 2


def test_an_error_names_its_field() -> None:
    with pytest.raises(FilterError) as error:
        parse_filter({"a": 1, "b": {"$in": 2}})
    assert error.value.field == "b"


def nested(levels: int) -> Any:
    value: Any = {"a": 1}
    for _ in range(levels - 1):
        value = {"$not": value}
    return value


def test_the_limits_themselves_are_allowed() -> None:
    parsed: Filter = parse_filter(nested(32))
    for _ in range(31):
        assert isinstance(parsed, Not)
        parsed = parsed.part
    assert parse_filter({"$or": [{"a": 1}] * 999})
    assert len(compare("$in", list(range(1000)))) == 1000
    assert len(compare("$eq", "x" * 64_000)) == 64_000
    assert parse_filter({"n" * 1000: 1})


@pytest.mark.parametrize("key", ["$not", "$and"])
def test_any_depth_is_a_typed_error(key: str) -> None:
    value: Any = {}
    for _ in range(200_000):
        value = {key: value if key == "$not" else [value]}
    with pytest.raises(FilterError, match="nested deeper than 32 levels"):
        parse_filter(value)
    while value:  # taken apart level by level: dropping it at once recurses
        value = value[key] if key == "$not" else value[key][0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not valid JSON: Expecting value at column 1"),
        ('{"a": NaN}', "NaN is not a JSON number"),
        ('{"a": {"$lt": -Infinity}}', "-Infinity is not a JSON number"),
        ('{"a": 1e999}', "the number 1e999 is too large"),
        ('{"a": 1, "a": 2}', 'the key "a" occurs twice in one object'),
        ('{"a": ' + "1" * 5000 + "}", "a number is too long"),
        ('{"$not":' * 200_000 + "{}" + "}" * 200_000, "nested deeper than 32 levels"),
        ("[" * 200_000, "nested deeper than 32 levels"),
        ('"a"', "a filter is an object such as"),
        ('{"a": 1} x', "not valid JSON: Extra data"),
    ],
)
def test_json_is_read_strictly(text: str, message: str) -> None:
    with pytest.raises(FilterError) as error:
        parse_filter_json(text)
    assert message in str(error.value)


NAMES = st.one_of(
    st.sampled_from(("$eq", "$in", "$gt", "$and", "$or", "$not", "$exists", "f")), st.text(max_size=3)
)
JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=3)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(NAMES, inner, max_size=3)),
    max_leaves=12,
)


@given(JSON)
def test_anything_is_a_filter_or_a_typed_error(value: object) -> None:
    try:
        parsed = parse_filter(value)
    except FilterError:
        return
    assert parsed == parse_filter_json(json.dumps(value))
