"""Document texts: one SQLite file per segment, written once, opened read-only; every row has a CRC."""

from __future__ import annotations

import contextlib
import itertools
import json
import sqlite3
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from citadel.errors import CitadelError, CorruptIndexError
from citadel.forks import no_fork
from citadel.index.checksum import crc32c
from citadel.index.container import FORMAT, DurableFile, FileRecord
from citadel.index.document_limits import metadata_problem
from citadel.index.failures import disk_failure, read_failure
from citadel.index.long_rows import COLUMNS, RowReader, column_pieces, window
from citadel.index.storage import Storage
from citadel.types import Document

SCHEMA = (
    "CREATE TABLE citadel(index_id TEXT NOT NULL, file_id TEXT NOT NULL, format INTEGER NOT NULL)",
    "CREATE TABLE documents(number INTEGER PRIMARY KEY, id TEXT NOT NULL, title TEXT NOT NULL, "
    "text TEXT NOT NULL, metadata TEXT NOT NULL, crc INTEGER NOT NULL)",
)
_SELECT = "SELECT number, id, title, text, metadata, crc FROM documents WHERE number IN"
_COPY = 1 << 20
_ROWS_PER_INSERT = 256
_BATCH = 128  # rows per query
_SHORT = 1 << 15  # bytes of a value in a batch; if any is longer, each row is read by a query of its own
_MEDIUM = 1 << 20  # bytes of a value in such a query; a row with a longer one is read in pieces
_LEAF, _SCHEMA_CELLS = 0x0D, len(SCHEMA)  # page 1 of our files: a leaf with one cell per table

# Half the time of json.loads, which looks for white space on both sides.
_decode = json.JSONDecoder().raw_decode

Row = tuple[int, str, str, str, str, int]
Fields = tuple[str, str, str, dict[str, Any]]  # id, title, text, metadata


class DocumentPart(NamedTuple):
    """A document of which only a part of the text, and the beginning of a long title, was kept."""

    document: Document
    text_length: int  # characters of the whole text


def row_of(number: int, document: Document, metadata: str) -> Row:
    """Convert a document to a row with its CRC."""
    return _with_crc(number, document.id, document.title, document.text, metadata)


def _with_crc(number: int, id: str, title: str, text: str, metadata: str) -> Row:
    crc = _row_crc(number, id.encode(), title.encode(), text.encode(), metadata.encode())
    return number, id, title, text, metadata, crc


def _row_crc(number: int, id: bytes, title: bytes, text: bytes, metadata: bytes) -> int:
    if len(text) <= _SHORT:
        return crc32c(b"%d\0%b\0%b\0%b\0%b" % (number, id, title, text, metadata))
    before = crc32c(b"%d\0%b\0%b\0" % (number, id, title))
    return crc32c(metadata, crc32c(b"\0", crc32c(text, before)))  # a long text is not copied


def renumbered(row: Row, number: int) -> Row:
    """The same document under another number."""
    return _with_crc(number, *row[1:5])


@contextlib.contextmanager
def database_draft(storage: Storage) -> Iterator[Path]:
    """The path of a database to build in a scratch folder, before it is copied as part of the commit."""
    with storage.scratch() as folder:
        yield folder / "documents.sqlite"


def copy_database(storage: Storage, file_id: str, path: Path) -> FileRecord:
    """Copy a draft through the storage."""
    file = DurableFile(storage, f"docs-{file_id}.sqlite")
    with path.open("rb") as source:
        while piece := source.read(_COPY):
            file.write(piece)
    return file.finish()


def build_database(path: Path, index_id: str, file_id: str, rows: Iterable[Row]) -> None:
    """Write the documents of a segment into a draft."""
    with no_fork:
        connection = sqlite3.connect(path, isolation_level=None)
    try:
        with no_fork:
            # No journal, no sync: the scratch file is dropped after any failure.
            for pragma in ("journal_mode=OFF", "synchronous=OFF", "cache_size=-4096", "temp_store=FILE"):
                connection.execute(f"PRAGMA {pragma}")
            connection.execute("BEGIN")
            for statement in SCHEMA:
                connection.execute(statement)
            connection.execute("INSERT INTO citadel VALUES (?, ?, ?)", (index_id, file_id, FORMAT))
        remaining = iter(rows)
        for first in remaining:  # a few rows at a time: a fork waits until they are inserted
            part = itertools.chain([first], itertools.islice(remaining, _ROWS_PER_INSERT - 1))
            with no_fork:
                connection.executemany("INSERT INTO documents VALUES (?, ?, ?, ?, ?, ?)", part)
        with no_fork:
            connection.execute("COMMIT")
    finally:
        with no_fork:
            connection.close()


