"""Columns in a file: the same after a round trip, and a typed error or the same answers after any damage."""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from citadel.errors import CitadelError, CorruptIndexError
from citadel.filter.columns import Columns, ColumnsBuilder, ColumnsError, facet, mask
from citadel.filter.parse import parse_filter
from citadel.index.columns_file import read_columns, write_columns
from citadel.index.container import CitWriter, FileRecord
from citadel.index.storage import FolderStorage
from tests.filter.worlds import BIG, reader, small_dictionaries
from tests.support.disk import MemoryDisk

INDEX_ID, FILE_ID = "ab" * 16, "cd" * 16
ROWS: list[dict[str, Any]] = [
    {"year": 1905, "price": 1.5, "open": True, "lang": "de", "tags": ["a", "b"], "day": "1905-06-30"},
    {"year": BIG + 1, "price": 2, "lang": "en", "tags": [], "url": "x://1", "rare": 7},
    {"open": False, "lang": "en", "tags": ["b"], "day": "1905-09-27", "url": "x://2", "mixed": 1},
    {"year": -3, "lang": "é", "tags": ["c", "c"], "url": "x://3", "mixed": "a", "nested": {"a": 1}},
    {"year": 0, "price": -0.5, "lang": "en", "open": True, "url": "x://4"},
]
FILTERS: list[Any] = [
    {"year": {"$gt": 0}},
    {"price": {"$lte": 1.5}},
    {"open": True},
    {"lang": {"$in": ["en", "é"]}},
    {"tags": {"$contains": "b"}},
    {"tags": ["c", "c"]},
    {"day": {"$lt": "1905-07-01"}},
    {"url": "x://3"},
    {"rare": 7},
    {"mixed": {"$exists": True}},
    {"nested": None},
]
NAMES = ("year", "price", "open", "lang", "tags", "day", "url", "rare")


def small() -> Columns:
    """Columns of every kind; those of many strings are hashed."""
    builder = ColumnsBuilder()
    with small_dictionaries(3):
        for metadata in ROWS:
            builder.add(metadata)
        return builder.finish()


def answers(columns: Columns) -> list[Any]:
    stored = reader(ROWS)
    masks = [mask(parse_filter(value), columns, len(ROWS), stored).tolist() for value in FILTERS]
    made = [columns.column(name) for name in NAMES]
    return [masks, [facet(column, np.ones(len(ROWS), bool), stored) for column in made if column is not None]]


def written() -> tuple[MemoryDisk, FileRecord]:
    disk = MemoryDisk()
    return disk, write_columns(disk, INDEX_ID, FILE_ID, small())


def reopened(data: bytes, record: FileRecord) -> Columns:
    return read_columns(MemoryDisk({record.name: data}), record, INDEX_ID, len(ROWS))


def test_round_trip() -> None:
    disk, record = written()
    columns = read_columns(disk, record, INDEX_ID, len(ROWS))
    assert record.name == f"cols-{FILE_ID}.cit"
    assert (columns.names, columns.rows, columns.has_all) == (small().names, len(ROWS), True)
    assert {columns.column(name).kind for name in columns.names} == {  # type: ignore[union-attr]
        "int", "float", "bool", "string", "strings", "mixed", "other",
    }  # fmt: skip
    assert columns.column("url").is_hashed and not columns.column("lang").is_hashed  # type: ignore[union-attr]
    assert answers(columns) == answers(small())
    columns.check()


def test_arrays_are_not_copied() -> None:
    disk, record = written()
    column: Any = read_columns(disk, record, INDEX_ID, len(ROWS)).column("year")
    assert not column.values.flags.owndata and not column.values.flags.writeable


def test_empty_segment_and_segment_without_metadata() -> None:
    for rows in (0, 3):
        builder = ColumnsBuilder()
        for _ in range(rows):
            builder.add(None)
        disk = MemoryDisk()
        record = write_columns(disk, INDEX_ID, FILE_ID, builder.finish())
        columns = read_columns(disk, record, INDEX_ID, rows)
        filter = parse_filter({"a": {"$ne": 1}})
        assert columns.names == () and mask(filter, columns, rows, reader([])).tolist() == [True] * rows


