"""Haystack's filters in citadel's filter language."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ParamSpec, TypeVar

from haystack.errors import FilterError

from citadel import errors

P = ParamSpec("P")
T = TypeVar("T")

_OPERATORS = {
    "==": "$eq", "!=": "$ne", ">": "$gt", ">=": "$gte", "<": "$lt", "<=": "$lte", "in": "$in",
    "not in": "$nin",
}  # fmt: skip
_LISTS = ("in", "not in")


def citadel_filter(filters: Mapping[str, Any] | None) -> dict[str, Any]:
    """Translate a filter; `meta.` before a field is optional.

    >>> citadel_filter({"field": "meta.year", "operator": ">=", "value": 1900})
    {'year': {'$gte': 1900}}
    >>> part = {"field": "meta.lang", "operator": "==", "value": "en"}
    >>> citadel_filter({"operator": "NOT", "conditions": [part]})
    {'$not': {'$and': [{'lang': {'$eq': 'en'}}]}}
    """
    if not filters:
        return {}
    if not isinstance(filters, Mapping):
        raise FilterError(f"a filter is a dict with field or conditions, not {type(filters).__name__}")
    return _comparison(filters) if "field" in filters else _logical(filters)


def _logical(filters: Mapping[str, Any]) -> dict[str, Any]:
    operator, conditions = (_part(filters, name) for name in ("operator", "conditions"))
    if operator not in ("AND", "OR", "NOT"):
        raise FilterError(f"unknown operator {operator!r} between conditions: use AND, OR or NOT")
    if not isinstance(conditions, list) or not conditions:
        raise FilterError(f"{operator} takes a list of at least one condition")
    parts = [citadel_filter(condition) for condition in conditions]
    if operator == "NOT":
        return {"$not": {"$and": parts}}
    return {"$and" if operator == "AND" else "$or": parts}


def _comparison(filters: Mapping[str, Any]) -> dict[str, Any]:
    field, operator, value = (_part(filters, name) for name in ("field", "operator", "value"))
    if operator not in _OPERATORS:
        raise FilterError(f"unknown operator {operator!r} for {field!r}: use one of {', '.join(_OPERATORS)}")
    if operator in _LISTS and not isinstance(value, list):
        raise FilterError(f"{operator!r} for {field!r} takes a list, not {type(value).__name__}")
    return {field_name(field): {_OPERATORS[operator]: value}}


def _part(filters: Mapping[str, Any], name: str) -> Any:
    if name not in filters:
        raise FilterError(f"a condition lacks {name!r}: write field, operator and value")
    return filters[name]


def field_name(field: str) -> str:
    """The name of a metadata field in the index.

    >>> field_name("meta.year"), field_name("year")
    ('year', 'year')
    """
    if field in ("id", "content"):
        raise FilterError(f"{field!r} is no metadata: filters compare fields of meta")
    return field.removeprefix("meta.")


def with_haystack_errors(call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call a function; citadel's FilterError becomes Haystack's."""
    try:
        return call(*args, **kwargs)
    except errors.FilterError as error:
        raise FilterError(str(error)) from error
