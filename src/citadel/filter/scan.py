"""Vectorised predicates over the values of a column; each returns a new mask."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citadel.filter.match import ORDERS
from citadel.filter.presence import Mask

_FEW = 8  # comparisons that cost less than a table look-up
_TABLE = 1 << 16
_INT64 = np.iinfo(np.int64)
_MIX = np.uint64(0x9E3779B97F4A7C15)  # spreads bits to the top, as in Fibonacci hashing


def ordered(values: NDArray[Any], operator: str, bound: float) -> Mask:
    """Values that are ordered so against a number, by exact value.

    >>> ordered(np.array([1, 2]), "$gt", 1.5).tolist()
    [False, True]
    """
    if values.dtype == np.int64:
        return _ordered_ints(values, operator, bound)
    if isinstance(bound, int):
        operator, bound = _float_bound(operator, bound)
    mask: Mask = ORDERS[operator](values, bound)
    return mask


def _ordered_ints(values: NDArray[np.int64], operator: str, bound: float) -> Mask:
    if isinstance(bound, float):  # x > 1.5 is x > 1 and x ≥ 1.5 is x ≥ 2
        bound = math.floor(bound) if operator in ("$gt", "$lte") else math.ceil(bound)
    if not _INT64.min <= bound <= _INT64.max:
        is_above = bound > _INT64.max
        return np.full(len(values), is_above == (operator in ("$lt", "$lte")))
    mask: Mask = ORDERS[operator](values, np.int64(bound))
    return mask


def _float_bound(operator: str, bound: int) -> tuple[str, float]:
    """The comparison of floats that says the same as this one with an integer.

    >>> _float_bound("$gt", (1 << 53) + 1)
    ('$gt', 9007199254740992.0)
    """
    try:
        nearest = float(bound)
    except OverflowError:
        nearest = math.inf if bound > 0 else -math.inf
    if nearest > bound:  # no float lies between
        operator = "$gte" if operator in ("$gt", "$gte") else "$lt"
    elif nearest < bound:
        operator = "$gt" if operator in ("$gt", "$gte") else "$lte"
    return operator, nearest


def numbers_in(values: NDArray[Any], members: Sequence[float]) -> Mask:
    """Values that equal one of some numbers, by exact value.

    >>> numbers_in(np.array([1, 2, 3]), [2.0, 2.5, 1 << 70]).tolist()
    [False, True, False]
    """
    if values.dtype == np.int64:
        exact = {int(x) for x in members if x == int(x) and _INT64.min <= x <= _INT64.max}
        return is_in(values, np.array(sorted(exact), np.int64))
    floats = {float(x) for x in members if _is_float(x)}
    return is_in(values, np.array(sorted(floats), np.float64))


def _is_float(number: float) -> bool:
    try:
        return float(number) == number
    except OverflowError:
        return False


def is_in(values: NDArray[Any], members: NDArray[Any]) -> Mask:
    """Values that are among sorted members of the same type."""
    mask = np.zeros(len(values), bool)
    if len(members) <= _FEW:
        for member in members:
            np.logical_or(mask, values == member, out=mask)
        return mask
    if members.dtype == np.int64 and int(members[-1]) - int(members[0]) < _TABLE - 1:
        return _in_range(values, members)
    table = np.zeros(_TABLE, bool)
    table[_top_bits(members)] = True
    candidates = np.flatnonzero(table.take(_top_bits(values)))
    chosen = values[candidates]
    nearest = np.minimum(np.searchsorted(members, chosen), len(members) - 1)
    mask[candidates[members[nearest] == chosen]] = True
    return mask


def _in_range(values: NDArray[np.int64], members: NDArray[np.int64]) -> Mask:
    """The same for integers that lie close together: a table of all between the first and the last."""
    first, span = members[0], members[-1] - members[0] + 1
    table = np.zeros(int(span) + 1, bool)  # the last entry is for all values beyond
    table[members - first] = True
    offsets = np.subtract(values, first).view(np.uint64)  # what lies below wraps around
    np.minimum(offsets, np.uint64(span), out=offsets)
    mask: Mask = table.take(offsets.view(np.int64))
    return mask


def _top_bits(values: NDArray[Any]) -> NDArray[np.uint16]:
    """Sixteen well mixed bits of 8-byte values; equal values have equal bits."""
    if values.dtype == np.float64:
        values = values + 0.0  # makes -0.0 equal to 0.0
    return (values.view(np.uint64) * _MIX).view(np.uint16)[3::4]


def codes_in(codes: NDArray[Any], wanted: Mask) -> Mask:
    """Codes that a table of the dictionary's entries marks.

    >>> codes_in(np.array([2, 0, 1], np.uint8), np.array([True, False, True])).tolist()
    [True, True, False]
    """
    edges = np.flatnonzero(np.diff(wanted, prepend=False, append=False))
    if len(edges) > 2 * _FEW:
        return wanted.take(codes)
    mask = np.zeros(len(codes), bool)
    for start, stop in edges.reshape(-1, 2).tolist():
        np.logical_or(mask, _code_range(codes, start, stop), out=mask)
    return mask


def _code_range(codes: NDArray[Any], start: int, stop: int) -> Mask:
    first = codes.dtype.type(start)
    last = codes.dtype.type(stop - 1 - start)
    mask: Mask = codes - first <= last if last else codes == first  # unsigned: what lies below wraps around
    return mask


def any_in_lists(hits: Mask, offsets: NDArray[np.int64]) -> Mask:
    """Which lists have a hit; list i has members offsets[i] … offsets[i + 1] − 1.

    >>> any_in_lists(np.array([False, True]), np.array([0, 1, 1, 2])).tolist()
    [False, False, True]
    """
    mask = np.zeros(len(offsets) - 1, bool)
    mask[np.searchsorted(offsets, np.flatnonzero(hits), side="right") - 1] = True
    return mask


def equal_lists(tokens: NDArray[Any], offsets: NDArray[np.int64], wanted: NDArray[Any]) -> Mask:
    """Which lists have exactly these members, in this order."""
    mask: Mask = np.diff(offsets) == len(wanted)
    lists = np.flatnonzero(mask)
    starts = offsets[lists]
    for offset, token in enumerate(wanted):
        is_equal = tokens[starts + offset] == token
        mask[lists[~is_equal]] = False
        lists, starts = lists[is_equal], starts[is_equal]
    return mask
