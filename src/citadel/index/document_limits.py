"""Limits per document; writer and reader share them, so that every stored document can be read again."""

from __future__ import annotations

import json
import re

import numpy as np

from citadel.errors import InputError
from citadel.types import Document

MAX_TEXT = 64_000_000  # bytes of memory for decoding id, title, text and metadata
MAX_METADATA = 4 << 20  # bytes of JSON
MAX_METADATA_VALUES = 1 << 17  # each takes up to 200 bytes as a Python object
MAX_METADATA_DEPTH = 64
TOO_LARGE = f"its text takes more than {MAX_TEXT // 10**6} MB of memory to read"
_UNCHECKED_METADATA = 1 << 15  # characters; shorter metadata cannot exceed the limits on size and values
_JSON_STEP = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"|([\[{])|([\]}])')


def metadata_json(document: Document) -> str:
    """Encode a document's metadata; InputError if it is not JSON or the document exceeds a limit.

    >>> metadata_json(Document("d1", "", metadata={"year": 1905}))
    '{"year": 1905}'
    """
    text = _encode(document) if document.metadata else "{}"
    if problem := metadata_problem(text) or _size_problem(document, text):
        raise InputError(f"document {document.id!r}: {problem}; split it")
    return text


def _encode(document: Document) -> str:
    try:
        return json.dumps(dict(document.metadata), ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(
            f"document {document.id!r}: the metadata cannot be written as JSON ({error})"
        ) from error


def metadata_problem(text: str) -> str | None:
    """Name the limit that a document's metadata exceeds; checked before the JSON is parsed.

    >>> metadata_problem('{"year": 1905}') is None
    True
    """
    if len(text) < _UNCHECKED_METADATA and text.count("[") + text.count("{") <= MAX_METADATA_DEPTH:
        return None
    if len(text) > MAX_METADATA or (not text.isascii() and len(text.encode()) > MAX_METADATA):
        return f"its metadata has more than {MAX_METADATA >> 20} MiB"
    opened = text.count("[") + text.count("{")
    if opened + text.count(",") > MAX_METADATA_VALUES:
        return f"its metadata has more than {MAX_METADATA_VALUES:,} values"
    if opened > MAX_METADATA_DEPTH and _depth(text) > MAX_METADATA_DEPTH:
        return f"its metadata is nested deeper than {MAX_METADATA_DEPTH} levels"
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
    return TOO_LARGE


def _decoding_cost(text: str) -> int:
    """`DecodingCost` of a text that is not encoded yet."""
    if text.isascii():
        return len(text)
    widest = max(text)
    return 2 * len(text) * (1 if widest < "\u0100" else 2 if widest < "\U00010000" else 4)


class DecodingCost:
    """Bytes of memory to decode UTF-8 that comes in pieces, known before a piece is decoded.

    In Python every character is as wide as the widest. Text that is not ASCII counts twice: it is copied
    when a wider character comes.

    >>> cost = DecodingCost()
    >>> cost.add(b"abc"), cost.add("\U0001f98a".encode())
    (3, 32)
    """

    def __init__(self) -> None:
        self._characters = self._widest = 0

    def add(self, piece: bytes) -> int:
        """Count one more piece and return the cost so far."""
        if piece.isascii():
            self._characters += len(piece)
        else:
            values = np.frombuffer(piece, np.uint8)
            self._characters += int(np.count_nonzero((values & 0xC0) != 0x80))  # continuation bytes
            self._widest = max(self._widest, int(values.max()))
        if not self._widest:
            return self._characters
        return 2 * self._characters * (1 if self._widest < 0xC4 else 2 if self._widest < 0xF0 else 4)
