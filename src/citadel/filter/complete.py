"""Columns of a segment whose file lacks some or all: the others are built from the stored documents."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from citadel.filter.build import build_columns
from citadel.filter.column import Column
from citadel.filter.layout import Columns


class CompleteColumns:
    """Looks a column up in the segment's file, or reads it from the documents once and keeps it.

    `columns` is None for a segment without a file; `documents` gives the metadata of all rows.

    >>> columns = CompleteColumns(None, lambda: [{"year": 1905}, {}])
    >>> columns.column("year").kind, columns.column("lang")
    ('int', None)
    """

    def __init__(self, columns: Columns | None, documents: Callable[[], Iterable[Mapping[str, Any]]]) -> None:
        self._columns, self._documents = columns, documents
        self._built: dict[str, Column | None] = {}

    def column(self, name: str) -> Column | None:
        """The column of a field; None where no row has it."""
        found = None if self._columns is None else self._columns.column(name)
        if found is not None or (self._columns is not None and self._columns.has_all):
            return found
        if name not in self._built:
            self.prepare([name])
        return self._built[name]

    def prepare(self, names: Collection[str]) -> None:
        """Build all of these columns that are needed, in one pass over the documents."""
        if self._columns is not None and self._columns.has_all:
            return
        known = set(self._built) | set(() if self._columns is None else self._columns.names)
        missing = sorted(set(names) - known)
        if missing:
            built = build_columns(missing, self._documents())
            self._built.update({name: built.column(name) for name in missing})
