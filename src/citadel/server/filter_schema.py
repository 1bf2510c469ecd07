"""`filter` and facets in requests and responses. `citadel.filter` checks filters; this describes them."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from citadel.filter.parse import MAX_NAME
from citadel.server.base_schema import ResponseModel

MAX_FACETS = 16  # fields per request
FACET_VALUES, MAX_FACET_VALUES = 100, 1000  # per field: by default, at most

_FILTERS = {"type": "array", "minItems": 1, "items": {"type": "object"}}
_ORDERED = {"type": ["number", "string", "null"]}
_OPERATORS: dict[str, Any] = {
    "$eq": {},
    "$ne": {},
    "$gt": _ORDERED,
    "$gte": _ORDERED,
    "$lt": _ORDERED,
    "$lte": _ORDERED,
    "$in": {"type": "array"},
    "$nin": {"type": "array"},
    "$contains": {"type": "string"},
    "$not_contains": {"type": "string"},
    "$exists": {"type": "boolean"},
}
_CONDITION = {"type": "object", "properties": _OPERATORS, "additionalProperties": False, "minProperties": 1}
_VALUE = {"type": ["string", "number", "boolean", "array", "null"]}
_SCHEMA: dict[str, Any] = {
    "properties": {"$and": _FILTERS, "$or": _FILTERS, "$not": {"type": "object"}},
    "additionalProperties": {"anyOf": [_VALUE, _CONDITION]},
}

FilterObject = Annotated[
    dict[str, Any],
    Field(
        description='a filter on metadata, such as {"year": {"$gte": 1900}}; docs/guides/filter.md',
        json_schema_extra=_SCHEMA,
    ),
]
FieldName = Annotated[str, Field(max_length=MAX_NAME)]


class FacetValue(ResponseModel):
    """A value of a metadata field and the number of documents that have it."""

    value: str | int | float | bool
    count: int


def facet_rows(facets: dict[str, list[tuple[Any, int]]]) -> dict[str, list[dict[str, Any]]]:
    """Facets as JSON.

    >>> facet_rows({"year": [(1905, 3)]})
    {'year': [{'value': 1905, 'count': 3}]}
    """
    return {
        name: [{"value": value, "count": count} for value, count in counts] for name, counts in facets.items()
    }