def test_flipped_byte_is_detected_or_harmless() -> None:
    disk, record = written()
    whole = bytes(disk.map(record.name))
    expected = answers(reopened(whole, record))
    errors = 0
    for position in range(len(whole)):
        data = bytearray(whole)
        data[position] ^= 0xFF
        try:
            assert answers(reopened(bytes(data), record)) == expected
        except CorruptIndexError:
            errors += 1
    assert errors > len(whole) // 2  # all but the zeros between sections


@pytest.mark.parametrize("rows", [0, 4, 6])
def test_columns_of_another_segment_are_refused(rows: int) -> None:
    disk, record = written()
    with pytest.raises(CorruptIndexError, match="do not fit the segment"):
        read_columns(disk, record, INDEX_ID, rows)


def test_file_truncated_while_in_use_is_an_error(tmp_path: Path) -> None:
    storage = FolderStorage(tmp_path)
    record = write_columns(storage, INDEX_ID, FILE_ID, small())
    columns = read_columns(storage, record, INDEX_ID, len(ROWS))
    assert answers(columns) == answers(small())
    os.truncate(tmp_path / record.name, 64)
    with pytest.raises(CitadelError, match="shorter"):
        mask(parse_filter({"year": 0}), columns, len(ROWS), reader(ROWS))


# ---- contents that fit their checksums but nothing else ---------------------------------------------------


def parts() -> tuple[dict[str, Any], bytearray]:
    head, pieces = small().parts()
    data = b"".join(piece if isinstance(piece, bytes) else piece.tobytes() for piece in pieces)
    return json.loads(head), bytearray(data)


def opened(head: Any, data: bytes | bytearray) -> Columns:
    """The same through a file that an attacker has written."""
    disk = MemoryDisk()
    writer = CitWriter(disk, "columns", INDEX_ID, FILE_ID, sections=2)
    writer.section("COLUMN_FIELDS", head if isinstance(head, bytes) else json.dumps(head).encode())
    writer.section("COLUMN_DATA", bytes(data))
    return read_columns(disk, writer.finish(), INDEX_ID, len(ROWS))


def field(head: Any, name: str) -> dict[str, Any]:
    return next(entry for entry in head["fields"] if entry["name"] == name)


def put(name: str, role: str, index: int, value: int) -> Callable[[Any, bytearray], None]:
    """Write another number into an array."""

    def change(head: Any, data: bytearray) -> None:
        dtype, start, count = field(head, name)["arrays"][role]
        size = count * np.dtype(dtype).itemsize
        values = np.frombuffer(data[start : start + size], dtype).copy()
        values[index] = value
        data[start : start + size] = values.tobytes()

    return change


def extent(name: str, role: str, value: Any) -> Callable[[Any, bytearray], None]:
    return lambda head, data: field(head, name)["arrays"].__setitem__(role, value)


def entry(name: str, /, **changes: Any) -> Callable[[Any, bytearray], None]:
    return lambda head, data: field(head, name).update(changes)


def top(**changes: Any) -> Callable[[Any, bytearray], None]:
    return lambda head, data: head.update(changes)


