"""CRC-32C: from the native engine, or in numpy where that is not built (a GPU machine that only reads)."""

from __future__ import annotations

import functools

import numpy as np
from numpy.typing import NDArray

BLOCK = 1 << 20  # bytes a section's CRC stands for
_POLYNOMIAL = 0x82F63B78
_STRIPE = 1024  # bytes each of the parallel lanes below reads

Bytes = bytes | bytearray | memoryview | NDArray[np.uint8]


@functools.cache
def _table() -> NDArray[np.uint32]:
    """The change that each byte makes: [256]."""
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(table & 1, (table >> 1) ^ _POLYNOMIAL, table >> 1).astype(np.uint32)
    return table


@functools.cache
def _zeros_operator(length: int) -> NDArray[np.uint32]:
    """What `length` zero bytes do to each bit of a CRC, as 32 columns."""
    state = np.uint32(1) << np.arange(32, dtype=np.uint32)
    for _ in range(length):
        state = (state >> 8) ^ _table()[state & 0xFF]
    return state


def _shift(value: int, length: int) -> int:
    columns = _zeros_operator(length)
    bits = (value >> np.arange(32)) & 1
    return int(np.bitwise_xor.reduce(columns[bits.astype(bool)], initial=0))


def slow_crc32c(data: Bytes, value: int = 0) -> int:
    """CRC-32C in numpy: stripes of the data run side by side and are joined at the end.

    >>> hex(slow_crc32c(b"123456789"))
    '0xe3069283'
    """
    octets = np.frombuffer(data, np.uint8)
    table, state = _table(), value ^ 0xFFFFFFFF
    whole = len(octets) // _STRIPE
    lanes = np.zeros(whole, np.uint32)
    columns = octets[: whole * _STRIPE].reshape(whole, _STRIPE).T  # [_STRIPE, whole]
    for column in columns if whole else ():
        lanes = (lanes >> 8) ^ table[(lanes ^ column) & 0xFF]
    for lane in lanes.tolist():
        state = _shift(state, _STRIPE) ^ lane
    for octet in octets[whole * _STRIPE :].tolist():
        state = (state >> 8) ^ int(table[(state ^ octet) & 0xFF])
    return state ^ 0xFFFFFFFF


def slow_crc32c_blocks(data: Bytes, block: int) -> NDArray[np.uint32]:
    """One CRC-32C for each `block` bytes.

    >>> len(slow_crc32c_blocks(b"abc", 2))
    2
    """
    octets = np.frombuffer(data, np.uint8)
    starts = range(0, len(octets), block)
    return np.array([slow_crc32c(octets[start : start + block]) for start in starts], np.uint32)


try:
    from citadel._native import crc32c as crc32c
    from citadel._native import crc32c_blocks as crc32c_blocks
except ImportError:
    crc32c, crc32c_blocks = slow_crc32c, slow_crc32c_blocks
