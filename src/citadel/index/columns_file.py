"""The metadata columns of a segment as a file: written once, read column by column."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from citadel.filter.columns import Columns, ColumnsBuilder
from citadel.index.container import CitFile, CitWriter, FileRecord
from citadel.index.documents import Row, build_database, copy_database, database_draft
from citadel.index.storage import Storage

MAX_FIELDS = 1 << 20  # bytes of JSON


class DocumentsDraft:
    """The document database of a segment and the columns of its metadata, before they are durable."""

    def __init__(self, path: Path, index_id: str, file_id: str, rows: Iterable[Row]) -> None:
        self._path, self._index_id, self._file_id, self._rows = path, index_id, file_id, rows
        self._columns = ColumnsBuilder()

    def build(self) -> None:
        """Read the rows; changes nothing but the draft."""
        build_database(self._path, self._index_id, self._file_id, self._watched())

    def _watched(self) -> Iterator[Row]:
        for row in self._rows:
            self._columns.add(None if row[4] == "{}" else json.loads(row[4]))
            yield row

    def write(self, storage: Storage) -> tuple[FileRecord, FileRecord | None]:
        """Write the database and, if any document has metadata, the columns."""
        documents = copy_database(storage, self._file_id, self._path)
        columns = self._columns.finish()
        if not columns.names:
            return documents, None
        return documents, write_columns(storage, self._index_id, self._file_id, columns)


def write_documents_and_columns(
    storage: Storage, index_id: str, file_id: str, rows: Iterable[Row]
) -> tuple[FileRecord, FileRecord | None]:
    """Write the documents of a segment and, if any has metadata, their columns."""
    with database_draft(storage) as path:
        draft = DocumentsDraft(path, index_id, file_id, rows)
        draft.build()
        return draft.write(storage)


def write_columns(storage: Storage, index_id: str, file_id: str, columns: Columns) -> FileRecord:
    """Write the columns of one segment."""
    fields, arrays = columns.parts()
    writer = CitWriter(storage, "columns", index_id, file_id, sections=2)
    writer.section("COLUMN_FIELDS", fields)
    writer.stream("COLUMN_DATA", arrays)
    return writer.finish()


def read_columns(storage: Storage, record: FileRecord, index_id: str, rows: int) -> Columns:
    """Open the columns of a segment with so many rows; each is read and checked at first use."""
    file = CitFile(storage, record, "columns", index_id)
    fields, data = file["COLUMN_FIELDS"], file["COLUMN_DATA"]
    head = fields.json(MAX_FIELDS)

    def read(start: int, stop: int) -> NDArray[np.uint8]:
        return data.array(np.uint8, start, stop)

    return Columns.from_parts(head, read, len(data.data), rows, fields.corrupt, file.require_whole)