HOSTILE: dict[str, Callable[[Any, bytearray], object]] = {
    "no fields": top(fields=None),
    "fields that are an object": top(fields={}),
    "too many fields": lambda head, data: head.update(fields=head["fields"] * 100),
    "a field twice": lambda head, data: head["fields"].append(copy.deepcopy(head["fields"][0])),
    "a field that is a list": top(fields=[[]]),
    "a name that is a number": entry("year", name=7),
    "an unknown kind": entry("year", kind="date"),
    "a kind that is a list": entry("year", kind=["int"]),
    "another kind": entry("year", kind="float"),
    "booleans for ints": entry("year", kind="bool"),
    "unknown kinds": entry("mixed", kinds=["int", "date"]),
    "one kind": entry("mixed", kinds=["int"]),
    "kinds that are a number": entry("mixed", kinds=7),
    "kinds of a plain column": entry("year", kinds=["int", "float"]),
    "no arrays": entry("year", arrays=[]),
    "values missing": entry("year", arrays={}),
    "an unknown array": extent("year", "more", ["<i8", 0, 1]),
    "an unknown type": extent("year", "values", ["O", 0, 5]),
    "a type that is a list": extent("year", "values", [[], 0, 5]),
    "a wrong type": extent("year", "values", ["<f8", 0, 5]),
    "two numbers": extent("year", "values", ["<i8", 0]),
    "a number": extent("year", "values", 7),
    "a negative start": extent("year", "values", ["<i8", -8, 5]),
    "an odd start": extent("year", "values", ["<i8", 4, 5]),
    "a float start": extent("year", "values", ["<i8", 0.0, 5]),
    "a true start": extent("year", "values", ["<i8", True, 5]),
    "a negative count": extent("year", "values", ["<i8", 80, -5]),
    "a huge count": extent("year", "values", ["<i8", 0, 1 << 62]),
    "a count beyond the rows": extent("year", "values", ["<i8", 0, 6]),
    "too few presence bits": extent("year", "presence", ["|u1", 0, 0]),
    "presence beyond the rows": put("year", "presence", 0, 0xFF),
    "positions beyond the rows": put("rare", "positions", 0, 5),
    "no positions": extent("rare", "positions", ["<u4", 0, 0]),
    "a boolean of 2": put("open", "values", 0, 2),
    "NaN": put("price", "values", 0, float("nan")),  # type: ignore[arg-type]
    "infinity": put("price", "values", 1, float("inf")),  # type: ignore[arg-type]
    "a code beyond the dictionary": put("lang", "codes", 0, 3),
    "codes of two bytes in one": extent("lang", "codes", ["<u2", 0, 5]),
    "a dictionary that starts late": put("lang", "entry_offsets", 0, 1),
    "a dictionary that falls": put("lang", "entry_offsets", 1, 5),
    "a dictionary that ends early": put("lang", "entry_offsets", -1, 5),
    "a dictionary that is not sorted": put("lang", "entries", 0, ord("x")),
    "half a character": put("lang", "entries", -1, ord("x")),
    "a character cut": put("lang", "entry_offsets", 2, 5),
    "no dictionary": lambda head, data: field(head, "lang")["arrays"].pop("entries"),
    "an empty dictionary": extent("lang", "entry_offsets", ["<u4", 0, 0]),
    "instants of too few": extent("day", "instants", ["<i8", 0, 1]),
    "hashes of too few": extent("url", "hashes", ["<u8", 0, 1]),
    "list offsets that fall": put("tags", "offsets", 1, 9),
    "list offsets that start late": put("tags", "offsets", 0, 1),
    "list offsets beyond the members": put("tags", "offsets", -1, 1 << 40),
    "posting starts that fall": put("tags", "posting_starts", 1, 9),
    "postings beyond the lists": put("tags", "posting_lists", 0, 99),
    "no postings": lambda head, data: field(head, "tags")["arrays"].pop("posting_lists"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_contents_are_refused(case: str) -> None:
    head, data = parts()
    answers(opened(head, data))
    HOSTILE[case](head, data)
    with pytest.raises(CorruptIndexError) as error:
        answers(opened(head, data))
    assert "COLUMN_FIELDS" in str(error.value)
    with pytest.raises(CorruptIndexError):
        opened(head, data).check()


@pytest.mark.parametrize(
    "head",
    [b"", b"[]", b"{}", b"[" * 100_000, b'{"fields": NaN', b"\xff", b" " * ((1 << 20) + 1)],
    ids=["empty", "list", "object", "deep", "cut", "not-utf8", "long"],
)
def test_hostile_json_is_refused(head: bytes) -> None:
    with pytest.raises(CorruptIndexError):
        opened(head, b"")


def test_largest_header_can_be_read() -> None:
    builder = ColumnsBuilder()
    for number in range(1001):
        builder.add({f"{number:04}" + "é\0" * 498: f"v{number}", "f": [f"v{number}"]})
    columns = builder.finish()
    disk = MemoryDisk()
    record = write_columns(disk, INDEX_ID, FILE_ID, columns)
    found = read_columns(disk, record, INDEX_ID, 1001)
    found.check()
    assert found.names == columns.names and not found.has_all and len(found.names) > 100


def test_damage_without_a_file_is_a_value_error() -> None:
    head, data = parts()
    block = np.frombuffer(bytes(data), np.uint8)
    with pytest.raises(ColumnsError):
        Columns.from_parts(head, lambda start, stop: block[start:stop], len(block), 4)
