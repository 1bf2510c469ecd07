"""Columns answer like the documents: row by row, over any segments, through a file, with colliding hashes."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from citadel.errors import FilterError
from citadel.filter.columns import Columns, ColumnsBuilder, build_column, check_types, facet, mask
from citadel.filter.kinds import kind_of
from citadel.filter.match import matches
from citadel.filter.parse import Compare, Filter, parse_filter
from citadel.filter.tree import comparisons
from citadel.index.columns_file import read_columns, write_columns
from tests.filter.worlds import FIELDS, documents, filters, reader, small_dictionaries
from tests.support.disk import MemoryDisk

INDEX_ID, FILE_ID = "ab" * 16, "cd" * 16
Rows = list[dict[str, Any]]


def built(rows: Rows) -> Columns:
    builder = ColumnsBuilder()
    for metadata in rows:
        builder.add(metadata or None)
    return builder.finish()


def through_a_file(columns: Columns) -> Columns:
    disk = MemoryDisk()
    return read_columns(disk, write_columns(disk, INDEX_ID, FILE_ID, columns), INDEX_ID, columns.rows)


def raises(part: Compare, metadata: dict[str, Any]) -> bool:
    try:
        matches(part, metadata)
    except FilterError:
        return True
    return False


def is_mixed(field: str, rows: Rows) -> bool:
    values = [row[field] for row in rows if row.get(field) is not None]
    kinds = {kind_of(value) for value in values}
    if kinds == {"int", "float"}:
        return any(int(float(value)) != value for value in values if type(value) is int)
    return len(kinds) > 1


def first_misfit(filter: Filter, rows: Rows) -> str | None:
    """The field that an error must name: one of several kinds, or one that `matches` refuses for a row."""
    for part in comparisons(filter):
        if not part.tests_presence and is_mixed(part.field, rows):
            return part.field
        if any(raises(part, row) for row in rows):
            return part.field
    return None


def answer(filter: Filter, columns: Columns, rows: Rows) -> tuple[str | None, list[bool]]:
    """The field that an error names, and the mask."""
    try:
        return None, mask(filter, columns, len(rows), reader(rows)).tolist()
    except FilterError as error:
        return error.field, []


def expected(filter: Filter, rows: Rows) -> tuple[str | None, list[bool]]:
    if misfit := first_misfit(filter, rows):
        return misfit, []
    return None, [matches(filter, row) for row in rows]


@settings(max_examples=400, deadline=None)
@given(documents(), filters, st.sampled_from((0, 2, 1 << 16)), st.sampled_from((1, 64)))
def test_mask_equals_matches_row_by_row(rows: Rows, value: Any, entries: int, bits: int) -> None:
    filter = parse_filter(value)
    with small_dictionaries(entries, bits):
        columns = built(rows)
        assert answer(filter, columns, rows) == expected(filter, rows)
        assert answer(filter, through_a_file(columns), rows) == expected(filter, rows)


@settings(max_examples=150, deadline=None)
@given(documents(), filters, st.lists(st.integers(0, 20), max_size=3))
def test_several_segments_equal_one(rows: Rows, value: Any, cuts: Sequence[int]) -> None:
    filter = parse_filter(value)
    edges = [0, *sorted(min(cut, len(rows)) for cut in cuts), len(rows)]
    parts = [rows[start:stop] for start, stop in itertools.pairwise(edges)]
    segments = [built(part) for part in parts]
    misfit, hits = expected(filter, rows)
    if misfit is not None:
        with pytest.raises(FilterError) as error:
            check_types(filter, segments)
        assert error.value.field == misfit
        return
    check_types(filter, segments)
    answers = [answer(filter, columns, part) for columns, part in zip(segments, parts, strict=True)]
    assert [hit for _, part in answers for hit in part] == hits


@settings(max_examples=100, deadline=None)
@given(documents(), st.integers(0, 1 << 20), st.sampled_from((0, 2, 1 << 16)))
def test_facets_count_rows(rows: Rows, chosen: int, entries: int) -> None:
    allowed = np.array([chosen >> row & 1 for row in range(len(rows))], bool)
    with small_dictionaries(entries):
        columns = through_a_file(built(rows))
    for name in FIELDS:
        column = columns.column(name)
        if column is None or column.kind in ("mixed", "other"):
            continue
        values = [
            row[name] for row, keep in zip(rows, allowed, strict=True) if keep and row.get(name) is not None
        ]
        counts = Counter(x for value in values for x in (set(value) if isinstance(value, list) else [value]))
        found = facet(column, allowed, reader(rows))
        assert dict(found) == counts
        assert found == sorted(found, key=lambda item: (-item[1], item[0]))


@given(documents())
def test_single_column_equals_the_whole_file(rows: Rows) -> None:
    columns = built(rows)
    for name in FIELDS:
        alone, whole = build_column(name, rows), columns.column(name)
        assert (alone is None) == (whole is None) == all(row.get(name) is None for row in rows)
        if alone is not None and whole is not None:
            assert (alone.kind, alone.kinds) == (whole.kind, whole.kinds)
            for role, values in alone.arrays().items():
                np.testing.assert_array_equal(values, whole.arrays()[role])
