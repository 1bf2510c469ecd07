"""Python values as JSON has them: dates and UUIDs become strings, numpy values become Python's."""

from __future__ import annotations

import datetime
import uuid
from typing import Any

import numpy as np

from citadel.errors import InputError

_PLAIN = frozenset((str, int, float, bool, type(None), list, dict))


def plain_value(value: Any) -> Any:
    """A date, UUID or numpy value as JSON has it; any other value is returned as it is.

    Dates and times become ISO strings, UUIDs their canonical strings, arrays lists of their items.

    >>> plain_value(datetime.date(1905, 6, 30)), plain_value(np.float32(0.5)), plain_value(np.array(["d1"]))
    ('1905-06-30', 0.5, [np.str_('d1')])
    """
    if type(value) in _PLAIN:
        return value
    value = unwrapped(value)
    if isinstance(value, datetime.date):
        return value.isoformat() if value == value else value  # pandas' NaT is a date that is no date
    if isinstance(value, uuid.UUID):
        return str(value)
    return value


def unwrapped(value: Any) -> Any:
    """A numpy scalar as the Python value that it holds, an array as the list of its items.

    >>> unwrapped(np.datetime64("1905-06-30")), unwrapped(np.str_("d1"))
    (datetime.date(1905, 6, 30), 'd1')
    """
    if isinstance(value, np.ndarray):
        return list(value) if value.ndim else unwrapped(value[()])
    if not isinstance(value, np.generic) or isinstance(value, np.timedelta64):
        return value
    if isinstance(value, np.datetime64):
        return _date(value)
    if isinstance(value, np.floating):
        return float(value)  # `item` keeps a long double
    return value.item() if isinstance(value, np.bool_ | np.integer | np.str_) else value


def _date(value: np.datetime64) -> Any:
    """A date or datetime; the value itself if it is not a time, or beyond the year 9999."""
    for date in (value.item(), value.astype("datetime64[us]").item()):  # `item` of nanoseconds is an int
        if isinstance(date, datetime.date):
            return date
    return value


def json_default(value: object) -> object:
    """The `default` of `json.dumps` for what `plain_value` knows; InputError for anything else.

    >>> import json
    >>> json.dumps({"id": uuid.UUID(int=7)}, default=json_default)
    '{"id": "00000000-0000-0000-0000-000000000007"}'
    """
    plain = plain_value(value)
    if plain is value:
        raise InputError(f"a value of type {type(value).__name__} cannot be written as JSON: convert it")
    return plain
