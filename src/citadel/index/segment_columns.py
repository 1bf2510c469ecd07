"""The metadata columns of a segment, from its columns file or from its stored documents."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from citadel.errors import Cancelled
from citadel.filter.columns import Column, Columns, build_column, facet, mask
from citadel.filter.fields import FieldKinds, field_kinds
from citadel.filter.tree import Filter, Scalar
from citadel.index.documents import DocumentStore
from citadel.index.manifest import SegmentRecord

if TYPE_CHECKING:
    from citadel._native import Cancel

Mask = NDArray[np.bool_]


class SegmentColumns:
    """Looks up columns; one that no file has is built from the documents at first use, and kept.

    That is slow, and needed for segments of format 1 and for fields beyond the limit of a columns file.
    """

    def __init__(self, record: SegmentRecord, file: Columns | None, store: DocumentStore) -> None:
        self._record, self._file, self._store = record, file, store
        self._built: dict[str, Column | None] = {}
        self._kinds: dict[str, FieldKinds] | None = None  # of a segment without a columns file
        self._lock = threading.Lock()

    @property
    def names(self) -> tuple[str, ...] | None:
        """The fields that have a column; None for a segment without a columns file."""
        if self._file is None:
            return () if self._record.has_columns else None
        return self._file.names

    def column(self, name: str) -> Column | None:
        """The column of a field; None where no row has it."""
        if self._file is None and self._record.has_columns:
            return None
        if self._file is not None and ((column := self._file.column(name)) or self._file.has_all):
            return column
        with self._lock:
            if name not in self._built:
                self._built[name] = build_column(name, self.stored(np.arange(self._record.documents)))
            return self._built[name]

    def stored(self, rows: NDArray[np.int64]) -> Iterator[dict[str, Any]]:
        """The metadata of some rows as they are stored, in this order."""
        return self._store.metadata(rows.tolist())

    def mask(self, filter: Filter, cancel: Cancel | None = None) -> Mask:
        """Which rows match a filter [rows]; deleted ones too."""
        columns = self.until(cancel)
        return mask(filter, columns, self._record.documents, columns.stored)

    def facet(self, name: str, allowed: Mask, cancel: Cancel | None = None) -> list[tuple[Scalar, int]]:
        """The values of a field among the allowed rows, and how many rows have each."""
        columns = self.until(cancel)
        column = columns.column(name)
        return [] if column is None else facet(column, allowed, columns.stored)

    def kinds(self, cancel: Cancel | None = None) -> dict[str, FieldKinds]:
        """The fields of the segment and what they hold, up to the limit of a columns file.

        Without a columns file the stored documents are read once.
        """
        if self._file is not None:
            return {name: FieldKinds(*self._file.kinds(name)) for name in self._file.names}
        if self._kinds is None:
            rows = np.arange(0 if self._record.has_columns else self._record.documents)
            self._kinds = field_kinds(self.until(cancel).stored(rows))
        return self._kinds

    def until(self, cancel: Cancel | None) -> SegmentColumns | CancellableColumns:
        """The same columns for a request that may be cancelled."""
        return self if cancel is None else CancellableColumns(self, cancel)

    def equals(self, built: Columns) -> bool:
        """Whether the file has the same bytes as columns built from the documents."""
        if self._file is None:
            return not built.names
        (fields, pieces), (own, parts) = built.parts(), self._file.parts()
        return fields == own and all(bytes(a) == bytes(b) for a, b in zip(pieces, parts, strict=True))

    def check(self) -> None:
        """Read and check every column of the file."""
        if self._file is not None:
            self._file.check()


class CancellableColumns:
    """Columns that stop a request when it is cancelled: before each column and each stored row.

    Building a column from documents is not interrupted, because the next request can use it.
    """

    def __init__(self, columns: SegmentColumns, cancel: Cancel) -> None:
        self._columns, self._cancel = columns, cancel

    def column(self, name: str) -> Column | None:
        self._check()
        return self._columns.column(name)

    def stored(self, rows: NDArray[np.int64]) -> Iterator[dict[str, Any]]:
        for metadata in self._columns.stored(rows):
            self._check()
            yield metadata

    def _check(self) -> None:
        if self._cancel.is_set():
            raise Cancelled("the request was cancelled")
