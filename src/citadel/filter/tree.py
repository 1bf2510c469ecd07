"""A filter as a tree: comparisons of fields, joined by And, Or and Not."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

ORDERING = ("$gt", "$gte", "$lt", "$lte")
OPERATORS = ("$eq", "$ne", *ORDERING, "$in", "$nin", "$contains", "$not_contains", "$exists")
NEGATED = {"$ne": "$eq", "$nin": "$in", "$not_contains": "$contains"}
LOGICAL = ("$and", "$or", "$not")


@dataclass(frozen=True, slots=True, order=True)
class Instant:
    """A point in time: microseconds since 1970-01-01T00:00:00Z."""

    microseconds: int


Scalar: TypeAlias = str | int | float | bool
Operand: TypeAlias = Scalar | tuple[Scalar, ...] | Instant | None


@dataclass(frozen=True, slots=True)
class Compare:
    """One field compared with one value.

    >>> Compare("year", "$eq", 1) == Compare("year", "$eq", True)  # as keys of a cache they must differ
    False
    """

    field: str
    operator: str
    value: Operand
    types: tuple[type, ...] = dataclasses.field(
        init=False, repr=False
    )  # tells 1 from True, which Python calls equal

    def __post_init__(self) -> None:
        values = self.value if isinstance(self.value, tuple) else (self.value,)
        object.__setattr__(self, "types", (type(self.value), *map(type, values)))

    @property
    def tests_presence(self) -> bool:
        """Whether only the presence of the field matters, so that its type does not."""
        return self.operator == "$exists" or self.value is None


@dataclass(frozen=True, slots=True)
class And:
    """All parts match; without parts, everything does."""

    parts: tuple[Filter, ...]


@dataclass(frozen=True, slots=True)
class Or:
    """At least one part matches."""

    parts: tuple[Filter, ...]


@dataclass(frozen=True, slots=True)
class Not:
    """The part does not match."""

    part: Filter


Filter: TypeAlias = And | Or | Not | Compare


def comparisons(filter: Filter) -> Iterator[Compare]:
    """The comparisons of a filter, in the order they were written.

    >>> [part.field for part in comparisons(And((Compare("a", "$eq", 1), Not(Compare("b", "$eq", 2)))))]
    ['a', 'b']
    """
    if isinstance(filter, Compare):
        yield filter
    elif isinstance(filter, Not):
        yield from comparisons(filter.part)
    else:
        for part in filter.parts:
            yield from comparisons(part)
