"""A filter over the columns of a segment, as a mask of its rows.

What `mask` refuses: a field with values of several kinds, and every comparison that `matches` refuses for at
least one row. The first such comparison, in the order of the filter, is the one the error names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from citadel.filter.column import Column
from citadel.filter.kinds import NUMBERS, require_fit, require_one_kind
from citadel.filter.match import tests_presence
from citadel.filter.presence import Mask
from citadel.filter.tree import NEGATED, ORDERING, And, Compare, Filter, Not, comparisons

Stored = Callable[[NDArray[np.int64]], Iterable[Mapping[str, Any]]]


class ColumnLookup(Protocol):
    """Where the columns of a segment are looked up, such as `Columns`."""

    def column(self, name: str) -> Column | None:
        """The column of a field; None where no row has it."""


def mask(filter: Filter, columns: ColumnLookup, rows: int, stored: Stored) -> Mask:
    """Which rows of a segment match a filter [rows].

    `stored` gives the metadata of some rows; it confirms strings of which the column has hashes only.

    >>> from citadel.filter.build import build_columns
    >>> from citadel.filter.parse import parse_filter
    >>> documents = [{"year": 1905}, {"year": 1687}, {}]
    >>> columns = build_columns(["year"], documents)
    >>> stored = lambda numbers: [documents[number] for number in numbers]
    >>> mask(parse_filter({"year": {"$gte": 1900}}), columns, 3, stored).tolist()
    [True, False, False]
    """
    check_types(filter, [columns])
    used = [columns.column(part.field) for part in comparisons(filter)]
    try:
        return _evaluate(filter, columns, rows, stored)
    finally:
        for column in used:
            if column is not None:
                column.require_whole()


def check_types(filter: Filter, segments: Sequence[ColumnLookup]) -> None:
    """Refuse a filter that does not fit the fields of all segments together.

    So the answer is the same however documents are spread over segments.
    """
    for part in comparisons(filter):
        if part.tests_presence:
            continue
        columns = _columns(part.field, segments)
        kind = _common_kind(part.field, columns)
        if kind is not None:
            require_fit(part, kind, all(column.is_date for column in columns))


def common_kind(field: str, segments: Sequence[ColumnLookup]) -> str | None:
    """The kind of a field's values in all segments; None: no row has it. FilterError where they differ."""
    return _common_kind(field, _columns(field, segments))


def _columns(field: str, segments: Sequence[ColumnLookup]) -> list[Column]:
    columns = (segment.column(field) for segment in segments)
    return [column for column in columns if column is not None]


def _common_kind(field: str, columns: Sequence[Column]) -> str | None:
    kinds = {kind for column in columns for kind in column.kinds or (column.kind,)}
    is_exact = not kinds >= set(NUMBERS) or all(column.is_exact for column in columns)
    require_one_kind(field, kinds, is_exact)
    return min(kinds) if kinds else None  # float before int


def _evaluate(filter: Filter, columns: ColumnLookup, rows: int, stored: Stored) -> Mask:
    """The rows that match; always a new array, so that callers may write into it."""
    if isinstance(filter, Compare):
        return _compare(filter, columns.column(filter.field), rows, stored)
    if isinstance(filter, Not):
        result = _evaluate(filter.part, columns, rows, stored)
        return np.logical_not(result, out=result)
    join = np.logical_and if isinstance(filter, And) else np.logical_or
    result = np.full(rows, isinstance(filter, And))
    for part in filter.parts:
        join(result, _evaluate(part, columns, rows, stored), out=result)
    return result


def _compare(part: Compare, column: Column | None, rows: int, stored: Stored) -> Mask:
    if part.tests_presence:
        present = np.zeros(rows, bool) if column is None else column.presence.mask()
        if_present, if_missing = tests_presence(part, True), tests_presence(part, False)
        return present == if_present if if_present != if_missing else np.full(rows, if_present)
    base = NEGATED.get(part.operator, part.operator)
    result = np.zeros(rows, bool)
    if column is not None:
        positive = replace(part, operator=base)
        result = column.holds(positive)
        if column.is_hashed and base not in ORDERING:
            _confirm(positive, result, stored)
    return np.logical_not(result, out=result) if base != part.operator else result


def _confirm(part: Compare, result: Mask, stored: Stored) -> None:
    """Clear rows whose stored strings differ from the operand though their hashes are equal."""
    operands = part.value if isinstance(part.value, tuple) else (part.value,)
    wanted = frozenset(operands)
    rows = np.flatnonzero(result)
    for row, metadata in zip(rows.tolist(), stored(rows), strict=True):
        value = metadata.get(part.field, ())
        members = (value,) if isinstance(value, str) else tuple(value)
        is_list = part.operator == "$eq" and operands is part.value
        result[row] = members == operands if is_list else not wanted.isdisjoint(members)
