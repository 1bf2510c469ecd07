"""Vectorised predicates against plain Python, at the edges of int64 and float64."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from citadel.filter.column import holds_exactly
from citadel.filter.scan import codes_in, is_in, numbers_in, ordered
from tests.filter.worlds import FLOATS, HUGE, INTS

ORDERS = {"$gt": operator.gt, "$gte": operator.ge, "$lt": operator.lt, "$lte": operator.le}
BOUNDS = [*INTS, *FLOATS, HUGE, -HUGE, 1 << 63, -(1 << 63) - 1, 1.5, -1e308, 9.223372036854775e18, 5e-324]


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("bound", BOUNDS)
def test_order_is_by_exact_value(order: str, bound: Any) -> None:
    for values in (np.array(INTS, np.int64), np.array(FLOATS, np.float64)):
        expected = [ORDERS[order](value, bound) for value in values.tolist()]
        assert ordered(values, order, bound).tolist() == expected


@pytest.mark.parametrize("count", [0, 1, 8, len(BOUNDS)])
def test_members_are_compared_by_exact_value(count: int) -> None:
    members = BOUNDS[:count]
    for values in (np.array(INTS, np.int64), np.array(FLOATS, np.float64)):
        assert numbers_in(values, members).tolist() == [value in members for value in values.tolist()]


@given(
    st.lists(st.integers(-50, 50), min_size=1),
    st.sets(st.integers(-50, 50), min_size=9),
    st.sampled_from((1, 1 << 40, 1 << 57)),
)
def test_many_members(values: list[int], members: set[int], step: int) -> None:
    """Close together, where a table of the range serves, and far apart, where one of hashes does."""
    made = is_in(np.array(values) * step, np.array(sorted(members)) * step)
    assert made.tolist() == [value in members for value in values]
    floats = is_in(np.array(values) / 8, np.array(sorted(members)) / 8)
    assert floats.tolist() == made.tolist()


@pytest.mark.parametrize("bits", [8, 16])
def test_range_at_the_ends_of_int64(bits: int) -> None:
    lowest, highest = -(1 << 63), (1 << 63) - 1
    near = [lowest + step * 3 for step in range(9)]
    values = np.array([lowest, lowest + 1, highest, 0, near[-1], near[-1] + 1])
    assert is_in(values, np.array(near)).tolist() == [True, False, False, False, True, False]
    codes = np.arange(1 << bits).astype(f"u{bits // 8}")
    for marked in (
        range(3),
        range((1 << bits) - 2, 1 << bits),
        range(1 << bits),
        range(7, 8),
        range(0, 99, 2),
    ):
        wanted = np.zeros(1 << bits, bool)
        wanted[list(marked)] = True
        np.testing.assert_array_equal(codes_in(codes, wanted), wanted)


@given(st.lists(st.integers(-(1 << 63), (1 << 63) - 1)))
def test_exactness(values: list[int]) -> None:
    assert holds_exactly(np.array(values, np.int64)) == all(int(float(value)) == value for value in values)
