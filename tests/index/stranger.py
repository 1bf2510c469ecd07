"""An independent reader of `.cit` files, written from docs/reference/file-format.md only."""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

NAMES = {
    1: "META", 2: "ID_OFFSETS", 3: "ID_BYTES", 4: "ID_HASHES", 5: "ID_NUMBERS",
    6: "PASSAGE_STARTS", 7: "PASSAGE_SPANS",
    8: "KEYS", 9: "LIST_STARTS", 10: "BLOCK_STARTS", 11: "BLOCK_DOCUMENTS", 12: "BLOCK_OFFSETS",
    13: "PACKED_DOCUMENTS", 14: "WEIGHTS", 15: "CODES", 16: "SCALES", 17: "VALUES",
    18: "TERM_OFFSETS", 19: "TERM_BYTES", 20: "LENGTHS", 21: "COUNT_OFFSETS", 22: "PACKED_COUNTS",
    24: "SEMANTIC_CODES", 25: "SEMANTIC_SCALES",
    26: "PROBE_CENTROIDS", 27: "PROBE_STARTS", 28: "PROBE_DOCUMENTS",
    29: "TOKEN_STARTS", 30: "TOKEN_CENTROIDS",
    32: "SEGMENTS", 33: "DELETED_STARTS", 34: "DELETED_DOCUMENTS",
    35: "TERM_STARTS", 36: "TERM_RANKS", 37: "TERM_COUNTS", 38: "REMOVED_LENGTHS",
    40: "CENTROIDS", 41: "SCALE_KEYS", 42: "KEY_SCALES",
    43: "CENTROID_CODES", 44: "CENTROID_SCALES", 45: "BUCKETS", 46: "BUCKET_CUTS",
    48: "COLUMN_FIELDS", 49: "COLUMN_DATA",
    56: "GRAPH_MEAN", 57: "GRAPH_NUMBERS", 58: "GRAPH_ROWS", 59: "GRAPH_LINKS", 60: "GRAPH_ENTRIES",
    61: "GRAPH_SEEDS", 62: "GRAPH_POSTINGS",
}  # fmt: skip


def crc32c(data: bytes) -> int:
    value = 0xFFFFFFFF
    for octet in data:
        value ^= octet
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
    return value ^ 0xFFFFFFFF


@dataclass(frozen=True)
class Extent:
    """Position of a section in the file."""

    offset: int
    length: int
    first_crc: int

    @property
    def end(self) -> int:
        return self.offset + self.length


class File:
    """A `.cit` file with parsed header, table and footer."""

    def __init__(self, path: Path) -> None:
        self.data = path.read_bytes()
        header, footer = self.data[:64], self.data[-32:]
        assert header[:8] == b"CITADEL\0" and footer[24:] == b"LEDATIC\0"
        self.kind, self.version = struct.unpack_from("<II", header, 8)
        self.index_id, self.file_id = header[16:32].hex(), header[32:48].hex()
        (self.count,) = struct.unpack_from("<I", header, 48)
        assert struct.unpack_from("<I", header, 60) == (crc32c(header[:60]),)
        assert struct.unpack_from("<I", footer, 20) == (crc32c(footer[:20]),)
        self.table_offset, self.table_length, table_crc = struct.unpack_from("<QQI", footer)
        table = self.data[self.table_offset : self.table_offset + self.table_length]
        assert crc32c(table) == table_crc
        self.extents = {}
        for i in range(self.count):
            kind, offset, length, first = struct.unpack_from("<I4xQQQ", table, 32 * i)
            self.extents[NAMES[kind]] = Extent(offset, length, first)
        self.crcs = struct.unpack_from(
            f"<{(self.table_length - 32 * self.count) // 4}I", table, 32 * self.count
        )

    def section(self, name: str) -> bytes:
        """The bytes of a section, with every block's CRC checked."""
        extent = self.extents[name]
        data = self.data[extent.offset : extent.end]
        for i, start in enumerate(range(0, len(data), 1 << 20)):
            assert crc32c(data[start : start + (1 << 20)]) == self.crcs[extent.first_crc + i], name
        return data

    def numbers(self, name: str, code: str) -> tuple[Any, ...]:
        data = self.section(name)
        return struct.unpack(f"<{len(data) // struct.calcsize(code)}{code}", data)

    @property
    def meta(self) -> dict[str, Any]:
        meta: dict[str, Any] = json.loads(self.section("META"))
        return meta


