"""The kinds of metadata values, and which operators fit which kind."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from citadel.errors import FilterError
from citadel.filter.operands import quote, type_of
from citadel.filter.tree import ORDERING, Compare, Instant

INT, FLOAT, BOOL, STRING, STRINGS, OTHER, MIXED = (
    "int",
    "float",
    "bool",
    "string",
    "strings",
    "other",
    "mixed",
)
SINGLE = (INT, FLOAT, BOOL, STRING, STRINGS, OTHER)  # every kind that one value can have
NUMBERS = (INT, FLOAT)
_INT64 = 1 << 63
_BY_TYPE: dict[type, str] = {str: STRING, bool: BOOL, float: FLOAT}
_NAMES = {STRINGS: "list", OTHER: "nested"}


def kind_of(value: Any) -> str | None:
    """The kind of one metadata value; None for null, which means that the field is missing.

    >>> [kind_of(value) for value in (1, 1.5, True, "a", ["a"], [], [1], {}, 1 << 63, None)]
    ['int', 'float', 'bool', 'string', 'strings', 'strings', 'other', 'other', 'other', None]
    """
    kind = _BY_TYPE.get(type(value))
    if kind is not None or value is None:
        return kind
    if isinstance(value, int):
        return INT if -_INT64 <= value < _INT64 else OTHER
    if isinstance(value, str | float):  # of a type derived from them
        return STRING if isinstance(value, str) else FLOAT
    if isinstance(value, list | tuple) and all(isinstance(member, str) for member in value):
        return STRINGS
    return OTHER


def require_one_kind(field: str, kinds: Collection[str], is_exact: bool = True) -> None:
    """Refuse a field whose values have several kinds, or one that cannot be compared at all.

    Ints and floats are one kind while float64 holds all of the ints exactly (`is_exact`).
    """
    if set(kinds) == set(NUMBERS) and not is_exact:
        raise FilterError(
            f"field {quote(field)} holds float values and ints beyond 2**53, which a float cannot hold; "
            "give it one type in all documents",
            field,
        )
    if len(kinds) > 1 and set(kinds) != set(NUMBERS):
        names = " and ".join(_NAMES.get(kind, kind) for kind in SINGLE if kind in kinds)
        problem = f"field {quote(field)} holds {names} values"
        raise FilterError(f"{problem}; give it one type in all documents", field)
    if OTHER in kinds:
        raise FilterError(
            f"field {quote(field)} holds objects, lists of other values than strings, or integers beyond "
            "64 bits; only $exists works on it",
            field,
        )


def require_fit(part: Compare, kind: str, is_date: bool) -> None:
    """Refuse an operator or operand that a field of this kind cannot be compared with.

    `is_date` says whether a string (or every string of a column) is an ISO date.
    """
    field, operator = part.field, part.operator
    holds = f"field {quote(field)} holds {_NAMES.get(kind, kind)} values"
    is_instant = isinstance(part.value, Instant)
    if operator in ORDERING:
        if kind not in ((STRING,) if is_instant else NUMBERS):
            other = "a date" if is_instant else type_of(part.value)
            raise FilterError(f"{operator} cannot compare with {other}: {holds}", field)
        if is_instant and not is_date:
            problem = f"not all strings of field {quote(field)} are; use $eq or $in"
            raise FilterError(f"{operator} needs ISO dates, and {problem}", field)
    elif operator in ("$contains", "$not_contains") and kind != STRINGS:
        raise FilterError(f"{operator} needs a list of strings, and {holds}", field)
