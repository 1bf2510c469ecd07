"""Rows of long documents, read in pieces: memory does not grow with the length of a text."""

from __future__ import annotations

import codecs
import sqlite3
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Any

from citadel.errors import CorruptIndexError
from citadel.forks import no_fork
from citadel.index.checksum import crc32c
from citadel.index.document_limits import MAX_TEXT, TOO_LARGE, DecodingCost

COLUMNS = ("id", "title", "text", "metadata")
PIECE = 1 << 18  # bytes read and decoded at a time
Lock = AbstractContextManager[Any]


class RowReader:
    """Decodes the columns of one row in pieces; the checksum covers all their bytes.

    Read the columns in the order of `COLUMNS`, each to its end, then call `verify`.
    """

    def __init__(
        self,
        number: int,
        read: Callable[[str], Iterable[bytes]],
        corrupt: Callable[[str], CorruptIndexError],
    ) -> None:
        self._number, self._read, self._corrupt = number, read, corrupt
        self._crc, self._cost = crc32c(b"%d" % number), 0
        self._error: UnicodeDecodeError | None = None

    def column(self, name: str) -> Iterator[str]:
        """Yield the text of a column in pieces, at least one; CorruptIndexError beyond the size limit."""
        self._crc = crc32c(b"\0", self._crc)
        decoder, cost, before = codecs.getincrementaldecoder("utf-8")(), DecodingCost(), self._cost
        for piece in self._read(name):
            self._crc = crc32c(piece, self._crc)
            self._cost = before + cost.add(piece)
            if self._cost > MAX_TEXT:
                raise self._corrupt(f"document {self._number} is too large: {TOO_LARGE}")
            yield self._decode(decoder, piece)
        yield self._decode(decoder, b"", final=True)

    def _decode(self, decoder: codecs.IncrementalDecoder, piece: bytes, final: bool = False) -> str:
        """Decode a piece; after an error nothing, since `verify` reports a wrong checksum first."""
        if self._error is None:
            try:
                return decoder.decode(piece, final)
            except UnicodeDecodeError as error:
                self._error = error
        return ""

    def verify(self, crc: object) -> None:
        """Raise CorruptIndexError unless the bytes have this checksum and are UTF-8."""
        if crc != self._crc:
            raise self._corrupt(f"the checksum of document {self._number} does not match")
        if self._error is not None:
            raise self._corrupt(f"document {self._number} is not UTF-8 ({self._error.reason})")


def window(pieces: Iterable[str], start: int = 0, stop: int = sys.maxsize) -> tuple[str, int]:
    """Characters start … stop − 1 of a text that comes in pieces, and the length of the whole text.

    >>> window(["one ", "two ", "three"], 2, 6)
    ('e tw', 13)
    """
    text, length = "", 0
    for piece in pieces:
        text += piece[max(start - length, 0) : max(stop - length, 0)]  # grows in place, unlike a join
        length += len(piece)
    return text, length


def column_pieces(connection: sqlite3.Connection, lock: Lock, number: int, column: str) -> Iterator[bytes]:
    """Yield the bytes of one column of one row; the lock is free between pieces."""
    with no_fork, lock:
        blob = connection.blobopen("documents", column, number, readonly=True)
    try:
        while piece := _next_piece(blob, lock):
            yield piece
    finally:
        with no_fork, lock:
            blob.close()


def _next_piece(blob: sqlite3.Blob, lock: Lock) -> bytes:
    with no_fork, lock:
        return blob.read(PIECE)
