"""LlamaIndex's filters in citadel's filter language."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from citadel.errors import FilterError
from citadel.integrations import MissingPackageError

try:
    from llama_index.core.vector_stores import (
        FilterCondition,
        FilterOperator,
        MetadataFilter,
        MetadataFilters,
    )
except ImportError as error:
    raise MissingPackageError("llama-index", error) from None

Filters = MetadataFilters | Mapping[str, Any] | None

_OPERATORS = {
    FilterOperator.EQ: "$eq",
    FilterOperator.NE: "$ne",
    FilterOperator.GT: "$gt",
    FilterOperator.GTE: "$gte",
    FilterOperator.LT: "$lt",
    FilterOperator.LTE: "$lte",
    FilterOperator.IN: "$in",
    FilterOperator.NIN: "$nin",
    FilterOperator.CONTAINS: "$contains",
}
_OF_LISTS = {FilterOperator.ANY: "$or", FilterOperator.ALL: "$and"}


def citadel_filter(filters: Filters) -> dict[str, Any]:
    """Translate LlamaIndex's filters; a mapping is a filter of citadel already.

    >>> year = MetadataFilter(key="year", operator=FilterOperator.GTE, value=1900)
    >>> citadel_filter(MetadataFilters(filters=[year]))
    {'$and': [{'year': {'$gte': 1900}}]}
    >>> citadel_filter({"year": 1905})
    {'year': 1905}
    """
    if filters is None:
        return {}
    if isinstance(filters, Mapping):
        return dict(filters)
    parts = [
        citadel_filter(part) if isinstance(part, MetadataFilters) else _comparison(part)
        for part in filters.filters
    ]
    if not parts:
        return {}
    if filters.condition == FilterCondition.NOT:  # none of them matches
        return {"$not": {"$or": parts}}
    return {"$or" if filters.condition == FilterCondition.OR else "$and": parts}


def _comparison(filter: MetadataFilter) -> dict[str, Any]:
    key, operator, value = filter.key, filter.operator, filter.value
    if operator == FilterOperator.IS_EMPTY:
        return {"$or": [{key: None}, {key: {"$eq": []}}]}
    if operator in _OF_LISTS:
        if not isinstance(value, list) or not value:
            raise FilterError(f'operator "{operator.value}" for field "{key}" takes a list of values', key)
        return {_OF_LISTS[operator]: [{key: {"$contains": each}} for each in value]}
    if operator not in _OPERATORS:
        raise FilterError(
            f'operator "{operator.value}" for field "{key}" searches in texts: put the words into the query',
            key,
        )
    return {key: {_OPERATORS[operator]: value}}
