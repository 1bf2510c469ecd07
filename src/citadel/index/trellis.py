"""Codes of residuals along a trellis: the value of a dimension depends on its bits and those before them.

The bits of a vector are one string, the first dimension lowest. The value of a dimension is that of a window,
the six bits that end with its own; before the first dimension all bits are 0. With 2 bits per dimension, for
example, a window shares four bits with the one before, so that 64 values are in use where 2 bits name 4.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from citadel.types import Floats

WINDOW_BITS = 6
WINDOWS = 1 << WINDOW_BITS
_ROUNDS = 10


def windows_of(buckets: NDArray[np.uint8], bits: int, memory: int) -> NDArray[np.uint8]:
    """The window of each dimension [n, d]: its bits above the `memory` bits before them.

    >>> windows_of(np.array([[1, 2, 3]], np.uint8), bits=2, memory=4).tolist()
    [[16, 36, 57]]
    """
    windows = buckets << np.uint8(memory)
    for back in range(1, -(-memory // bits) + 1):
        shift, earlier = memory - back * bits, buckets[:, :-back]
        windows[:, back:] |= earlier << np.uint8(shift) if shift >= 0 else earlier >> np.uint8(-shift)
    return windows


def rotated(vectors: Floats) -> Floats:
    """Vectors times a Hadamard matrix, in blocks of the largest power of two that divides d; its own inverse.

    It mixes dimensions, so that each has about the same distribution, which is nearly normal.

    >>> rotated(np.array([[1.0, 0.0]], np.float32)).round(3).tolist()
    [[0.7070000171661377, 0.7070000171661377]]
    """
    count, dimension = vectors.shape
    block, half = _block(dimension), 1
    rows = vectors.astype(np.float32)
    while half < block:
        pairs = rows.reshape(count, dimension // (2 * half), 2, half)
        rows = np.stack([pairs[:, :, 0] + pairs[:, :, 1], pairs[:, :, 0] - pairs[:, :, 1]], axis=2)
        half *= 2
    scale = np.float32(1) / np.sqrt(np.float32(block))
    spread: Floats = rows.reshape(count, dimension) * scale
    return spread


def rotated_scaled(vectors: Floats) -> tuple[Floats, Floats]:
    """Any finite vectors [n, d], rotated, and the powers of two [n] by which they are divided.

    These are 1 for vectors whose sums cannot overflow.

    >>> spread, divisors = rotated_scaled(np.array([[3e38, 3e38], [1.0, 0.0]], np.float32))
    >>> divisors.tolist(), bool(np.isfinite(spread).all())
    ([2.0, 1.0], True)
    """
    block = np.float32(_block(vectors.shape[1]))
    is_large = np.abs(vectors).max(axis=1, initial=0) > np.finfo(np.float32).max / block
    divisors: Floats = np.where(is_large, block, np.float32(1)).astype(np.float32)
    return rotated(vectors / divisors[:, None]), divisors


def _block(dimension: int) -> int:
    """The largest power of two that divides a dimension; 1 without dimensions."""
    return dimension & -dimension or 1


def fit_windows(rows: Floats, bits: int) -> Floats:
    """The values of all windows [2^bits, 2^(6 − bits)] that fit rows [n, d], by Lloyd's method."""
    from citadel._native import trellis_codes

    values = _first_values(rows, bits)
    given = np.ascontiguousarray(rows, np.float32)
    for _ in range(_ROUNDS):
        windows = windows_of(trellis_codes(given, values, bits), bits, WINDOW_BITS - bits).reshape(-1)
        counts = np.bincount(windows, minlength=WINDOWS)
        sums = np.bincount(windows, given.reshape(-1), minlength=WINDOWS)
        values = np.where(counts > 0, sums / np.maximum(counts, 1), values).astype(np.float32)
    return values.reshape(1 << bits, -1)


def _first_values(rows: Floats, bits: int) -> Floats:
    """Quantiles of all components, dealt out so that each state chooses among values that lie far apart."""
    memory = WINDOW_BITS - bits
    levels = np.quantile(rows, (np.arange(WINDOWS) + 0.5) / WINDOWS).astype(np.float32)
    values = np.empty(WINDOWS, np.float32)
    for state in range(1 << memory):
        offset = _reversed(state, memory)
        for rank in range(1 << bits):
            values[_code(rank, bits, memory) << memory | state] = levels[rank << memory | offset]
    return values


def _code(rank: int, bits: int, memory: int) -> int:
    """The code of the value of this rank: neighbouring values lead to different states."""
    low = max(bits - memory, 0)
    return (rank << low | rank >> (bits - low)) & ((1 << bits) - 1) if low else rank


def _reversed(number: int, bits: int) -> int:
    """A number with its bits in reverse order.

    >>> _reversed(1, 3)
    4
    """
    return sum((number >> bit & 1) << (bits - 1 - bit) for bit in range(bits))
