"""Hostile document databases: other tables, views, triggers and invalid rows."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

import citadel
from citadel.index.checksum import crc32c
from citadel.index.container import FileRecord
from tests.corrupt import rewrite
from tests.corrupt.seeds import generator, often
from tests.corrupt.test_contents import cheap_copy
from tests.corrupt.visitor import complaint, visit

Whole = Callable[[str], Path]
KIND = "bm25"

REFUSED = {
    "another table": "CREATE TABLE more(x)",
    "a view": "CREATE VIEW seen AS SELECT * FROM documents",
    "a trigger": "CREATE TRIGGER run AFTER INSERT ON documents BEGIN DELETE FROM documents; END",
    "an index": "CREATE INDEX fast ON documents(id)",
    "a virtual table": "CREATE VIRTUAL TABLE words USING fts5(text)",
    "a view instead of the table": "ALTER TABLE documents RENAME TO hidden; "
    "CREATE VIEW documents AS SELECT * FROM hidden",
    "a view that never ends": "ALTER TABLE citadel RENAME TO hidden; CREATE VIEW citadel AS "
    "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) "
    "SELECT x AS index_id, x AS file_id, x AS format FROM n",
    "another column": "ALTER TABLE documents ADD COLUMN more TEXT",
    "a column renamed": "ALTER TABLE documents RENAME COLUMN text TO body",
    "no head": "DELETE FROM citadel",
    "two heads": "INSERT INTO citadel SELECT * FROM citadel",
    "another index id": "UPDATE citadel SET index_id = 'x'",
    "another format": "UPDATE citadel SET format = 99",
    "a head of a billion letters": "UPDATE citadel SET index_id = zeroblob(1000000)",
    "no documents": "DELETE FROM documents",
    "one document less": "DELETE FROM documents WHERE number = 17",
    "one document more": "INSERT INTO documents VALUES (18, 'x', '', '', '{}', 0)",
    "a number far away": "INSERT INTO documents VALUES (9223372036854775807, 'x', '', '', '{}', 0)",
}
FOUND_WHEN_READ = {
    "a hole": "DELETE FROM documents WHERE number = 5",
    "a text changed": "UPDATE documents SET text = 'another' WHERE number = 5",
    "ids exchanged": "UPDATE documents SET id = 'd1' WHERE number = 5",
    "a number instead of a text": "UPDATE documents SET text = 7 WHERE number = 5",
    "a blob instead of a text": "UPDATE documents SET text = x'ff00' WHERE number = 5",
    "text that is not UTF-8": "UPDATE documents SET text = CAST(x'ffff' AS TEXT) WHERE number = 5",
    "a checksum that is text": "UPDATE documents SET crc = 'crc' WHERE number = 5",
    "a huge row": "UPDATE documents SET text = zeroblob(30000000) WHERE number = 5",
}


def changed(source: Path, folder: Path, script: str) -> Path:
    """A copy of an index whose first document database is changed by SQL."""
    path = folder / min(source.glob("docs-*")).name
    cheap_copy(source, folder, path.name)
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode=OFF")
        connection.executescript(script)
    data = path.read_bytes()
    rewrite.enter(folder, FileRecord(path.name, len(data), crc32c(data)))
    return folder


@pytest.mark.parametrize("case", REFUSED)
def test_hostile_schema_is_refused_on_opening(case: str, whole: Whole, tmp_path: Path) -> None:
    folder = changed(whole(KIND), tmp_path / "copy", REFUSED[case])
    with pytest.raises(citadel.CorruptIndexError) as caught:
        citadel.Index.open(folder)
    assert caught.value.file == min(folder.glob("docs-*")).name


def test_hostile_rows_are_refused_on_reading(whole: Whole, tmp_path: Path) -> None:
    """In a process that may allocate 64 MiB."""
    source = whole(KIND)
    folders = {
        str(changed(source, tmp_path / str(n), script)): case
        for n, (case, script) in enumerate(FOUND_WHEN_READ.items())
    }
    visits = visit(map(Path, folders), KIND, "native", source)
    assert {folders[result.folder]: complaint(result) for result in visits if complaint(result)} == {}
    assert [folders[result.folder] for result in visits if result.error is None] == []


@pytest.mark.parametrize("metadata", ["{", "[]", "7", "", "null", '{"a": NaN}' * 2, "[" * 100_000])
def test_metadata_that_are_not_an_object_are_refused(metadata: str, whole: Whole, tmp_path: Path) -> None:
    source = whole(KIND)
    folder = changed(source, tmp_path / "copy", "")
    path = min(folder.glob("docs-*"))
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        row = connection.execute("SELECT number, id, title, text FROM documents WHERE number = 5").fetchone()
        crc = crc32c("\0".join([*map(str, row), metadata]).encode())
        connection.execute("UPDATE documents SET metadata = ?, crc = ? WHERE number = 5", (metadata, crc))
    data = path.read_bytes()
    rewrite.enter(folder, FileRecord(path.name, len(data), crc32c(data)))
    with pytest.raises(citadel.CorruptIndexError) as caught:
        citadel.Index.open(folder).get(row[1])
    assert (caught.value.file, caught.value.section) == (path.name, "documents")


def test_random_page_damage_with_valid_checksum(whole: Whole, tmp_path: Path) -> None:
    """Random bytes change, half of them in page headers, which have lengths and pointers."""
    random, source, folders = generator("pages"), whole(KIND), []
    path = min(source.glob("docs-*"))
    for number in range(often(150, 400)):
        folder = cheap_copy(source, tmp_path / str(number), path.name)
        data = bytearray(path.read_bytes())
        for _ in range(random.choice([1, 3, 30])):
            page = random.randrange(len(data) // 4096) * 4096
            position = page + random.randrange(120 if random.random() < 0.5 else 4096)
            data[position] = random.choice([0, 1, 127, 128, 255, random.randrange(256)])
        (folder / path.name).write_bytes(data)
        rewrite.enter(folder, FileRecord(path.name, len(data), crc32c(bytes(data))))
        folders.append(folder)
    visits = visit(folders, KIND, "native", source)
    assert [(result.folder, complaint(result)) for result in visits if complaint(result)] == []
    assert sum(result.error is not None for result in visits) > len(visits) // 3


def test_row_that_claims_two_gigabytes(whole: Whole, tmp_path: Path) -> None:
    """SQLite must not trust a cell length beyond the file."""
    source = whole(KIND)
    path = min(source.glob("docs-*"))
    data = path.read_bytes()
    starts = [
        position
        for position in range(len(data) - 9)
        if data[position + 2 : position + 4] in (b"\x07\x00", b"\x08\x00")
    ]
    assert starts
    folders = []
    for number, position in enumerate(starts[:20]):
        folder = cheap_copy(source, tmp_path / str(number), path.name)
        claimed = data[:position] + b"\x87\xff\xff\xff\x7f" + data[position + 5 :]
        (folder / path.name).write_bytes(claimed)
        rewrite.enter(folder, FileRecord(path.name, len(claimed), crc32c(claimed)))
        folders.append(folder)
    visits = visit(folders, KIND, "native", source)
    assert [(result.folder, complaint(result)) for result in visits if complaint(result)] == []
