"""Kinds of columns, their limits, the errors they raise, and what they cost."""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import pytest

from citadel.errors import FilterError
from citadel.filter import build
from citadel.filter.columns import (
    Columns,
    ColumnsBuilder,
    CompleteColumns,
    build_column,
    build_columns,
    check_types,
    common_kind,
    facet,
    mask,
)
from citadel.filter.dictionary import MAX_BYTES, MAX_ENTRIES
from citadel.filter.parse import parse_filter
from citadel.filter.tokens import Budget, Tokens
from citadel.filter.tree import comparisons
from tests.filter.test_match import CASES, document
from tests.filter.worlds import BIG, reader, small_dictionaries


def column(*values: Any) -> Any:
    made = build_column("f", [{"f": value} for value in values])
    assert made is not None
    return made


def no_documents(rows: np.ndarray) -> Iterable[Mapping[str, Any]]:
    raise AssertionError(f"documents {rows} are read though the column suffices")


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ((1, None, -(1 << 63)), "int"),
        ((1.5, None), "float"),
        ((1, 1.5, BIG), "float"),
        ((1.5, BIG + 2), "float"),
        ((True, None, False), "bool"),
        (("a", ""), "string"),
        ((["a"], []), "strings"),
        (([],), "strings"),
        (({}, [1], [["a"]], 1 << 63), "other"),
        ((1, "a"), "mixed"),
        ((1, True), "mixed"),
        (("a", ["a"]), "mixed"),
        ((1.5, BIG + 1), "mixed"),
        ((BIG + 1, 1.5), "mixed"),
        ((1, 1 << 63), "mixed"),
    ],
)
def test_kind_of_a_column(values: tuple[Any, ...], kind: str) -> None:
    assert column(*values).kind == kind


def test_field_without_values_has_no_column() -> None:
    columns = build_columns(["a", "b"], [{"a": None}, {}])
    assert columns.names == () and columns.column("a") is None and columns.has_all


ERRORS: dict[str, tuple[tuple[Any, ...], Any, str]] = {
    "mixed": ((1, "a", None), {"$ne": 1}, 'field "f" holds int and string values; give it one type'),
    "three kinds": ((["a"], True, "a"), "a", 'field "f" holds bool and string and list values'),
    "inexact": ((1.5, BIG + 1), {"$gt": 1}, 'field "f" holds float values and ints beyond 2**53'),
    "nested": (({},), "a", "only $exists works on it"),
    "no dates": (("2024-05-17", "x"), {"$gt": "2024-05-17"}, 'not all strings of field "f" are'),
    "booleans": ((True,), {"$gt": 0}, '$gt cannot compare with an int: field "f" holds bool values'),
    "substring": (("abc",), {"$contains": "b"}, "$contains needs a list of strings"),
}


@pytest.mark.parametrize("case", ERRORS)
def test_mismatched_operand_is_an_error(case: str) -> None:
    values, condition, message = ERRORS[case]
    rows = [{"f": value} for value in values]
    with pytest.raises(FilterError) as error:
        mask(parse_filter({"f": condition}), build_columns(["f"], rows), len(rows), no_documents)
    assert message in str(error.value) and error.value.field == "f"


@pytest.mark.parametrize("values", [(1, "a", None), ({}, None, [1])])
def test_exists_works_on_every_column(values: tuple[Any, ...]) -> None:
    rows = [{"f": value} for value in values]
    columns = build_columns(["f"], rows)
    for condition in (None, {"$ne": None}, {"$exists": True}, {"$exists": False}, {"$gt": None}):
        hits = mask(parse_filter({"f": condition}), columns, len(rows), no_documents)
        is_missing = condition is None or condition == {"$exists": False}
        expected = [(value is None) == is_missing for value in values]
        assert hits.tolist() == ([False] * len(rows) if condition == {"$gt": None} else expected)


def segments(*values: Any) -> list[Columns]:
    return [build_columns(["f"], [{"f": value}]) for value in values]


@pytest.mark.parametrize(
    ("values", "is_error"),
    [
        ((1, 2.5), False),
        ((1, None), False),
        ((BIG + 1, 2.5), True),
        ((BIG + 1, 2), False),
        ((1, "a"), True),
        ((1, True), True),
        (("a", ["a"]), True),
        (("a", {}), True),
    ],
)
def test_segments_must_agree_on_a_kind(values: tuple[Any, ...], is_error: bool) -> None:
    filter = parse_filter({"f": {"$in": [1]}})
    for order in (segments(*values), segments(*reversed(values))):
        if is_error:
            with pytest.raises(FilterError, match='"f" holds'):
                check_types(filter, order)
            with pytest.raises(FilterError):
                common_kind("f", order)
        else:
            check_types(filter, order)
            assert common_kind("f", order) in ("int", "float")


