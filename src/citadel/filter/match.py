"""Whether one document's metadata match a filter: the definition that the columns are tested against."""

from __future__ import annotations

import operator as python
from collections.abc import Callable, Mapping
from typing import Any

from citadel.filter.dates import microseconds
from citadel.filter.kinds import BOOL, NUMBERS, STRING, STRINGS, kind_of, require_fit, require_one_kind
from citadel.filter.tree import NEGATED, ORDERING, And, Compare, Filter, Instant, Not, Operand

ORDERS: dict[str, Callable[[Any, Any], Any]] = {
    "$gt": python.gt,
    "$gte": python.ge,
    "$lt": python.lt,
    "$lte": python.le,
}


def matches(filter: Filter, metadata: Mapping[str, Any]) -> bool:
    """Whether a document with this metadata is allowed.

    Every comparison is evaluated: one that does not fit its field is an error whatever the others say.

    >>> from citadel.filter.parse import parse_filter
    >>> matches(parse_filter({"year": {"$gte": 1900}, "lang": {"$ne": "de"}}), {"year": 1905})
    True
    """
    if isinstance(filter, Compare):
        return _compares(filter, metadata.get(filter.field))
    if isinstance(filter, Not):
        return not matches(filter.part, metadata)
    parts = [matches(part, metadata) for part in filter.parts]
    return all(parts) if isinstance(filter, And) else any(parts)


def _compares(part: Compare, value: Any) -> bool:
    if part.tests_presence:
        return tests_presence(part, value is not None)
    base = NEGATED.get(part.operator, part.operator)
    return _holds(part, base, value) != (base != part.operator)


def tests_presence(part: Compare, is_present: bool) -> bool:
    """The answer of a comparison that asks only whether the field is present.

    >>> tests_presence(Compare("year", "$ne", None), is_present=True)
    True
    """
    if part.operator == "$exists":
        return is_present == part.value
    if part.operator in ORDERING:  # against null: nothing is greater or smaller
        return False
    return is_present == (part.operator == "$ne")


def _holds(part: Compare, operator: str, value: Any) -> bool:
    """Whether a comparison without negation holds; a missing field never does."""
    kind = kind_of(value)
    if kind is None:
        return False
    require_one_kind(part.field, (kind,))
    instant = microseconds(value) if kind == STRING and operator in ORDERING else None
    require_fit(part, kind, instant is not None)
    if operator in ORDERING:
        operand = part.value.microseconds if isinstance(part.value, Instant) else part.value
        return bool(ORDERS[operator](value if instant is None else instant, operand))
    if operator == "$contains":
        return part.value in value
    if operator == "$in":
        assert isinstance(part.value, tuple)
        return any(_equal(kind, value, member) for member in part.value)
    return _equal(kind, value, part.value)


def _equal(kind: str, value: Any, operand: Operand) -> bool:
    """Equality by value and type; a string equals a list that has it as a member."""
    if kind == STRINGS:
        return tuple(value) == operand if isinstance(operand, tuple) else operand in value
    if kind == BOOL or isinstance(operand, bool):
        return kind == BOOL and isinstance(operand, bool) and value == operand
    if kind in NUMBERS:
        return isinstance(operand, int | float) and value == operand
    return isinstance(operand, str) and bool(value == operand)
