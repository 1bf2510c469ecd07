"""The values of a filter: Python and JSON values, checked and normalised for their operator."""

from __future__ import annotations

import datetime
import json
import math
import uuid
from collections.abc import Sequence

import numpy as np

from citadel.errors import FilterError
from citadel.filter.dates import instant_of, microseconds
from citadel.filter.tree import ORDERING, Instant, Operand, Scalar
from citadel.text.values import unwrapped

MAX_MEMBERS = 1000  # of a list
MAX_STRING = 64_000  # bytes of UTF-8
MAX_INTEGER_BITS = 1024  # as far as a JSON number reaches in a double
_QUOTED = 60  # characters of a name or string in a message


def quote(text: str) -> str:
    """A text for a message: in double quotes, on one line, cut when it is long.

    >>> quote("a" * 99)[-5:]
    'aaa"…'
    """
    shown = text[:_QUOTED].encode("utf-8", "replace").decode()
    return json.dumps(shown, ensure_ascii=False) + ("…" if len(text) > _QUOTED else "")


def operand_of(field: str, operator: str, value: object) -> Operand:
    """A value as its operator needs it.

    >>> operand_of("year", "$gte", "1905-06-30")
    Instant(microseconds=-2035670400000000)
    """
    if operator == "$exists":
        return _boolean(field, value)
    if operator in ("$in", "$nin"):
        return _members(field, operator, value)
    if operator in ORDERING:
        return _ordered(field, operator, value)
    if operator in ("$contains", "$not_contains"):
        return _member(field, operator, value)
    if _is_list(value):
        return _members(field, operator, value)
    return None if value is None else _scalar(field, operator, value)


def _boolean(field: str, value: object) -> bool:
    if isinstance(value, bool | np.bool_):
        return bool(value)
    raise FilterError(f"$exists for field {quote(field)} takes true or false, not {type_of(value)}", field)


def _members(field: str, operator: str, value: object) -> tuple[Scalar, ...]:
    if not _is_list(value):
        raise FilterError(f"{operator} for field {quote(field)} takes a list, not {type_of(value)}", field)
    assert isinstance(value, Sequence | np.ndarray)
    if len(value) > MAX_MEMBERS:
        raise FilterError(
            f"{operator} for field {quote(field)} has {len(value):,} members, the limit is {MAX_MEMBERS:,}",
            field,
        )
    return tuple(_scalar(field, operator, member) for member in value)


def _is_list(value: object) -> bool:
    return isinstance(value, list | tuple) or (isinstance(value, np.ndarray) and value.ndim == 1)


def _ordered(field: str, operator: str, value: object) -> Operand:
    """A number, an instant, or None, against which nothing is ordered."""
    if value is None:
        return None
    value = unwrapped(value)
    if isinstance(value, datetime.date):
        return Instant(instant_of(value))
    if isinstance(value, str):
        return Instant(_date(field, operator, value))
    if isinstance(value, int | float) and not isinstance(value, bool):
        return _scalar(field, operator, value)
    raise FilterError(
        f"{operator} for field {quote(field)} takes a number or an ISO date, not {type_of(value)}", field
    )


def _date(field: str, operator: str, text: str) -> int:
    instant = microseconds(text)
    if instant is None:
        raise FilterError(
            f"{operator} for field {quote(field)} takes a number or an ISO date such as 2024-05-17 or "
            f"2024-05-17T12:00:00Z, and {quote(text)} is neither",
            field,
        )
    return instant


def _member(field: str, operator: str, value: object) -> str:
    member = None if value is None or _is_list(value) else _scalar(field, operator, value)
    if not isinstance(member, str):
        raise FilterError(f"{operator} for field {quote(field)} takes a string, not {type_of(value)}", field)
    return member


def _scalar(field: str, operator: str, value: object) -> Scalar:
    """A plain string, number or boolean; dates and UUIDs become the strings they are stored as."""
    value = unwrapped(value)
    if isinstance(value, bool):
        return value
    if isinstance(value, str):
        return _string(field, operator, str.__str__(value))
    if isinstance(value, int):
        return _integer(field, operator, int(value))
    if isinstance(value, float):
        return _float(field, operator, float(value))
    if isinstance(value, datetime.date):
        return value.isoformat()
    if isinstance(value, uuid.UUID):
        return str(value)
    allowed = (
        "strings, numbers and booleans" if operator in ("$in", "$nin") else "a string, number or boolean"
    )
    raise FilterError(f"{operator} for field {quote(field)} takes {allowed}, not {type_of(value)}", field)


def _string(field: str, operator: str, text: str) -> str:
    problem = text_problem(text, MAX_STRING)
    if problem:
        raise FilterError(f"the string of {operator} for field {quote(field)} {problem}", field)
    return text


def text_problem(text: str, limit: int) -> str | None:
    """What is wrong with a string of a filter, if anything.

    >>> text_problem("abc", 2)
    'is longer than 2 bytes'
    """
    try:
        too_long = len(text) > limit or len(text.encode()) > limit
    except UnicodeEncodeError:
        return "holds half a surrogate pair, which UTF-8 cannot store"
    return f"is longer than {limit:,} bytes" if too_long else None


def _integer(field: str, operator: str, number: int) -> int:
    if number.bit_length() > MAX_INTEGER_BITS:
        raise FilterError(
            f"the integer of {operator} for field {quote(field)} has more than {MAX_INTEGER_BITS:,} bits",
            field,
        )
    return number


def _float(field: str, operator: str, number: float) -> float:
    if not math.isfinite(number):
        raise FilterError(f"{operator} for field {quote(field)} takes finite numbers, not {number}", field)
    return number


def type_of(value: object) -> str:
    """What a value is, in the words of JSON where it has them.

    >>> type_of(None), type_of([1]), type_of(1.5)
    ('null', 'a list', 'a float')
    """
    for kind, name in _NAMES:
        if isinstance(value, kind):
            return name
    return f"a {type(value).__name__}"


_NAMES: tuple[tuple[type, str], ...] = (
    (type(None), "null"),
    (bool, "a boolean"),
    (int, "an int"),
    (float, "a float"),
    (str, "a string"),
    (list, "a list"),
    (tuple, "a list"),
    (dict, "an object"),
)
