"""Document texts: one SQLite file a segment, written once, opened read-only, every row with a CRC of its own."""

from __future__ import annotations

import codecs
import contextlib
import itertools
import json
import re
import sqlite3
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from citadel.errors import CitadelError, CorruptIndexError, InputError
from citadel.forks import no_fork
from citadel.index.checksum import crc32c
from citadel.index.container import FORMAT, DurableFile, FileRecord
from citadel.index.failures import disk_failure, read_failure
from citadel.index.storage import Storage
from citadel.types import Document

SCHEMA = (
    "CREATE TABLE citadel(index_id TEXT NOT NULL, file_id TEXT NOT NULL, format INTEGER NOT NULL)",
    "CREATE TABLE documents(number INTEGER PRIMARY KEY, id TEXT NOT NULL, title TEXT NOT NULL, text TEXT NOT NULL, "
    "metadata TEXT NOT NULL, crc INTEGER NOT NULL)",
)
_COLUMNS = "number, id, title, text, metadata, crc"
_COPY = 1 << 20
_ROWS_PER_INSERT = 256
# Limits per document, for the writer and the reader alike: a row can cost no more memory than its file plus 64 MB.
MAX_TEXT = 64_000_000  # bytes that id, title, text and metadata take while they are decoded
MAX_METADATA = 4 << 20  # bytes of JSON
MAX_METADATA_VALUES = 1 << 17  # each takes up to 200 bytes as a Python object
MAX_METADATA_DEPTH = 64
_BATCH = 128  # rows per query
_SHORT = 1 << 15  # bytes of a value that a batch may hold; a longer row is read alone
_PIECE = 1 << 20  # bytes decoded together
_LEAF, _SCHEMA_CELLS = 0x0D, len(SCHEMA)  # page 1 of our files: a leaf with one cell per table
_JSON_STEP = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"|([\[{])|([\]}])')

_decode = json.JSONDecoder().raw_decode  # half the time of json.loads, which looks for white space on both sides

Row = tuple[int, str, str, str, str, int]
Fields = tuple[str, str, str, dict[str, Any]]  # id, title, text, metadata


def metadata_json(document: Document) -> str:
    """A document's metadata as it is stored; refused at once when it is not JSON or the document is too large.

    >>> metadata_json(Document("d1", "", metadata={"year": 1905}))
    '{"year": 1905}'
    """
    text = _dumped(document) if document.metadata else "{}"
    if problem := _metadata_problem(text) or _size_problem(document, text):
        raise InputError(f"document {document.id!r}: {problem}; split it")
    return text


