"""Build the compiled normalizer of SentencePiece from a few rules."""

from __future__ import annotations

import base64
import struct

BLOCK, LEAF, VALUE = 256, 1 << 8, 1 << 31


def units_of(rules: dict[str, str]) -> tuple[list[int], bytes]:
    """The double array, one block per node, and the replacements."""
    pool, starts = b"", {}
    for new in rules.values():
        starts[new] = len(pool)
        pool += new.encode() + b"\0"
    nodes: dict[bytes, int] = {b"": BLOCK}  # prefix → block of its children
    for key in rules:
        for end in range(1, len(key.encode()) + 1):
            nodes.setdefault(key.encode()[:end], BLOCK * (len(nodes) + 1))
    units = [0] * (BLOCK * (len(nodes) + 1))
    ends = {key.encode(): starts[new] for key, new in rules.items()}
    units[0] = BLOCK << 10
    for prefix, block in nodes.items():
        if prefix:
            at = nodes[prefix[:-1]] ^ prefix[-1]
            units[at] = (at ^ block) << 10 | prefix[-1] | (LEAF if prefix in ends else 0)
        if prefix in ends:
            units[block] = VALUE | ends[prefix]
    return units, pool


def encoded(units: list[int], pool: bytes) -> str:
    contents = struct.pack(f"<{len(units) + 1}I", 4 * len(units), *units) + pool
    return base64.b64encode(contents).decode()


def charsmap(rules: dict[str, str]) -> str:
    return encoded(*units_of(rules))
