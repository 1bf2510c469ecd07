"""Filters of `citadel.Client`: checked as in the library, then written as JSON values."""

from __future__ import annotations

import datetime
import uuid
from collections.abc import Mapping
from typing import Any

import numpy as np

from citadel.errors import UsageError
from citadel.filter.parse import GivenFilter, given_filter


def filter_json(filter: GivenFilter | None) -> dict[str, Any] | None:
    """A filter as JSON values; an invalid one raises FilterError before anything is sent.

    >>> filter_json({"day": {"$gte": datetime.date(2024, 5, 17)}, "lang": {"$in": ("en", "de")}})
    {'day': {'$gte': '2024-05-17'}, 'lang': {'$in': ['en', 'de']}}
    """
    if filter is None:
        return None
    if not isinstance(filter, Mapping):
        raise UsageError("a client takes a filter as a mapping, such as {'year': {'$gte': 1900}}")
    given_filter(filter)
    return {name: _json(value) for name, value in filter.items()}


def _json(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _json(inner) for name, inner in value.items()}
    if isinstance(value, np.datetime64):
        return _json(value.astype("datetime64[us]").item())
    if isinstance(value, np.ndarray | np.generic):
        return _json(value.tolist())
    if isinstance(value, list | tuple):
        return [_json(member) for member in value]
    if isinstance(value, datetime.date):
        return value.isoformat()
    return str(value) if isinstance(value, uuid.UUID) else value