def test_dates_must_be_dates_in_every_segment() -> None:
    with pytest.raises(FilterError, match="needs ISO dates"):
        check_types(parse_filter({"f": {"$lt": "2024-05-17"}}), segments("2024-05-17", "x"))


@pytest.mark.parametrize("case", CASES)
def test_single_row_matches_like_its_document(case: str) -> None:
    condition, yes, no = CASES[case]
    for is_hit, values in ((True, yes), (False, no)):
        for value in values:
            rows = [document(value)]
            columns = build_columns(["f"], rows)
            assert mask(parse_filter({"f": condition}), columns, 1, reader(rows)).tolist() == [is_hit], value


# ---- representation ----------------------------------------------------------------------------------------


def test_few_strings_have_codes_of_one_or_two_bytes() -> None:
    assert column("b", "a", "b").tokens.tolist() == [1, 0, 1]
    assert column(*map(str, range(256))).tokens.dtype == np.uint8
    assert column(*map(str, range(257))).tokens.dtype == np.uint16


def test_more_strings_than_codes_are_hashed_and_confirmed() -> None:
    rows = [{"f": f"{number:x}"} for number in range(MAX_ENTRIES)]
    columns = build_columns(["f"], rows)
    assert columns.column("f").dictionary is not None  # type: ignore[union-attr]
    rows.append({"f": "one more"})
    columns = build_columns(["f"], rows)
    assert columns.column("f").tokens.dtype == np.uint64  # type: ignore[union-attr]
    read: list[int] = []

    def stored(numbers: np.ndarray) -> Iterable[Mapping[str, Any]]:
        read.extend(numbers.tolist())
        return (rows[number] for number in numbers)

    wanted = parse_filter({"f": {"$in": ["0", "ffff", "one more", "none", 7]}})
    hits = mask(wanted, columns, len(rows), stored)
    assert np.flatnonzero(hits).tolist() == read == [0, MAX_ENTRIES - 1, MAX_ENTRIES]


