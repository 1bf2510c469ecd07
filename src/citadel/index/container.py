"""The `.cit` container: header, checksummed sections, table, footer.

One writer and one reader serve all kinds of files, so none lacks its version or checksums. The format is
specified in docs/reference/file-format.md.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import DTypeLike, NDArray

from citadel.errors import CorruptIndexError, UnknownFormatError
from citadel.index.checksum import BLOCK, crc32c, crc32c_blocks
from citadel.index.mapping import require_whole
from citadel.index.storage import TEMPORARY, Storage

FORMAT = 2  # written; all formats from 1 on are read
MAGIC, END_MAGIC = b"CITADEL\0", b"LEDATIC\0"
KINDS = {"segment": 1, "tombstones": 2, "codebook": 3, "columns": 4, "graph": 5, "order": 6, "words": 7}
PREFIXES = {
    "segment": "seg",
    "tombstones": "del",
    "codebook": "codebook",
    "columns": "cols",
    "graph": "graph",
    "order": "order",
    "words": "words",
}
SECTIONS = {
    "META": 1, "ID_OFFSETS": 2, "ID_BYTES": 3, "ID_HASHES": 4, "ID_NUMBERS": 5,
    "PASSAGE_STARTS": 6, "PASSAGE_SPANS": 7,
    "KEYS": 8, "LIST_STARTS": 9, "BLOCK_STARTS": 10, "BLOCK_DOCUMENTS": 11, "BLOCK_OFFSETS": 12,
    "PACKED_DOCUMENTS": 13, "WEIGHTS": 14, "CODES": 15, "SCALES": 16, "VALUES": 17,
    "TERM_OFFSETS": 18, "TERM_BYTES": 19, "LENGTHS": 20, "COUNT_OFFSETS": 21, "PACKED_COUNTS": 22,
    "SEMANTIC_CODES": 24, "SEMANTIC_SCALES": 25,
    "PROBE_CENTROIDS": 26, "PROBE_STARTS": 27, "PROBE_DOCUMENTS": 28,
    "TOKEN_STARTS": 29, "TOKEN_CENTROIDS": 30,
    "SEGMENTS": 32, "DELETED_STARTS": 33, "DELETED_DOCUMENTS": 34,
    "TERM_STARTS": 35, "TERM_RANKS": 36, "TERM_COUNTS": 37, "REMOVED_LENGTHS": 38,
    "CENTROIDS": 40, "SCALE_KEYS": 41, "KEY_SCALES": 42,
    "CENTROID_CODES": 43, "CENTROID_SCALES": 44, "BUCKETS": 45, "BUCKET_CUTS": 46,
    "COLUMN_FIELDS": 48, "COLUMN_DATA": 49,
    "GRAPH_MEAN": 56, "GRAPH_NUMBERS": 57, "GRAPH_ROWS": 58, "GRAPH_LINKS": 59, "GRAPH_ENTRIES": 60,
    "GRAPH_SEEDS": 61, "GRAPH_POSTINGS": 62,
    "ORDER": 64,
}  # fmt: skip
NAMES = {number: name for name, number in SECTIONS.items()}
MAX_SECTIONS = 32
MAX_JSON = 1 << 16  # bytes of a JSON section
ALIGNMENT = 64

_HEADER = struct.Struct("<8sII16s16sI8xI")
_ENTRY = struct.Struct("<I4xQQQ")
_FOOTER = struct.Struct("<QQII8s")
Scalar = TypeVar("Scalar", bound=np.generic)


class FileRecord(NamedTuple):
    """A file as recorded in a manifest: name, length and CRC.

    >>> FileRecord("seg-00.cit", 128, 7).name
    'seg-00.cit'
    """

    name: str
    length: int
    crc: int


class DurableFile:
    """A file written under a temporary name, synced, then renamed; tracks its length and CRC."""

    def __init__(self, storage: Storage, name: str) -> None:
        self._storage, self.name = storage, name
        self._output = storage.create(name + TEMPORARY)
        self.length, self._crc = 0, 0

    def write(self, data: bytes | memoryview) -> None:
        view = memoryview(data).cast("B")
        self._output.write(view)
        self.length += len(view)
        self._crc = crc32c(view, self._crc)

    def finish(self) -> FileRecord:
        """Sync the file and rename it to its final name."""
        self._output.sync()
        self._output.close()
        self._storage.rename(self.name + TEMPORARY, self.name)
        return FileRecord(self.name, self.length, self._crc)

    def abandon(self) -> None:
        self._output.close()
        self._storage.remove(self.name + TEMPORARY)


class CitWriter:
    """Sequential writer of a `.cit` file: any number of sections, then `finish`.

    `check`, called before each section, may raise an error.
    """

    def __init__(
        self,
        storage: Storage,
        kind: str,
        index_id: str,
        file_id: str,
        sections: int,
        check: Callable[[], None] | None = None,
    ) -> None:
        self.file = DurableFile(storage, f"{PREFIXES[kind]}-{file_id}.cit")
        header = _HEADER.pack(
            MAGIC, KINDS[kind], FORMAT, bytes.fromhex(index_id), bytes.fromhex(file_id), sections, 0
        )
        self.file.write(header[:60] + struct.pack("<I", crc32c(header[:60])))
        self._entries: list[tuple[int, int, int, int]] = []
        self._crcs: list[int] = []
        self._expected, self._check = sections, check

    def section(self, name: str, *chunks: NDArray[Any] | bytes) -> None:
        """Write a section from one or several pieces."""
        self.stream(name, chunks)

    def stream(self, name: str, chunks: Iterable[NDArray[Any] | bytes]) -> None:
        """Write a section from a stream of pieces, one in memory at a time."""
        if self._check is not None:
            self._check()
        self.file.write(bytes(-self.file.length % ALIGNMENT))
        offset, first_crc = self.file.length, len(self._crcs)
        running = _BlockChecksums()
        for chunk in chunks:
            octets = (
                chunk
                if isinstance(chunk, bytes)
                else np.ascontiguousarray(chunk).reshape(-1).view(np.uint8).data
            )
            view = memoryview(octets)
            self.file.write(view)
            running.add(view)
        self._crcs += running.finish()
        self._entries.append((SECTIONS[name], offset, self.file.length - offset, first_crc))

    def finish(self) -> FileRecord:
        if len(self._entries) != self._expected:
            raise AssertionError(
                f"{self.file.name}: {len(self._entries)} sections written, {self._expected} announced"
            )
        self.file.write(bytes(-self.file.length % ALIGNMENT))
        table = (
            b"".join(_ENTRY.pack(*entry) for entry in self._entries) + np.array(self._crcs, "<u4").tobytes()
        )
        footer = struct.pack("<QQI", self.file.length, len(table), crc32c(table))
        self.file.write(table)
        self.file.write(footer + struct.pack("<I", crc32c(footer)) + END_MAGIC)
        return self.file.finish()


class _BlockChecksums:
    """CRCs of the 1 MiB blocks of a section that comes in pieces of any size."""

    def __init__(self) -> None:
        self._done: list[int] = []
        self._crc, self._filled = 0, 0

    def add(self, view: memoryview) -> None:
        while len(view):
            piece = view[: BLOCK - self._filled]
            self._crc, self._filled = crc32c(piece, self._crc), self._filled + len(piece)
            view = view[len(piece) :]
            if self._filled == BLOCK:
                self._close()

    def _close(self) -> None:
        self._done.append(self._crc)
        self._crc, self._filled = 0, 0

    def finish(self) -> list[int]:
        if self._filled:
            self._close()
        return self._done


@dataclass
class Section:
    """One section of an open file; each 1 MiB block is verified on first access."""

    file: str
    name: str
    data: NDArray[np.uint8]
    crcs: NDArray[np.uint32]
    view: memoryview | None = None  # of the whole file
    _verified: NDArray[np.bool_] | None = None

    def array(self, dtype: DTypeLike, start: int = 0, stop: int | None = None) -> NDArray[Any]:
        """Elements start … stop − 1 as a verified array over the mapped bytes."""
        width = np.dtype(dtype).itemsize
        stop = len(self.data) // width if stop is None else stop
        if not 0 <= start <= stop <= len(self.data) // width:
            raise self.corrupt(f"elements {start} to {stop} lie outside the section")
        self._verify(start * width, stop * width)
        return self.data[start * width : stop * width].view(dtype)

    def sized(self, dtype: DTypeLike, count: int) -> NDArray[Any]:
        """The whole section; raises unless it has exactly `count` elements."""
        expected = count * np.dtype(dtype).itemsize
        if len(self.data) != expected:
            raise self.corrupt(f"it has {len(self.data)} bytes where {expected} are needed")
        return self.array(dtype)

    def json(self, limit: int = MAX_JSON) -> dict[str, Any]:
        """The section as a JSON object."""
        if len(self.data) > limit:
            raise self.corrupt(f"it has {len(self.data)} bytes, at most {limit} are allowed")
        try:
            value = json.loads(self.array(np.uint8).tobytes())
        except (ValueError, RecursionError) as error:
            raise self.corrupt("it is not JSON") from error
        if not isinstance(value, dict):
            raise self.corrupt("it is not a JSON object")
        return value

    def corrupt(self, problem: str) -> CorruptIndexError:
        return CorruptIndexError(self.file, self.name, problem)

    def verify(self) -> None:
        """Verify every block."""
        self._verify(0, len(self.data))

    def _verify(self, start: int, stop: int) -> None:
        if self._verified is None:
            self._verified = np.zeros(len(self.crcs), bool)
        first, last = start // BLOCK, -(-stop // BLOCK)
        if self._verified[first:last].all():
            return
        checksums = crc32c_blocks(self.data[first * BLOCK : last * BLOCK], BLOCK)
        wrong = np.flatnonzero(checksums != self.crcs[first:last])
        if len(wrong):
            require_whole(self.view, self.file)
            raise self.corrupt(f"the checksum of block {first + int(wrong[0])} does not match")
        self._verified[first:last] = True


class CitFile:
    """An open `.cit` file; all but the section contents is verified before anything is allocated."""

    def __init__(self, storage: Storage, record: FileRecord, kind: str, index_id: str) -> None:
        self.record, self.name = record, record.name
        try:
            view = storage.map(record.name)
        except FileNotFoundError as error:
            raise CorruptIndexError(record.name, "file", "it is missing") from error
        self._view = view
        self.bytes = np.frombuffer(view, np.uint8)
        if len(self.bytes) != record.length:
            raise self._corrupt("file", f"it has {len(self.bytes)} bytes, the manifest says {record.length}")
        if len(self.bytes) < _HEADER.size + _FOOTER.size:
            raise self._corrupt("file", f"it has only {len(self.bytes)} bytes")
        count = self._header(kind, index_id)
        self.sections = self._table(count)

    def __getitem__(self, name: str) -> Section:
        try:
            return self.sections[name]
        except KeyError:
            raise self._corrupt(name, "the section is missing") from None

    def __contains__(self, name: str) -> bool:
        return name in self.sections

    def require_whole(self, exact: bool = True) -> None:
        """Raise when the file was truncated or became unreadable since it was opened."""
        require_whole(self._view, self.name, exact)

    def check(self) -> None:
        """Verify the CRC of the file and of each block, to name the damaged section."""
        for section in self.sections.values():
            section.verify()
        if crc32c(self.bytes) != self.record.crc:
            self.require_whole()
            raise self._corrupt("file", "its checksum differs from the manifest's")

    def _corrupt(self, section: str, problem: str) -> CorruptIndexError:
        return CorruptIndexError(self.name, section, problem)

    def _header(self, kind: str, index_id: str) -> int:
        raw = self.bytes[: _HEADER.size].tobytes()
        magic, found_kind, version, index, file_id, count, crc = _HEADER.unpack(raw)
        if magic != MAGIC:
            raise self._corrupt("header", "the magic bytes are wrong: not a citadel file")
        if crc32c(raw[:60]) != crc:
            raise self._corrupt("header", "its checksum does not match")
        if not 1 <= version <= FORMAT:
            problem = f"format {version}, this citadel reads formats up to format {FORMAT}"
            raise UnknownFormatError(self.name, "header", problem)
        if found_kind != KINDS[kind]:
            raise self._corrupt("header", f"it is not a {kind} file")
        if index.hex() != index_id:
            raise self._corrupt("header", "it belongs to another index")
        if f"{PREFIXES[kind]}-{file_id.hex()}.cit" != self.name:
            raise self._corrupt("header", "it was renamed: its own id differs from its name")
        if count > MAX_SECTIONS:
            raise self._corrupt("header", f"{count} sections, at most {MAX_SECTIONS} are allowed")
        return int(count)

    def _table(self, count: int) -> dict[str, Section]:
        end = len(self.bytes) - _FOOTER.size
        raw = self.bytes[end:].tobytes()
        offset, length, table_crc, crc, magic = _FOOTER.unpack(raw)
        if magic != END_MAGIC or crc32c(raw[:20]) != crc:
            raise self._corrupt("footer", "its checksum does not match")
        if offset + length != end or length < count * _ENTRY.size or (length - count * _ENTRY.size) % 4:
            raise self._corrupt("footer", "the table does not fit the file")
        table = self.bytes[offset:end].tobytes()
        if crc32c(table) != table_crc:
            raise self._corrupt("table", "its checksum does not match")
        crcs = np.frombuffer(table, "<u4", offset=count * _ENTRY.size)
        entries = [_ENTRY.unpack_from(table, i * _ENTRY.size) for i in range(count)]
        return {NAMES.get(entry[0], str(entry[0])): self._section(entry, crcs, offset) for entry in entries}

    def _section(self, entry: tuple[int, ...], crcs: NDArray[np.uint32], end: int) -> Section:
        number, offset, length, first = entry
        name, blocks = NAMES.get(number, str(number)), -(-length // BLOCK)
        if offset % ALIGNMENT or offset < _HEADER.size or offset + length > end or first + blocks > len(crcs):
            raise self._corrupt(name, "its offset lies outside the file")
        data = self.bytes[offset : offset + length]
        return Section(self.name, name, data, crcs[first : first + blocks], self._view)