class DocumentStore:
    """The documents of one segment, by number."""

    def __init__(self, storage: Storage, record: FileRecord, index_id: str, documents: int) -> None:
        self.record, self._storage = record, storage
        self._lock = (
            threading.RLock()
        )  # reentrant: the garbage collector may end a read in pieces at any time
        self._index_id, self._documents = index_id, documents
        try:
            self._check_schema_page(storage.map(record.name))
            with no_fork:
                self._connection = storage.database(record.name)
                self._validate(self._connection)
        except FileNotFoundError as error:
            raise self._corrupt("file", "it is missing") from error
        except (sqlite3.Error, UnicodeDecodeError) as error:  # SQLite quotes damaged names in its messages
            if record.name not in storage.names():  # removed since it was mapped
                raise self._corrupt("file", "it is missing") from error
            raise self._failure("database", error, lambda _: None) from error

    def _corrupt(self, section: str, problem: str) -> CorruptIndexError:
        return CorruptIndexError(self.record.name, section, problem)

    def _failure(
        self, section: str, error: Exception, again: Callable[[sqlite3.Connection], object]
    ) -> CitadelError:
        """Tell a failing disk from damage, which is bytes that were read and are wrong.

        SQLite reports some failed reads as a malformed database, so the read is repeated once.
        """
        failure = read_failure(self.record.name, error)
        if failure is not None:
            return failure
        try:
            with no_fork, contextlib.closing(self._storage.database(self.record.name)) as connection:
                self._validate(connection)
                again(connection)
        except (sqlite3.Error, OSError, UnicodeDecodeError, CorruptIndexError) as second:
            return read_failure(self.record.name, second) or self._corrupt(section, f"SQLite says: {error}")
        return disk_failure(self.record.name, str(error))

    def _check_schema_page(self, view: memoryview) -> None:
        """Check the size of the schema before the first query, at which SQLite reads all of it."""
        if len(view) != self.record.length:
            raise self._corrupt("file", "its length differs from the manifest's")
        if len(view) < 512 or view[100] != _LEAF or int.from_bytes(view[103:105], "big") != _SCHEMA_CELLS:
            raise self._corrupt("schema", "the tables are not those of a citadel index")

    def _validate(self, connection: sqlite3.Connection) -> None:
        """Harden the connection and refuse other tables: a trigger or view could run at every query."""
        connection.text_factory = bytes  # decoded one document at a time, after its checksum
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _SHORT)
        for pragma in (
            "trusted_schema=OFF",
            "cell_size_check=ON",
            "query_only=ON",
            "mmap_size=0",
            "cache_size=-512",
        ):
            connection.execute(f"PRAGMA {pragma}")
        statements = {row[0] for row in connection.execute("SELECT sql FROM sqlite_master LIMIT 4")}
        if statements != {statement.encode() for statement in SCHEMA}:
            raise self._corrupt("schema", "the tables are not those of a citadel index")
        head = connection.execute("SELECT index_id, file_id, format FROM citadel LIMIT 2").fetchall()
        known = [(self._index_id.encode(), self.record.name[5:-7].encode(), n) for n in range(1, FORMAT + 1)]
        if len(head) != 1 or head[0] not in known:
            raise self._corrupt("citadel", "it belongs to another index or was renamed")
        last = connection.execute("SELECT max(number) FROM documents").fetchone()[0]
        if last != (self._documents - 1 if self._documents else None):
            raise self._corrupt("documents", f"its last document is {last}, {self._documents} are expected")

    def rows(self, numbers: Iterable[int]) -> Iterator[Row]:
        """Yield the rows of these documents in this order, each checked; a long one is in memory alone."""
        return self._rows(numbers, sys.maxsize)

    def _rows(self, numbers: Iterable[int], limit: int) -> Iterator[Row]:
        """Yield rows; of one that is read in pieces, keep only `limit` characters of title and text."""
        wanted = list(numbers)
        for start in range(0, len(wanted), _BATCH):
            part = wanted[start : start + _BATCH]
            batch = self._select(part, _SHORT)
            for number in part:
                yield self._row(number, 0, limit)[0] if batch is None else self._checked(number, batch)

    def _row(self, number: int, start: int, stop: int) -> tuple[Row, int]:
        """A row with characters start … stop − 1 of its text, and the length of the whole text."""
        rows = self._select([number], _MEDIUM)
        if rows is None:
            return self._long_row(number, start, stop)
        _, id, title, text, metadata, crc = self._checked(number, rows)
        return (number, id, title, text[start:stop], metadata, crc), len(text)

    def _long_row(self, number: int, start: int, stop: int) -> tuple[Row, int]:
        reader = self._reader(number)
        id, _ = window(reader.column("id"))
        title, _ = window(reader.column("title"), 0, stop - start)
        text, length = window(reader.column("text"), start, stop)
        metadata, _ = window(reader.column("metadata"))
        crc = self._stored_crc(number)
        reader.verify(crc)
        return (number, id, title, text, metadata, crc), length

    def _reader(self, number: int) -> RowReader:
        return RowReader(number, partial(self._column, number), partial(self._corrupt, "documents"))

    def _column(self, number: int, column: str) -> Iterator[bytes]:
        """Yield the bytes of a column in pieces."""

        def run(connection: sqlite3.Connection) -> None:
            for _ in column_pieces(connection, contextlib.nullcontext(), number, column):
                pass

        try:
            yield from column_pieces(self._connection, self._lock, number, column)
        except sqlite3.Error as error:
            raise self._failure("documents", error, run) from error

    def _stored_crc(self, number: int) -> Any:
        def run(connection: sqlite3.Connection) -> Any:
            return connection.execute("SELECT crc FROM documents WHERE number = ?", [number]).fetchone()[0]

        try:
            with no_fork, self._lock:
                return run(self._connection)
        except (sqlite3.Error, UnicodeDecodeError) as error:
            raise self._failure("documents", error, run) from error

    def _select(self, numbers: list[int], longest: int) -> dict[int, Any] | None:
        """Rows by number, their texts as bytes; None where a value has more than `longest` bytes."""
        query = f"{_SELECT} ({','.join('?' * len(numbers))})"

        def run(connection: sqlite3.Connection) -> list[Any]:
            if longest == _SHORT:
                return connection.execute(query, numbers).fetchall()
            connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, longest)
            try:
                return connection.execute(query, numbers).fetchall()
            finally:
                connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _SHORT)

        try:
            with no_fork, self._lock:
                return {row[0]: row for row in run(self._connection)}
        except (sqlite3.Error, UnicodeDecodeError) as error:
            if getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_TOOBIG:
                return None
            raise self._failure("documents", error, run) from error

    def _checked(self, number: int, rows: dict[int, Any]) -> Row:
        """The row of a document, decoded after its checksum was checked."""
        if number not in rows:
            raise self._corrupt("documents", f"document {number} is missing")
        _, id, title, text, metadata, crc = rows[number]
        try:
            matches = crc == _row_crc(number, id, title, text, metadata)
        except TypeError:  # a value is neither text nor blob
            matches = False
        if not matches:
            raise self._corrupt("documents", f"the checksum of document {number} does not match")
        try:
            return number, id.decode(), title.decode(), text.decode(), metadata.decode(), crc
        except UnicodeDecodeError as error:
            raise self._corrupt("documents", f"document {number} is not UTF-8 ({error.reason})") from error

    def get(self, numbers: Iterable[int]) -> list[Document]:
        """The documents with these numbers, in this order."""
        return [Document(id, text, title, metadata) for id, title, text, metadata in self.fields(numbers)]

    def fields(self, numbers: Iterable[int], limit: int = sys.maxsize) -> list[Fields]:
        """Their id, title, text and metadata; title and text are cut after `limit` characters."""
        return [
            (id, title[:limit], text[:limit], self._metadata(id, metadata))
            for _, id, title, text, metadata, _ in self._rows(numbers, limit)
        ]

    def metadata(self, numbers: Iterable[int]) -> Iterator[dict[str, Any]]:
        """The metadata of these documents, in this order."""
        return (self._metadata(row[1], row[4]) for row in self.rows(numbers))

    def part(self, number: int, start: int, stop: int) -> DocumentPart:
        """Characters start … stop − 1 of a document's text, and as many of its title."""
        (_, id, title, text, metadata, _), length = self._row(number, start, stop)
        document = Document(id, text, title[: stop - start], self._metadata(id, metadata))
        return DocumentPart(document, length)

    def pieces(self, number: int) -> Iterator[tuple[str, str]]:
        """Yield a document as pairs of column and piece of text; damage is raised after the last one."""
        rows = self._select([number], _MEDIUM)
        if rows is not None:
            yield from zip(COLUMNS, self._checked(number, rows)[1:5], strict=True)
            return
        reader = self._reader(number)
        for column in COLUMNS:
            for piece in reader.column(column):
                yield column, piece
        reader.verify(self._stored_crc(number))

    def _metadata(self, id: str, text: str) -> dict[str, Any]:
        if text == "{}":
            return {}
        if problem := metadata_problem(text):
            raise self._corrupt("documents", f"document {id!r} cannot be read: {problem}")
        try:
            metadata, end = _decode(text)
            if end != len(text):  # white space, or not JSON
                metadata = json.loads(text)
        except (ValueError, RecursionError):
            metadata = None
        if not isinstance(metadata, dict):
            raise self._corrupt("documents", f"the metadata of document {id!r} is not a JSON object")
        return metadata

    def close(self) -> None:
        with no_fork:
            self._connection.close()

    def __del__(self, guard: contextlib.AbstractContextManager[Any] = no_fork) -> None:
        """Close now: the connection's reference cycle would keep its descriptor until a collection.

        The guard is bound as a default, because globals may be None while the interpreter shuts down.
        """
        if hasattr(self, "_connection"):
            with guard:
                self._connection.close()
