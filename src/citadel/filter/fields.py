"""The metadata fields of an index and what they hold, for whoever composes a filter."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from citadel.filter.dates import microseconds
from citadel.filter.kinds import BOOL, FLOAT, INT, OTHER, STRING, STRINGS, kind_of
from citadel.filter.layout import MAX_COLUMNS
from citadel.filter.parse import MAX_NAME

KINDS = ("number", "boolean", "string", "date", "list", "nested", "mixed")
_NAMES = {INT: "number", FLOAT: "number", BOOL: "boolean", STRING: "string", STRINGS: "list", OTHER: "nested"}


class FieldKinds(NamedTuple):
    """The kinds of a field's values in one segment, and whether all of them are ISO dates."""

    kinds: frozenset[str]
    is_date: bool = False


def field_kinds(documents: Iterable[Mapping[str, Any]]) -> dict[str, FieldKinds]:
    """The fields of stored documents, in order of first use; for a segment without columns.

    >>> field_kinds([{"year": 1905}, {"year": 1.5, "day": "1905-06-30"}])["day"].is_date
    True
    """
    fields: dict[str, FieldKinds] = {}
    for metadata in documents:
        for name, value in metadata.items():
            kind = kind_of(value)
            if kind is None or (name not in fields and not _is_listed(name, len(fields))):
                continue
            known = fields.get(name) or FieldKinds(frozenset(), is_date=True)
            is_date = known.is_date and kind == STRING and microseconds(value) is not None
            if kind not in known.kinds or is_date != known.is_date:
                fields[name] = FieldKinds(known.kinds | {kind}, is_date)
    return fields


def _is_listed(name: str, fields: int) -> bool:
    """Whether a new field is one that a columns file would have too."""
    return len(name) <= MAX_NAME and fields < MAX_COLUMNS


def describe_fields(segments: Iterable[Mapping[str, FieldKinds]]) -> dict[str, str]:
    """What each field holds in all segments together: one of `KINDS`.

    >>> numbers, texts = FieldKinds(frozenset({"int"})), FieldKinds(frozenset({"string"}))
    >>> describe_fields([{"year": numbers, "lang": texts}, {"year": texts}])
    {'year': 'mixed', 'lang': 'string'}
    """
    kinds: dict[str, set[str]] = {}
    for segment in segments:
        for name, field in segment.items():
            names = {"date"} if field.is_date else {_NAMES[kind] for kind in field.kinds}
            kinds.setdefault(name, set()).update(names)
    return {name: _kind(names) for name, names in kinds.items()}


def _kind(names: set[str]) -> str:
    if names == {"string", "date"}:
        return "string"
    return names.pop() if len(names) == 1 else "mixed"
