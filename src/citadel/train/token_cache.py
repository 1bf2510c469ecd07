"""Token tables cached on disk between runs: texts are tokenised once per tokenizer and length.

A cache file is a line of JSON, then the row offsets (int64) and the values of each table, then the CRC-32 of
all preceding bytes. It is written atomically and checked when read.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import uuid
import zlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

import numpy as np

from citadel.errors import InputError, ResourceError
from citadel.progress import Meter, silent
from citadel.train.ragged import Ragged
from citadel.train.spill import BLOCK, DiskArray
from citadel.train.texts import TextStore
from citadel.train.tokens import prepare, tokenize

if TYPE_CHECKING:
    from tokenizers import Tokenizer

FORMAT = 2
_MAX_HEADER = 1 << 20  # bytes
_DTYPES = ("uint8", "uint16", "int32", "int64", "float32", "float64")
_TOKENS = "tokens"


def cached_tokens(
    folder: str,
    texts: TextStore,
    tokenizer: Tokenizer,
    length: int,
    meter: Meter = silent,
    noun: str = "texts",
) -> Ragged:
    """Tokenise texts, or read the result from the cache in `folder`; "" disables the cache."""
    if not folder:
        return tokenize(texts, tokenizer, length, meter, noun)
    prepare(tokenizer, length)
    name = hashlib.sha256(texts.digest() + tokenizer_settings(tokenizer)).hexdigest()[:32]
    file = os.path.join(folder, f"tokens-{name}.bin")
    if os.path.exists(file):
        return read_tokens(file, len(texts))
    table = tokenize(texts, tokenizer, length, meter, noun)
    write_tables({_TOKENS: table}, file)
    return table


def tokenizer_settings(tokenizer: Tokenizer) -> bytes:
    """Everything that determines token ids; the maximum length is among the settings."""
    from tokenizers import __version__

    return f"{FORMAT} {__version__} {tokenizer.to_str()}".encode()


def read_tokens(file: str, rows: int) -> Ragged:
    """Read a token table; a damaged file or one with another number of rows is an error."""
    table = read_tables(file).tables.get(_TOKENS)
    if table is None or len(table) != rows:
        raise InputError("the cache file is damaged: delete it", file)
    return table


class TableFile(NamedTuple):
    """Contents of a cache file."""

    tables: dict[str, Ragged]
    notes: dict[str, Any]


def write_tables(tables: Mapping[str, Ragged], file: str, notes: Mapping[str, Any] | None = None) -> None:
    """Write tables and notes, atomically.

    >>> import tempfile
    >>> file = os.path.join(tempfile.mkdtemp(), "kept", "two.bin")
    >>> write_tables({"a": Ragged.of([[1, 2], []]), "b": Ragged.of([[0.5]], np.float32)}, file, {"of": "me"})
    >>> kept = read_tables(file)
    >>> kept.tables["a"][0].tolist(), kept.tables["b"][0].tolist(), kept.notes
    ([1, 2], [0.5], {'of': 'me'})
    """
    temporary = f"{file}.{uuid.uuid4().hex}.tmp"
    try:
        os.makedirs(os.path.dirname(file), exist_ok=True)
        with open(temporary, "xb") as stream:
            crc = 0
            for piece in _pieces(tables, notes or {}):
                stream.write(piece)
                crc = zlib.crc32(piece, crc)
            stream.write(crc.to_bytes(4, "little"))
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, file)
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        kind, advice = (
            (ResourceError, "make room") if full else (InputError, "name another folder in data.cache")
        )
        raise kind(f"{file}: cannot be written ({error.strerror}): {advice}") from None
    finally:
        if os.path.exists(temporary):
            os.unlink(temporary)


def _pieces(tables: Mapping[str, Ragged], notes: Mapping[str, Any]) -> Iterator[bytes]:
    shapes = [(name, _dtype(table), len(table), len(table.values)) for name, table in tables.items()]
    yield json.dumps({"format": FORMAT, "tables": shapes, "notes": notes}).encode() + b"\n"
    for table in tables.values():
        yield table.offsets.astype("<i8").tobytes()
        for part in table.parts():
            yield part.values[:].tobytes()


def _dtype(table: Ragged) -> str:
    return str(table.part(0, 0).values[:].dtype)


def read_tables(file: str) -> TableFile:
    """Read the tables and notes of a file; a damaged file is an error."""
    try:
        with open(file, "rb") as stream:
            return _read(stream, os.fstat(stream.fileno()).st_size)
    except OSError as error:
        raise InputError(
            f"cannot be read: {error.strerror}; name another folder in data.cache", file
        ) from None
    except (ValueError, KeyError, TypeError):
        raise InputError("the cache file is damaged: delete it", file) from None


def _read(stream: BinaryIO, size: int) -> TableFile:
    """Copy the data while checking it, so that later changes of the file do not affect the run."""
    first = stream.readline(_MAX_HEADER)
    header: dict[str, Any] = json.loads(first)
    shapes = [
        (name, np.dtype(_DTYPES[_DTYPES.index(kind)]), *counts) for name, kind, *counts in header["tables"]
    ]
    sizes = [8 * (rows + 1) + values * dtype.itemsize for _, dtype, rows, values in shapes]
    # Check sizes first, so that a damaged header cannot cause an allocation larger than the file.
    if header["format"] != FORMAT or any(part < 0 for part in sizes) or len(first) + sum(sizes) + 4 != size:
        raise ValueError(header)
    source = _ChecksummedReader(stream, zlib.crc32(first))
    tables = {name: source.table(dtype, rows, values) for name, dtype, rows, values in shapes}
    if source.crc.to_bytes(4, "little") != stream.read():
        raise ValueError(source.crc)
    return TableFile(tables, header["notes"])


class _ChecksummedReader:
    """Reader that updates a CRC-32."""

    def __init__(self, stream: BinaryIO, crc: int) -> None:
        self._stream, self.crc = stream, crc

    def table(self, dtype: Any, rows: int, count: int) -> Ragged:
        offsets = np.frombuffer(self._bytes(8 * (rows + 1)), "<i8").astype(np.int64)
        values, left = DiskArray(dtype), count * dtype.itemsize
        while left:
            piece = self._bytes(min(BLOCK, left))
            values.append(np.frombuffer(piece, dtype))
            left -= len(piece)
        return Ragged(values, offsets)

    def _bytes(self, count: int) -> bytes:
        piece = self._stream.read(count)
        if len(piece) < count:
            raise ValueError(count)
        self.crc = zlib.crc32(piece, self.crc)
        return piece
