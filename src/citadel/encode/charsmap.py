"""Validate the compiled normalizer of SentencePiece (`precompiled_charsmap`) before a library reads it.

The map is a trie of bytes in a double array, and replacements that end with NUL. A damaged one makes the
tokenizers library panic, and a cycle in it makes a text take quadratic time.
"""

from __future__ import annotations

import base64
import binascii
import struct

import numpy as np
from numpy.typing import NDArray

MAX_BYTES = 4 << 20
MAX_DEPTH = 64  # bytes of a replaced sequence
MAX_LETTERS = 18  # of a replacement: the longest of NFKC
_BLOCK = 256  # children of a node lie in one block
_CHILD, _LEAF, _WIDE = np.uint32(0x8000_00FF), np.uint32(0x100), np.uint32(0x200)

Units = NDArray[np.uint32]


def charsmap_problem(text: object) -> str:
    """What is wrong with a map in base64, or "" if nothing is.

    >>> charsmap_problem("AAAA")
    'its compiled normalizer is damaged'
    """
    if not isinstance(text, str) or len(text) > 2 * MAX_BYTES:
        return f"its compiled normalizer has more than {MAX_BYTES >> 20} MB"
    try:
        contents = base64.b64decode(text, validate=True)
        (size,) = struct.unpack_from("<I", contents)
        pool = contents[4 + size :]
        pool.decode()
    except (binascii.Error, struct.error, ValueError):  # ValueError: not UTF-8
        return "its compiled normalizer is damaged"
    if size % 4 or not _BLOCK * 4 <= size <= len(contents) - 4:
        return "its compiled normalizer is damaged"
    return _trie_problem(np.frombuffer(contents, "<u4", size // 4, 4).astype(np.uint32), pool)


def _trie_problem(units: Units, pool: bytes) -> str:
    """Walk all nodes, level by level: every read must lie inside, and no path may be long."""
    numbers = np.arange(len(units), dtype=np.uint32)
    labels = units & _CHILD  # bit 31 is set in leaves, so they equal no byte
    offsets = (units >> np.uint32(10)) << ((units & _WIDE) >> np.uint32(6))
    parents = np.where((labels > 0) & (labels < _BLOCK), numbers ^ labels, len(units))
    level = offsets[:1].astype(np.int64)
    for _ in range(MAX_DEPTH):
        if len(level) == 0:
            return ""
        if int((level | (_BLOCK - 1)).max()) >= len(units):
            return "its compiled normalizer is damaged"
        children = np.flatnonzero(np.isin(parents, level))
        level = np.unique((numbers[children] ^ offsets[children]).astype(np.int64))
        ends = (numbers[children] ^ offsets[children])[(units[children] & _LEAF) > 0]
        if len(ends) and int(ends.max()) >= len(units):
            return "its compiled normalizer is damaged"
        if problem := _replacement_problem(np.unique(units[ends] & np.uint32(0x7FFF_FFFF)), pool):
            return problem
    return f"its compiled normalizer replaces more than {MAX_DEPTH} bytes at once"


def _replacement_problem(starts: Units, pool: bytes) -> str:
    """Each replacement must begin at a letter inside the pool, and be short."""
    for start in starts.tolist():
        if start > len(pool) or (start < len(pool) and pool[start] & 0xC0 == 0x80):
            return "its compiled normalizer is damaged"
        end = pool.find(b"\0", start)
        text = pool[start : len(pool) if end < 0 else end]
        if len(text) > 4 * MAX_LETTERS or len(text.decode()) > MAX_LETTERS:
            return f"its compiled normalizer makes more than {MAX_LETTERS} letters of one"
    return ""