def test_large_dictionary_is_hashed() -> None:
    text = "x" * (MAX_BYTES // 4 - 1)
    assert column(*(f"{text}{n}" for n in range(4))).dictionary is not None
    assert column(*(f"{text}{n}" for n in range(4)), "y").dictionary is None


def test_dictionaries_share_a_budget() -> None:
    budget = Budget(1000)
    first, second = Tokens(budget), Tokens(budget)
    for number in range(4):
        first.add(f"a{number}")
        second.add(f"b{number}")
    assert [tokens.finish()[1] is None for tokens in (first, second)] == [True, False]  # a3 is the seventh


@pytest.mark.parametrize("entries", [0, 1, 9])
def test_dates_are_ordered_with_and_without_a_dictionary(entries: int) -> None:
    rows = [{"f": f"2024-05-{day:02}"} for day in (3, 1, 2)] + [{}]
    with small_dictionaries(entries):
        columns = build_columns(["f"], rows)
        found = columns.column("f")
        assert found is not None and found.is_date and found.is_hashed == (entries < 3)
        hits = mask(parse_filter({"f": {"$gte": "2024-05-02"}}), columns, 4, no_documents)
    assert hits.tolist() == [True, False, True, False]


@pytest.mark.parametrize("entries", [0, 9])
@pytest.mark.parametrize("last", ["x", "2024-13-01"])
def test_one_other_string_makes_a_column_of_dates_plain_strings(entries: int, last: str) -> None:
    with small_dictionaries(entries):
        assert not column("2024-05-17", last).is_date
        assert not column(last, "2024-05-17").is_date


def test_rare_fields_store_only_their_rows() -> None:
    rows: list[dict[str, Any]] = [{} for _ in range(1000)]
    rows[17]["f"] = rows[900]["f"] = 5
    found: Any = build_column("f", rows)
    assert found.presence.positions.tolist() == [17, 900] and found.values.tolist() == [5, 5]


def test_fields_beyond_the_limit_are_flagged(monkeypatch: pytest.MonkeyPatch) -> None:
    builder = ColumnsBuilder()
    builder.add({f"f{number}": 1 for number in range(1001)})
    columns = builder.finish()
    assert len(columns.names) == 1000 and not columns.has_all
    assert columns.column("f1000") is None
    monkeypatch.setattr(build, "MAX_NAMES", 10)
    builder = ColumnsBuilder()
    builder.add({"abcd": 1, "efgh": 2})
    builder.add({"efgh": 2})
    columns = builder.finish()
    assert (columns.names, columns.has_all) == (("abcd",), False)
    named = build_columns(["abcd", "efgh"], [{"abcd": 1, "efgh": 2, "i": 3}])
    assert (named.names, named.has_all) == (("abcd", "efgh"), True)


def test_name_too_long_for_a_filter_gets_no_column() -> None:
    builder = ColumnsBuilder()
    builder.add({"n" * 1001: 1, "n" * 1000: 1})
    columns = builder.finish()
    assert columns.names == ("n" * 1000,) and columns.has_all


def test_fields_without_a_column_are_read_from_the_documents_once(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{"a": 1, "b": 2, "c": 3}, {"b": 4}, {"d": 5}]
    reads: list[int] = []

    def documents() -> Iterable[Mapping[str, Any]]:
        reads.append(1)
        return rows

    monkeypatch.setattr(build, "MAX_COLUMNS", 1)
    builder = ColumnsBuilder()
    for row in rows:
        builder.add(row)
    partial = builder.finish()
    monkeypatch.undo()
    assert partial.names == ("a",)
    filter = parse_filter({"$or": [{"a": 1}, {"b": {"$gt": 3}}, {"d": {"$exists": True}}, {"e": 1}]})
    for columns in (CompleteColumns(partial, documents), CompleteColumns(None, documents)):
        reads.clear()
        columns.prepare([part.field for part in comparisons(filter)])
        assert mask(filter, columns, 3, no_documents).tolist() == [True, True, True]
        assert mask(filter, columns, 3, no_documents).tolist() == [True, True, True]
        assert columns.column("c").kind == "int"  # type: ignore[union-attr]
        assert len(reads) == 2  # one for the filter, one for c


def test_complete_file_reads_no_documents() -> None:
    def documents() -> Iterable[Mapping[str, Any]]:
        raise AssertionError("the documents are read")

    columns = CompleteColumns(build_columns(["a"], [{"a": 1}]), documents)
    columns.prepare(["a", "b"])
    assert columns.column("a") is not None and columns.column("b") is None


# ---- facets ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ((3, 1, 3, 2, None), [(3, 2), (1, 1), (2, 1)]),
        ((0.5, 2, 0.5), [(0.5, 2), (2.0, 1)]),
        ((True, False, True), [(True, 2), (False, 1)]),
        (("b", "a", "c", "c"), [("c", 2), ("a", 1), ("b", 1)]),
        ((["b", "a", "b"], ["a"], []), [("a", 2), ("b", 1)]),
    ],
)
@pytest.mark.parametrize("entries", [0, 9])
def test_facets(values: tuple[Any, ...], expected: list[Any], entries: int) -> None:
    rows = [{"f": value} for value in values]
    with small_dictionaries(entries):
        counts = facet(column(*values), np.ones(len(values), bool), reader(rows))
    assert counts == expected
    assert [type(value) for value, _ in counts] == [type(value) for value, _ in expected]


def test_facet_needs_one_kind() -> None:
    refused: list[tuple[Any, ...]] = [(1, "a"), ({},)]
    for values in refused:
        with pytest.raises(FilterError, match='field "f" holds'):
            facet(column(*values), np.ones(len(values), bool), no_documents)


# ---- cost --------------------------------------------------------------------------------------------------


def numbers(row: int) -> int:
    return row


def words(row: int) -> str:
    return f"{row:07}"


def dates(row: int) -> str:
    return f"2024-05-17T12:{row // 60 % 60:02}:{row % 60:02}.{row:06}"


@pytest.mark.parametrize("value", [numbers, words, dates])
def test_builder_takes_few_bytes_per_value(value: Callable[[int], Any]) -> None:
    rows = 20_000
    with small_dictionaries(1000):
        tracemalloc.start()
        builder = ColumnsBuilder()
        for row in range(rows):
            builder.add({"f": value(row)})
        held, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert builder.finish().rows == rows
    assert held < 20 * rows  # 16 bytes and what an array grows ahead


def test_random_gaps_cost_no_more_than_positions() -> None:
    generator = random.Random(7)
    builder = ColumnsBuilder()
    expected = []
    for row in range(3000):
        present = [name for name in "abc" if generator.random() < {"a": 0.9, "b": 0.3, "c": 0.01}[name]]
        builder.add(dict.fromkeys(present, row))
        expected.append(present)
    columns = builder.finish()
    for name in "abc":
        found: Any = columns.column(name)
        assert found.presence.mask().tolist() == [name in present for present in expected]
        assert (found.presence.positions is not None) == (name == "c")
