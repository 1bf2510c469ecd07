"""Hostile headers, tables and footers with valid checksums."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import citadel
from citadel.index.checksum import crc32c
from citadel.index.container import FileRecord
from tests.corrupt import indexes, rewrite
from tests.corrupt.seeds import generator, often
from tests.corrupt.test_contents import cheap_copy
from tests.corrupt.visitor import complaint, visit
from tests.index.stranger import File

Whole = Callable[[str], Path]
ENTRY = struct.Struct("<I4xQQQ")
HUGE = [0, 1, 63, 64, 1 << 20, (1 << 32) - 1, 1 << 32, (1 << 63) - 1, 1 << 63, (1 << 64) - 64, (1 << 64) - 1]


def sealed(data: bytes, table: bytes, offset: int, length: int | None = None) -> bytes:
    """A file with the same sections and another table."""
    footer = struct.pack("<QQI", offset, len(table) if length is None else length, crc32c(table))
    return data + table + footer + struct.pack("<I", crc32c(footer)) + b"LEDATIC\0"


def with_count(data: bytes, count: int) -> bytes:
    header = data[:48] + struct.pack("<I", count) + data[52:60]
    return header + struct.pack("<I", crc32c(header)) + data[64:]


def hostile_entries(file: File) -> Iterator[tuple[str, list[tuple[int, ...]]]]:
    table = file.data[file.table_offset :]
    entries = [ENTRY.unpack_from(table, 32 * i) for i in range(file.count)]
    for row in (0, file.count // 2, file.count - 1):
        for column in (1, 2, 3):
            for value in HUGE:
                changed = [list(entry) for entry in entries]
                changed[row][column] = value
                yield f"row {row}, column {column}, {value}", [tuple(entry) for entry in changed]
    yield "all at one offset", [(kind, 64, 64, 0) for kind, *_ in entries]
    yield "all over the file", [(kind, 64, file.table_offset - 64, 0) for kind, *_ in entries]
    yield "all of one kind", [(1, *entry[1:]) for entry in entries]
    yield "unknown kinds", [(77, *entry[1:]) for entry in entries]
    yield "in reverse", entries[::-1]


def hostile_files(path: Path) -> Iterator[tuple[str, bytes]]:
    file = File(path)
    body, table = file.data[: file.table_offset], file.data[file.table_offset : -32]
    crcs = table[32 * file.count :]
    for case, entries in hostile_entries(file):
        yield case, sealed(body, b"".join(ENTRY.pack(*entry) for entry in entries) + crcs, len(body))
    for offset in HUGE:
        yield f"table at {offset}", sealed(body, table, offset)
        yield f"table of {offset} bytes", sealed(body, table, len(body), offset)
        yield (
            f"table at {offset} up to the footer",
            sealed(body, table, offset, (len(body) + len(table) - offset) % 2**64),
        )
    for count in (0, 1, file.count - 1, file.count + 1, 32, 33, 1 << 16, (1 << 32) - 1):
        yield f"{count} sections", with_count(file.data, count)
    yield "no checksums", sealed(body, table[: 32 * file.count], len(body))


@pytest.mark.parametrize(
    ("kind", "prefix"),
    [("int8", "seg-"), ("bm25", "seg-"), ("bm25", "del-"), ("pq2", "codebook-"), ("int8", "cols-")],
)
def test_hostile_tables_are_refused(kind: str, prefix: str, whole: Whole, tmp_path: Path) -> None:
    source, names = whole(kind), {}
    path = min(source.glob(f"{prefix}*"))
    for number, (case, data) in enumerate(hostile_files(path)):
        folder = cheap_copy(source, tmp_path / str(number), path.name)
        (folder / path.name).write_bytes(data)
        rewrite.enter(folder, FileRecord(path.name, len(data), crc32c(data)))
        names[str(folder)] = case
    visits = visit(map(Path, names), kind, "native", source)
    assert {names[result.folder]: complaint(result) for result in visits if complaint(result)} == {}
    assert sum(result.error is not None for result in visits) > len(visits) // 2 > 40


def test_random_files_with_valid_checksums(whole: Whole, tmp_path: Path) -> None:
    """Only the manifest's record of these files is correct."""
    random, source = generator("random bytes"), whole("int8")
    path = min(source.glob("seg-*"))
    folder = cheap_copy(source, tmp_path / "copy", path.name)
    for _ in range(often(100, 400)):
        data = random.randbytes(random.choice([0, 1, 64, 95, 96, 97, 500]))
        (folder / path.name).write_bytes(data)
        rewrite.enter(folder, FileRecord(path.name, len(data), crc32c(data)))
        with pytest.raises(citadel.CorruptIndexError) as caught:
            indexes.ask(folder, "int8")
        assert caught.value.file == path.name
