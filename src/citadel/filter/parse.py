"""The filter language: a mapping or JSON text to a checked tree."""

from __future__ import annotations

import json
import math
from collections.abc import Hashable, Mapping
from typing import Any

from citadel.errors import FilterError
from citadel.filter.operands import operand_of, quote, text_problem, type_of
from citadel.filter.tree import LOGICAL, OPERATORS, And, Compare, Filter, Instant, Not, Or

__all__ = [
    "And",
    "Compare",
    "Filter",
    "GivenFilter",
    "Instant",
    "Not",
    "Or",
    "filter_key",
    "given_filter",
    "parse_filter",
    "parse_filter_json",
]

GivenFilter = Mapping[str, Any] | Filter

MAX_CLAUSES = 1000
MAX_LEVELS = 32
MAX_NAME = 1000  # characters of a field name
_EXAMPLE = '{"year": {"$gte": 1900}}'


def parse_filter(value: object) -> Filter:
    """A filter from a mapping; several entries of a mapping are joined by AND.

    >>> parse_filter({"year": {"$gte": 1900}, "lang": "en"})
    And(parts=(Compare(field='year', operator='$gte', value=1900),
               Compare(field='lang', operator='$eq', value='en')))
    >>> parse_filter({})  # matches everything
    And(parts=())
    """
    return _Parser().filter(value, 1)


def given_filter(value: GivenFilter | None) -> Filter | None:
    """A filter as a caller gives it: a mapping, one that is parsed already, or None for no filter.

    >>> given_filter({"lang": "en"})
    Compare(field='lang', operator='$eq', value='en')
    """
    return value if value is None or isinstance(value, And | Or | Not | Compare) else parse_filter(value)


def filter_key(value: object) -> Hashable | None:
    """What to remember a filter by, parsed or not: equal keys mean equal filters; None for other types.

    >>> filter_key({"year": 1}) == filter_key({"year": 1})
    True
    >>> filter_key({"year": 1}) == filter_key({"year": True})
    False
    """
    try:
        return value if isinstance(value, And | Or | Not | Compare) else _key(value)
    except (TypeError, RecursionError):
        return None


def parse_filter_json(text: str) -> Filter:
    """A filter from JSON text; a key that occurs twice, NaN and Infinity are refused.

    >>> parse_filter_json('{"lang": "en"}')
    Compare(field='lang', operator='$eq', value='en')
    """
    try:
        value = _DECODER.decode(text)
    except json.JSONDecodeError as error:
        raise FilterError(
            f"not valid JSON: {error.msg} at column {error.colno}; write an object such as {_EXAMPLE}"
        ) from None
    except RecursionError:
        raise FilterError(f"nested deeper than {MAX_LEVELS} levels") from None
    except ValueError:  # an integer of thousands of digits
        raise FilterError("not valid JSON: a number is too long") from None
    return parse_filter(value)


def _key(value: object) -> Hashable:
    kind = value.__class__  # a subclass may compare as it likes, so only these are remembered
    if kind is str:
        return value
    if kind is int or kind is float or kind is bool or value is None:
        return kind, value
    if kind is dict:
        return dict, *[(_key(name), _key(inner)) for name, inner in value.items()]  # type: ignore[attr-defined]
    if kind is list:
        return list, *[_key(inner) for inner in value]  # type: ignore[attr-defined]
    raise TypeError


class _Parser:
    """Parses one filter, counting its clauses; the depth is checked before each descent."""

    def __init__(self) -> None:
        self._clauses = 0

    def filter(self, value: object, level: int) -> Filter:
        if level > MAX_LEVELS:
            raise FilterError(f"nested deeper than {MAX_LEVELS} levels")
        if not isinstance(value, Mapping):
            raise FilterError(f"a filter is an object such as {_EXAMPLE}, not {type_of(value)}")
        parts = [part for key, inner in value.items() for part in self._entry(key, inner, level)]
        return parts[0] if len(parts) == 1 else And(tuple(parts))

    def _entry(self, key: object, value: object, level: int) -> list[Filter]:
        """The parts of one entry: a logical operator, or a field with one or several operators."""
        if not isinstance(key, str):
            raise FilterError(f"a field name is a string, not {type_of(key)}")
        if key in LOGICAL:
            return [self._logical(key, value, level)]
        field = _field_name(key)
        if not isinstance(value, Mapping):
            return [self._compare(field, "$eq", value)]
        if not value:
            raise FilterError(f'field {quote(field)} has no operator; write {{"$eq": …}} or a value', field)
        return [self._compare(field, operator, operand) for operator, operand in value.items()]

    def _logical(self, operator: str, value: object, level: int) -> Filter:
        self._count()
        if operator == "$not":
            return Not(self.filter(value, level + 1))
        if not isinstance(value, list | tuple) or not value:
            raise FilterError(f"{operator} takes a list of at least one filter")
        parts = tuple(self.filter(part, level + 1) for part in value)
        return And(parts) if operator == "$and" else Or(parts)

    def _compare(self, field: str, operator: object, value: object) -> Filter:
        self._count()
        if operator not in OPERATORS:
            shown = quote(operator) if isinstance(operator, str) else type_of(operator)
            raise FilterError(
                f"unknown operator {shown} for field {quote(field)}; use {', '.join(OPERATORS)}", field
            )
        assert isinstance(operator, str)
        return Compare(field, operator, operand_of(field, operator, value))

    def _count(self) -> None:
        self._clauses += 1
        if self._clauses > MAX_CLAUSES:
            raise FilterError(f"more than {MAX_CLAUSES:,} clauses; use $in for many values of one field")


def _field_name(name: str) -> str:
    name = str.__str__(name)
    if name in OPERATORS:
        raise FilterError(f"operator {quote(name)} needs a field: write {{FIELD: {{{quote(name)}: …}}}}")
    if name.startswith("$"):
        raise FilterError(f"unknown operator {quote(name)}; use {', '.join(LOGICAL)} between filters")
    if len(name) > MAX_NAME:
        raise FilterError(f"the field name {quote(name)} is longer than {MAX_NAME:,} characters", name)
    if problem := text_problem(name, 4 * MAX_NAME):
        raise FilterError(f"the field name {quote(name)} {problem}", name)
    return name


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        seen: set[str] = set()
        twice = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise FilterError(f"the key {quote(twice)} occurs twice in one object")
    return fields


def _finite(digits: str) -> float:
    number = float(digits)
    if math.isinf(number):
        raise FilterError(f"the number {digits[:40]} is too large")
    return number


def _refuse_constant(name: str) -> None:
    raise FilterError(f"not valid JSON: {name} is not a JSON number")


_DECODER = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_refuse_constant, parse_float=_finite)
