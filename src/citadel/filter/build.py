"""Builds the columns of a segment from its documents' metadata, one row at a time."""

from __future__ import annotations

import json
from array import array
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citadel.filter.column import Column, ListColumn, NumberColumn, Postings, StringColumn, holds_exactly
from citadel.filter.kinds import BOOL, FLOAT, INT, MIXED, OTHER, SINGLE, STRING, STRINGS, kind_of
from citadel.filter.layout import MAX_COLUMNS, Columns
from citadel.filter.parse import MAX_NAME
from citadel.filter.presence import Presence
from citadel.filter.tokens import Budget, Tokens

MAX_NAMES = 1 << 19  # bytes that all names of a segment take as JSON
_TYPES: dict[str, tuple[str, type]] = {INT: ("q", np.int64), FLOAT: ("d", np.float64), BOOL: ("B", np.uint8)}


class ColumnsBuilder:
    """Collects metadata row by row; a field gets a column when it first has a value.

    With `names`, these fields do, without a limit, and no others.

    >>> builder = ColumnsBuilder()
    >>> builder.add({"year": 1905}); builder.add(None); builder.add({"year": 1915, "lang": "en"})
    >>> columns = builder.finish()
    >>> columns.rows, columns.names, columns.column("year").kind
    (3, ('year', 'lang'), 'int')
    """

    def __init__(self, names: Collection[str] | None = None) -> None:
        self._names = None if names is None else frozenset(names)
        self._fields: dict[str, _Field] = {}
        self._budget = Budget()
        self._rows, self._name_bytes = 0, 0
        self._has_all = True

    def add(self, metadata: Mapping[str, Any] | None) -> None:
        """The metadata of the next row; null is the same as no value."""
        row = self._rows
        self._rows += 1
        for name, value in metadata.items() if metadata else ():
            if value is None:
                continue
            field = self._fields.get(name) or self._new_field(name)
            if field is not None:
                field.add(row, value)

    def _new_field(self, name: str) -> _Field | None:
        """A field seen for the first time; None where it gets no column."""
        if len(name) > MAX_NAME or (self._names is not None and name not in self._names):
            return None  # a filter cannot ask for it
        size = len(json.dumps(name, ensure_ascii=False).encode())
        is_full = len(self._fields) >= MAX_COLUMNS or self._name_bytes + size > MAX_NAMES
        if is_full and self._names is None:
            self._has_all = False
            return None
        self._name_bytes += size
        field = self._fields[name] = _Field(self._budget)
        return field

    def finish(self) -> Columns:
        columns = {name: field.finish(name, self._rows) for name, field in self._fields.items()}
        return Columns(self._rows, columns, self._has_all)


def build_column(name: str, rows: Iterable[Mapping[str, Any]]) -> Column | None:
    """The column of one field from stored documents; None where no row has it.

    >>> build_column("year", [{"year": 1905}, {}]).presence.rows
    2
    """
    return build_columns((name,), rows).column(name)


def build_columns(names: Collection[str], rows: Iterable[Mapping[str, Any]]) -> Columns:
    """The columns of some fields from stored documents, in one pass.

    >>> build_columns(["year"], [{"year": 1905, "lang": "de"}]).names
    ('year',)
    """
    builder = ColumnsBuilder(names)
    for metadata in rows:
        builder.add(metadata)
    return builder.finish()


class _Field:
    """One field: the rows that have it, and their values while all have one kind."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._count = 0
        self._positions: array[int] | None = None  # None: all rows so far
        self._kind = ""
        self._kinds: set[str] = set()
        self._numbers: array[Any] | None = None  # of an int, float or bool field
        self._tokens: Tokens | None = None  # of a field of strings or lists
        self._lengths = array("I")  # of lists

    def add(self, row: int, value: Any) -> None:
        if self._positions is None and row != self._count:
            self._positions = array("I", range(self._count))
        if self._positions is not None:
            self._positions.append(row)
        self._count += 1
        kind = kind_of(value)
        if kind != self._kind and kind is not None:
            self._change_kind(kind, value)
        if self._numbers is not None:
            self._numbers.append(value)
        elif self._tokens is not None:
            self._add_text(self._tokens, value)

    def _add_text(self, tokens: Tokens, value: Any) -> None:
        if self._kind == STRING:
            tokens.add(value)
            return
        self._lengths.append(len(value))
        for member in value:
            tokens.add(member)

    def _change_kind(self, kind: str, value: Any) -> None:
        """A value of another kind than those before: ints and floats join, others make the field mixed."""
        self._kinds.add(kind)
        if not self._kind:
            self._start(kind)
        elif self._kind == INT and kind == FLOAT and self._numbers is not None:
            ints = np.frombuffer(self._numbers, np.int64)
            if holds_exactly(ints):
                self._kind, self._numbers = FLOAT, array("d", ints.astype(np.float64).tobytes())
            else:
                self._drop_values()
        elif self._kind != FLOAT or kind != INT or float(value) != value:
            self._drop_values()

    def _start(self, kind: str) -> None:
        self._kind = kind
        if kind in _TYPES:
            self._numbers = array(_TYPES[kind][0])
        elif kind != OTHER:
            self._tokens = Tokens(self._budget)

    def _drop_values(self) -> None:
        self._kind, self._numbers, self._tokens, self._lengths = MIXED, None, None, array("I")

    def finish(self, name: str, rows: int) -> Column:
        positions = None if self._positions is None else np.frombuffer(self._positions, np.uint32)
        if positions is None and self._count < rows:
            positions = np.arange(self._count, dtype=np.uint32)
        presence = Presence.of(rows, positions)
        if self._numbers is not None:
            values: NDArray[Any] = np.frombuffer(self._numbers, _TYPES[self._kind][1])
            return NumberColumn(name, self._kind, presence, values=presence.dense(values, positions))
        if self._tokens is None:
            return Column(name, self._kind, presence, tuple(kind for kind in SINGLE if kind in self._kinds))
        if self._kind == STRING:
            return _strings(name, presence, positions, self._tokens)
        lengths = np.frombuffer(self._lengths, np.uint32)
        return _lists(name, presence, presence.dense(lengths, positions), self._tokens)


def _strings(
    name: str, presence: Presence, positions: NDArray[np.uint32] | None, strings: Tokens
) -> StringColumn:
    tokens, dictionary, instants = strings.finish()
    tokens = presence.dense(tokens, positions)
    if dictionary is None and instants is not None:
        instants = presence.dense(instants, positions)
    return StringColumn(name, STRING, presence, tokens=tokens, dictionary=dictionary, instants=instants)


def _lists(name: str, presence: Presence, lengths: NDArray[Any], members: Tokens) -> ListColumn:
    tokens, dictionary, _ = members.finish()
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    postings = None if dictionary is None else Postings.invert(tokens, offsets, len(dictionary))
    return ListColumn(
        name,
        STRINGS,
        presence,
        tokens=tokens,
        dictionary=dictionary,
        offsets=offsets,
        postings=postings,
    )