def _dumped(document: Document) -> str:
    try:
        return json.dumps(dict(document.metadata), ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(f"document {document.id!r}: the metadata cannot be written as JSON ({error})") from error


def _metadata_problem(text: str) -> str | None:
    """Which limit a document's metadata exceed; checked before they are parsed."""
    if len(text) < _SHORT and text.count("[") + text.count("{") <= MAX_METADATA_DEPTH:
        return None
    if len(text) > MAX_METADATA or (not text.isascii() and len(text.encode()) > MAX_METADATA):
        return f"its metadata have more than {MAX_METADATA >> 20} MiB"
    opened = text.count("[") + text.count("{")
    if opened + text.count(",") > MAX_METADATA_VALUES:
        return f"its metadata have more than {MAX_METADATA_VALUES:,} values"
    if opened > MAX_METADATA_DEPTH and _depth(text) > MAX_METADATA_DEPTH:
        return f"its metadata are nested deeper than {MAX_METADATA_DEPTH} levels"
    return None


def _depth(text: str) -> int:
    """The deepest level of a JSON text.

    >>> _depth('{"[": [1, {}]}')
    3
    """
    depth = deepest = 0
    for match in _JSON_STEP.finditer(text):
        depth += 1 if match[1] else -1 if match[2] else 0
        deepest = max(deepest, depth)
    return deepest


def _size_problem(document: Document, metadata: str) -> str | None:
    """Whether a document is too large to be read again."""
    parts = (document.id, document.title, document.text, metadata)
    if sum(map(len, parts)) <= MAX_TEXT // 8 or sum(map(_decoding_cost, parts)) <= MAX_TEXT:
        return None
    return _TOO_LARGE


_TOO_LARGE = f"its text takes more than {MAX_TEXT // 10**6} MB of memory to read"


def _decoding_cost(text: str) -> int:
    """`decoding_cost` of a text that is not encoded yet."""
    if text.isascii():
        return len(text)
    widest = max(text)
    return 2 * len(text) * (1 if widest < "\u0100" else 2 if widest < "\U00010000" else 4)


def decoding_cost(octets: bytes) -> int:
    """The bytes of memory that decoding this UTF-8 takes: in Python every character is as wide as the widest.

    Text that is not ASCII is decoded piece by piece and joined, so it is held twice.

    >>> decoding_cost(b"abc"), decoding_cost("abc\U0001f98a".encode())
    (3, 32)
    """
    if octets.isascii():
        return len(octets)
    values = np.frombuffer(octets, np.uint8)
    widest = int(values.max())
    letters = sum(int(np.count_nonzero((np.frombuffer(piece, np.uint8) & 0xC0) != 0x80)) for piece in _pieces(octets))
    return 2 * letters * (1 if widest < 0xC4 else 2 if widest < 0xF0 else 4)


def _decoded(octets: bytes) -> str:
    """UTF-8 as text; decoding a long one at once would set aside five bytes per byte."""
    if len(octets) <= _PIECE or octets.isascii():
        return octets.decode()
    return "".join(codecs.iterdecode(_pieces(octets), "utf-8"))


def _pieces(octets: bytes) -> Iterator[bytes]:
    return (octets[start : start + _PIECE] for start in range(0, len(octets), _PIECE))


def row_of(number: int, document: Document, metadata: str) -> Row:
    """A document as a row, with its CRC."""
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
    with no_fork:
        connection = sqlite3.connect(path, isolation_level=None)
    try:
        with no_fork:
            # No journal and no sync: a scratch file that is thrown away after any failure.
            for pragma in ("journal_mode=OFF", "synchronous=OFF", "cache_size=-4096", "temp_store=FILE"):
                connection.execute(f"PRAGMA {pragma}")
            connection.execute("BEGIN")
            for statement in SCHEMA:
                connection.execute(statement)
            connection.execute("INSERT INTO citadel VALUES (?, ?, ?)", (index_id, file_id, FORMAT))
        remaining = iter(rows)
        for first in remaining:  # some rows at a time, so that no fork waits long
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
        self.record, self._storage, self._lock = record, storage, threading.Lock()
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

    def _failure(self, section: str, error: Exception, again: Callable[[sqlite3.Connection], object]) -> CitadelError:
        """A failing disk is no damage: only bytes that were read and are wrong are.

        SQLite calls some reads that failed a malformed database, so the same is tried once more.
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
        """SQLite reads the whole schema at the first query, so its size is checked before."""
        if len(view) != self.record.length:
            raise self._corrupt("file", "its length differs from the manifest's")
        if len(view) < 512 or view[100] != _LEAF or int.from_bytes(view[103:105], "big") != _SCHEMA_CELLS:
            raise self._corrupt("schema", "the tables are not those of a citadel index")

    def _validate(self, connection: sqlite3.Connection) -> None:
        """Nothing but our two tables may be in the file: a trigger or view could run at every query."""
        connection.text_factory = bytes  # decoded one document at a time, after its checksum
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _SHORT)
        for pragma in ("trusted_schema=OFF", "cell_size_check=ON", "query_only=ON", "mmap_size=0", "cache_size=-512"):
            connection.execute(f"PRAGMA {pragma}")
        statements = {row[0] for row in connection.execute("SELECT sql FROM sqlite_master LIMIT 4")}
        if statements != {statement.encode() for statement in SCHEMA}:
            raise self._corrupt("schema", "the tables are not those of a citadel index")
        head = connection.execute("SELECT index_id, file_id, format FROM citadel LIMIT 2").fetchall()
        if head != [(self._index_id.encode(), self.record.name[5:-7].encode(), FORMAT)]:
            raise self._corrupt("citadel", "it belongs to another index or was renamed")
        last = connection.execute("SELECT max(number) FROM documents").fetchone()[0]
        if last != (self._documents - 1 if self._documents else None):
            raise self._corrupt("documents", f"its last document is {last}, {self._documents} are expected")

    def rows(self, numbers: Iterable[int]) -> Iterator[Row]:
        """The rows of these documents, in this order, each checked; a long one is in memory alone."""
        wanted = list(numbers)
        for start in range(0, len(wanted), _BATCH):
            part = wanted[start : start + _BATCH]
            batch = self._select(part, _SHORT)
            for number in part:
                if batch is None:
                    yield self._long_row(number)
                elif number in batch:
                    yield self._checked(batch[number])
                else:
                    raise self._corrupt("documents", f"document {number} is missing")

    def _long_row(self, number: int) -> Row:
        """A row that may be long, refused where it would take too much memory."""
        rows = self._select([number], MAX_TEXT)
        if rows == {}:
            raise self._corrupt("documents", f"document {number} is missing")
        parts = [part for part in rows[number][1:5] if isinstance(part, bytes)] if rows else []
        if rows is None or sum(map(decoding_cost, parts)) > MAX_TEXT:
            raise self._corrupt("documents", f"document {number} is too large: {_TOO_LARGE}")
        return self._checked(rows.pop(number))

    def _select(self, numbers: list[int], longest: int) -> dict[int, Any] | None:
        """Rows by number, their texts as bytes; None where a value has more than `longest` bytes."""
        query = f"SELECT {_COLUMNS} FROM documents WHERE number IN ({','.join('?' * len(numbers))})"

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

    def _checked(self, row: Any) -> Row:
        number, id, title, text, metadata, crc = row
        try:
            fits = crc == _row_crc(number, id, title, text, metadata)
        except TypeError:  # not all of them are texts
            fits = False
        if not fits:
            raise self._corrupt("documents", f"the checksum of document {number} does not match")
        try:
            return number, id.decode(), _decoded(title), _decoded(text), _decoded(metadata), crc
        except UnicodeDecodeError as error:
            raise self._corrupt("documents", f"document {number} is not UTF-8 ({error.reason})") from error

    def get(self, numbers: Iterable[int]) -> list[Document]:
        """The documents with these numbers, in this order."""
        return [Document(id, text, title, metadata) for id, title, text, metadata in self.fields(numbers)]

    def fields(self, numbers: Iterable[int]) -> list[Fields]:
        """The same as bare values, for those who make something else of them at once."""
        return [
            (id, title, text, self._metadata(id, metadata)) for _, id, title, text, metadata, _ in self.rows(numbers)
        ]

    def _metadata(self, id: str, text: str) -> dict[str, Any]:
        if text == "{}":
            return {}
        if problem := _metadata_problem(text):
            raise self._corrupt("documents", f"document {id!r} cannot be read: {problem}")
        try:
            metadata, end = _decode(text)
            if end != len(text):  # white space, or no JSON
                metadata = json.loads(text)
        except (ValueError, RecursionError):
            metadata = None
        if not isinstance(metadata, dict):
            raise self._corrupt("documents", f"the metadata of document {id!r} are no JSON object")
        return metadata

    def close(self) -> None:
        with no_fork:
            self._connection.close()

    def __del__(self) -> None:
        """A connection refers to itself through its cache: its descriptor would stay open until the collector runs."""
        if hasattr(self, "_connection"):
            self.close()
