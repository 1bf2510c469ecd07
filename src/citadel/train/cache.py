"""Token ids kept from one run to the next: the same texts, tokenizer and length are tokenised once on a machine.

A file is a line of JSON, the rows' offsets (int64), their token ids, and the CRC-32 of all before it.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import uuid
import zlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from citadel.errors import InputError, ResourceError
from citadel.train.meter import Meter, silent
from citadel.train.ragged import Ragged
from citadel.train.spill import BLOCK, Numbers
from citadel.train.texts import Texts
from citadel.train.tokens import prepare, tokenize

if TYPE_CHECKING:
    from tokenizers import Tokenizer

FORMAT = 1
_LONGEST_HEADER = 4096
_DTYPES = ("uint16", "int32")


def kept_tokens(
    folder: str, texts: Texts, tokenizer: Tokenizer, length: int, meter: Meter = silent, noun: str = "texts"
) -> Ragged:
    """What `tokenize` gives, from a file in `folder` where there is one; else it is written. "" keeps nothing."""
    if not folder:
        return tokenize(texts, tokenizer, length, meter, noun)
    prepare(tokenizer, length)
    file = os.path.join(folder, f"tokens-{_name(texts, tokenizer)}.bin")
    if os.path.exists(file):
        return read_table(file, len(texts))
    table = tokenize(texts, tokenizer, length, meter, noun)
    write_table(table, file)
    return table


def _name(texts: Texts, tokenizer: Tokenizer) -> str:
    """A fingerprint of all that decides the token ids; the length is among the tokenizer's settings."""
    from tokenizers import __version__

    settings = f"{FORMAT} {__version__} {tokenizer.to_str()}".encode()
    return hashlib.sha256(texts.digest() + settings).hexdigest()[:32]


def write_table(table: Ragged, file: str) -> None:
    """Write a table, whole or not at all."""
    temporary = f"{file}.{uuid.uuid4().hex}.tmp"
    try:
        os.makedirs(os.path.dirname(file), exist_ok=True)
        with open(temporary, "xb") as stream:
            crc = 0
            for piece in _pieces(table):
                stream.write(piece)
                crc = zlib.crc32(piece, crc)
            stream.write(crc.to_bytes(4, "little"))
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, file)
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        kind, advice = (ResourceError, "make room") if full else (InputError, "name another folder in data.cache")
        raise kind(f"{file}: cannot be written ({error.strerror}): {advice}") from None
    finally:
        if os.path.exists(temporary):
            os.unlink(temporary)


def _pieces(table: Ragged) -> Iterator[bytes]:
    dtype = str(table.part(0, 0).values[:].dtype)
    header = {"format": FORMAT, "dtype": dtype, "rows": len(table), "values": len(table.values)}
    yield json.dumps(header).encode() + b"\n"
    yield table.offsets.astype("<i8").tobytes()
    for part in table.parts():
        yield part.values[:].tobytes()


def read_table(file: str, rows: int) -> Ragged:
    """The table in a file; one that is damaged or has another number of rows is refused."""
    try:
        with open(file, "rb") as stream:
            return _read(stream, os.fstat(stream.fileno()).st_size, rows)
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}; name another folder in data.cache", file) from None
    except (ValueError, KeyError, TypeError):
        raise InputError("the kept token ids are damaged: delete the file", file) from None


def _read(stream: BinaryIO, size: int, rows: int) -> Ragged:
    """Copies what it checks: a file that changes later does not change the run."""
    first = stream.readline(_LONGEST_HEADER)
    header: dict[str, Any] = json.loads(first)
    dtype = np.dtype(_DTYPES[_DTYPES.index(header["dtype"])])
    after = size - len(first) - 8 * (rows + 1) - 4  # bytes of token ids
    if (header["format"], header["rows"], header["values"] * dtype.itemsize) != (FORMAT, rows, after):
        raise ValueError(header)
    offsets = stream.read(8 * (rows + 1))
    crc, values = zlib.crc32(offsets, zlib.crc32(first)), Numbers(dtype)
    for start in range(0, after, BLOCK):
        piece = stream.read(min(BLOCK, after - start))
        crc = zlib.crc32(piece, crc)
        values.append(np.frombuffer(piece, dtype))
    if crc.to_bytes(4, "little") != stream.read():
        raise ValueError(crc)
    return Ragged(values, np.frombuffer(offsets, "<i8").astype(np.int64))