def bits(data: bytes, offset: int, first: int, count: int) -> int:
    """`count` bits from bit `first` after byte `offset`, least significant bit first."""
    value = 0
    for i in range(count):
        position = 8 * offset + first + i
        value |= (data[position >> 3] >> (position & 7) & 1) << i
    return value


def lists(file: File) -> list[list[int]]:
    """The document numbers of every list."""
    starts, block_starts = file.numbers("LIST_STARTS", "Q"), file.numbers("BLOCK_STARTS", "Q")
    firsts, entries = file.numbers("BLOCK_DOCUMENTS", "I"), file.numbers("BLOCK_OFFSETS", "Q")
    packed, lists = file.section("PACKED_DOCUMENTS"), []
    for i in range(len(starts) - 1):
        left, numbers = starts[i + 1] - starts[i], []
        for block in range(block_starts[i], block_starts[i + 1]):
            document, entry = firsts[block], entries[block]
            numbers.append(document)
            for delta in range(min(left, 128) - 1):
                document += bits(packed, entry & (1 << 56) - 1, delta * (entry >> 56), entry >> 56)
                numbers.append(document)
            left -= min(left, 128)
        lists.append(numbers)
    return lists


def counts(file: File) -> list[int]:
    """The tf of every posting of a bm25 segment."""
    starts, entries = file.numbers("LIST_STARTS", "Q"), file.numbers("COUNT_OFFSETS", "Q")
    packed, counts, block = file.section("PACKED_COUNTS"), [], 0
    for i in range(len(starts) - 1):
        for first in range(starts[i], starts[i + 1], 128):
            entry = entries[block]
            offset, width = entry & (1 << 56) - 1, entry >> 56
            positions = range(min(128, starts[i + 1] - first))
            counts += [1 + bits(packed, offset, position * width, width) for position in positions]
            block += 1
    return counts


def texts(file: File, offsets: str, octets: str) -> list[str]:
    starts, data = file.numbers(offsets, "Q"), file.section(octets)
    return [data[starts[i] : starts[i + 1]].decode() for i in range(len(starts) - 1)]


def int8_vectors(file: File, dimension: int, prefix: str = "") -> list[list[float]]:
    codes, scales = file.numbers(f"{prefix}CODES", "b"), file.numbers(f"{prefix}SCALES", "e")
    return [
        [code * scales[i] for code in codes[i * dimension : (i + 1) * dimension]] for i in range(len(scales))
    ]


class Unknown:
    """A value that a column does not hold: a hashed string, or one of a kind without values."""

    def __init__(self, hashed: int | None = None) -> None:
        self.hashed = hashed


CODES = {"|u1": "B", "<u2": "H", "<u4": "I", "<u8": "Q", "<i8": "q", "<f8": "d"}


def columns(file: File) -> dict[str, list[Any]]:
    """The values of every field, one per row; None where a row has none."""
    head, data = json.loads(file.section("COLUMN_FIELDS")), file.section("COLUMN_DATA")
    found = {}
    for field in head["fields"]:
        arrays = {}
        for role, (kind, start, count) in field["arrays"].items():
            arrays[role] = struct.unpack_from(f"<{count}{CODES[kind]}", data, start)
        found[field["name"]] = _by_row(field["kind"], head["rows"], arrays)
    return found


def _by_row(kind: str, rows: int, arrays: dict[str, tuple[Any, ...]]) -> list[Any]:
    if "positions" in arrays:
        stored = dict(enumerate(arrays["positions"]))
    else:
        bitmap = arrays.get("presence")
        present = (row for row in range(rows) if bitmap is None or bitmap[row >> 3] >> (row & 7) & 1)
        stored = {row: row for row in present}
    values: list[Any] = [None] * rows
    for position, row in stored.items():
        values[row] = _value(kind, position, arrays)
    return values


def _value(kind: str, position: int, arrays: dict[str, tuple[Any, ...]]) -> Any:
    if kind in ("int", "float"):
        return arrays["values"][position]
    if kind == "bool":
        return arrays["values"][position] == 1
    if kind == "string":
        return _text(position, arrays)
    if kind == "strings":
        start, stop = arrays["offsets"][position : position + 2]
        return [_text(member, arrays) for member in range(start, stop)]
    return Unknown()


def _text(position: int, arrays: dict[str, tuple[Any, ...]]) -> Any:
    if "hashes" in arrays:
        return Unknown(arrays["hashes"][position])
    code, offsets = arrays["codes"][position], arrays["entry_offsets"]
    return bytes(arrays["entries"][offsets[code] : offsets[code + 1]]).decode()
