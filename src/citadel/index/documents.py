"""Document texts: one SQLite file a segment, written once, opened read-only, every row with a CRC of its own."""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from citadel.errors import CorruptIndexError, InputError
from citadel.index.checksum import crc32c
from citadel.index.format import FORMAT, DurableFile, FileRecord
from citadel.index.storage import Storage
from citadel.types import Document

SCHEMA = (
    "CREATE TABLE citadel(index_id TEXT NOT NULL, file_id TEXT NOT NULL, format INTEGER NOT NULL)",
    "CREATE TABLE documents(number INTEGER PRIMARY KEY, id TEXT NOT NULL, title TEXT NOT NULL, text TEXT NOT NULL, "
    "metadata TEXT NOT NULL, crc INTEGER NOT NULL)",
)
_COLUMNS = "number, id, title, text, metadata, crc"
_COPY = 1 << 20
_VARIABLES = 500  # numbers asked for in one query; SQLite allows 999 at least

_decode = json.JSONDecoder().raw_decode  # half the time of json.loads, which looks for white space on both sides

Row = tuple[int, str, str, str, str, int]
Fields = tuple[str, str, str, dict[str, Any]]  # id, title, text, metadata


def metadata_json(document: Document) -> str:
    """A document's metadata as it is stored; refused at once when it is not JSON.

    >>> metadata_json(Document("d1", "", metadata={"year": 1905}))
    '{"year": 1905}'
    """
    if not document.metadata:
        return "{}"
    try:
        return json.dumps(dict(document.metadata), ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(f"document {document.id!r}: the metadata cannot be written as JSON ({error})") from error


def row_of(number: int, document: Document, metadata: str) -> Row:
    """A document as a row, with its CRC."""
    return _with_crc(number, document.id, document.title, document.text, metadata)


def _with_crc(number: int, id: str, title: str, text: str, metadata: str) -> Row:
    return number, id, title, text, metadata, _row_crc(number, id, title, text, metadata)


def _row_crc(number: int, *texts: str) -> int:
    return crc32c("\0".join((str(number), *texts)).encode())


def renumbered(row: Row, number: int) -> Row:
    """The same document under another number."""
    return _with_crc(number, *row[1:5])


def write_documents(storage: Storage, index_id: str, file_id: str, rows: Iterable[Row]) -> FileRecord:
    """Build the database in a scratch folder, then copy it through the storage so that it shares the commit."""
    with storage.scratch() as folder:
        path = folder / "documents.sqlite"
        _build(path, index_id, file_id, rows)
        file = DurableFile(storage, f"docs-{file_id}.sqlite")
        with path.open("rb") as source:
            while piece := source.read(_COPY):
                file.write(piece)
        return file.finish()


def _build(path: Path, index_id: str, file_id: str, rows: Iterable[Row]) -> None:
    connection = sqlite3.connect(path, isolation_level=None)
    try:
        # No journal and no sync: a scratch file that is thrown away after any failure.
        for pragma in ("journal_mode=OFF", "synchronous=OFF", "cache_size=-4096", "temp_store=FILE"):
            connection.execute(f"PRAGMA {pragma}")
        connection.execute("BEGIN")
        for statement in SCHEMA:
            connection.execute(statement)
        connection.execute("INSERT INTO citadel VALUES (?, ?, ?)", (index_id, file_id, FORMAT))
        connection.executemany("INSERT INTO documents VALUES (?, ?, ?, ?, ?, ?)", rows)
        connection.execute("COMMIT")
    finally:
        connection.close()


class DocumentStore:
    """The documents of one segment, by number."""

    def __init__(self, storage: Storage, record: FileRecord, index_id: str, documents: int) -> None:
        self.record, self._lock = record, threading.Lock()
        try:
            if len(storage.map(record.name)) != record.length:
                raise self._corrupt("file", "its length differs from the manifest's")
            self._connection = storage.database(record.name)
            self._validate(index_id, documents)
        except FileNotFoundError as error:
            raise self._corrupt("file", "it is missing") from error
        except (sqlite3.Error, UnicodeDecodeError) as error:
            raise self._corrupt("database", f"SQLite says: {error}") from error

    def _corrupt(self, section: str, problem: str) -> CorruptIndexError:
        return CorruptIndexError(self.record.name, section, problem)

    def _validate(self, index_id: str, documents: int) -> None:
        """Nothing but our two tables may be in the file: a trigger or view could run at every query."""
        for pragma in ("trusted_schema=OFF", "cell_size_check=ON", "query_only=ON", "mmap_size=0", "cache_size=-512"):
            self._connection.execute(f"PRAGMA {pragma}")
        found = {row[0] for row in self._connection.execute("SELECT sql FROM sqlite_master LIMIT 4")}
        if found != set(SCHEMA):
            raise self._corrupt("schema", "the tables are not those of a citadel index")
        head = self._connection.execute("SELECT index_id, file_id, format FROM citadel LIMIT 2").fetchall()
        if head != [(index_id, self.record.name[5:-7], FORMAT)]:
            raise self._corrupt("citadel", "it belongs to another index or was renamed")
        last = self._connection.execute("SELECT max(number) FROM documents").fetchone()[0]
        if last != (documents - 1 if documents else None):
            raise self._corrupt("documents", f"its last document is {last}, {documents} are expected")

    def rows(self, numbers: Iterable[int]) -> Iterator[Row]:
        """The rows of these documents, in this order, each checked."""
        wanted = list(numbers)
        for start in range(0, len(wanted), _VARIABLES):
            part = wanted[start : start + _VARIABLES]
            found = {row[0]: row for row in self._select(part)}
            for number in part:
                if number not in found:
                    raise self._corrupt("documents", f"document {number} is missing")
                yield self._checked(found[number])

    def rows_in_order(self, numbers: Sequence[int]) -> Iterator[Row]:
        """The same for ascending numbers, with one row in memory at a time."""
        for start in range(0, len(numbers), _VARIABLES):
            part = numbers[start : start + _VARIABLES]
            found = self._in_order(part)
            for number in part:
                row = next(found, None)
                if row is None or row[0] != number:
                    raise self._corrupt("documents", f"document {number} is missing")
                yield self._checked(row)

    def _in_order(self, numbers: Sequence[int]) -> Iterator[Any]:
        marks = ",".join("?" * len(numbers))
        query = f"SELECT {_COLUMNS} FROM documents WHERE number IN ({marks}) ORDER BY number"
        try:
            with self._lock:
                cursor = self._connection.execute(query, numbers)
            while row := self._next(cursor):
                yield row
        except (sqlite3.Error, UnicodeDecodeError) as error:
            raise self._corrupt("documents", f"SQLite says: {error}") from error

    def _next(self, cursor: sqlite3.Cursor) -> Any:
        with self._lock:
            return cursor.fetchone()

    def _select(self, numbers: list[int]) -> list[Any]:
        marks = ",".join("?" * len(numbers))
        try:
            with self._lock:
                return self._connection.execute(
                    f"SELECT {_COLUMNS} FROM documents WHERE number IN ({marks})", numbers
                ).fetchall()
        except (sqlite3.Error, UnicodeDecodeError) as error:
            raise self._corrupt("documents", f"SQLite says: {error}") from error

    def _checked(self, row: Any) -> Row:
        number, id, title, text, metadata, crc = row
        try:
            fits = crc == _row_crc(number, id, title, text, metadata)
        except TypeError:  # not all of them are texts
            fits = False
        if not fits:
            raise self._corrupt("documents", f"the checksum of document {number} does not match")
        return row  # type: ignore[no-any-return]

    def get(self, numbers: Iterable[int]) -> list[Document]:
        """The documents with these numbers, in this order."""
        return [Document(id, text, title, metadata) for id, title, text, metadata in self.fields(numbers)]

    def fields(self, numbers: Iterable[int]) -> list[Fields]:
        """The same as bare values, for those who make something else of them at once."""
        return [
            (id, title, text, self._metadata(id, metadata)) for _, id, title, text, metadata, _ in self.rows(numbers)
        ]

    def _metadata(self, id: str, text: str) -> dict[str, Any]:
        try:
            found, end = _decode(text)
            if end != len(text):  # white space, or no JSON
                found = json.loads(text)
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            raise self._corrupt("documents", f"the metadata of document {id!r} are no JSON object")
        return found

    def close(self) -> None:
        self._connection.close()

    def __del__(self) -> None:
        """A connection refers to itself through its cache: its descriptor would stay open until the collector runs."""
        if hasattr(self, "_connection"):
            self.close()
