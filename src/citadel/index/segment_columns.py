"""The metadata columns of a segment, from its columns file or from its stored documents."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citadel.filter.columns import Column, Columns, build_column, facet, mask
from citadel.filter.tree import Filter, Scalar
from citadel.index.documents import DocumentStore
from citadel.index.manifest import SegmentRecord

Mask = NDArray[np.bool_]
_MAX_BUILT = 64  # columns per segment that are kept though no file has them


class SegmentColumns:
    """Looks up columns; one that no file has is built from the documents at first use.

    The latest ones are kept. Building is slow, and needed for segments of format 1 and for fields beyond
    the limit of a columns file.
    """

    def __init__(self, record: SegmentRecord, file: Columns | None, store: DocumentStore) -> None:
        self._record, self._file, self._store = record, file, store
        self._built: dict[str, Column | None] = {}
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
                while len(self._built) >= _MAX_BUILT:
                    del self._built[next(iter(self._built))]
                self._built[name] = build_column(name, self.stored(np.arange(self._record.documents)))
            return self._built[name]

    def stored(self, rows: NDArray[np.int64]) -> Iterator[dict[str, Any]]:
        """The metadata of some rows as they are stored, in this order."""
        return self._store.metadata(rows.tolist())

    def mask(self, filter: Filter) -> Mask:
        """Which rows match a filter [rows]; deleted ones too."""
        return mask(filter, self, self._record.documents, self.stored)

    def facet(self, name: str, allowed: Mask) -> list[tuple[Scalar, int]]:
        """The values of a field among the allowed rows, and how many rows have each."""
        column = self.column(name)
        return [] if column is None else facet(column, allowed, self.stored)

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
