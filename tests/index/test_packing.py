"""The numpy reader unpacks what the native packer writes."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from citadel import _native
from citadel.index.packing import block_sizes, unpack_documents, unpack_values


def test_unpack_hand_computed_block() -> None:
    """5, 6, 6, 9 have deltas 1, 0, 3 of two bits each: 01, 00, 11, lowest bit first."""
    firsts, offsets, packed = _native.pack(np.array([5, 6, 6, 9], np.uint32), np.array([0, 4], np.uint64))
    assert firsts.tolist() == [5]
    assert (int(offsets[0]) >> 56, int(offsets[0]) & 0xFF, int(offsets[1]) & 0xFF) == (2, 0, 1)
    assert packed[0] == 0b110001
    assert unpack_documents(firsts, offsets[:-1], packed, np.array([4])).tolist() == [5, 6, 6, 9]


def test_block_sizes() -> None:
    assert block_sizes(np.array([0, 1, 128, 129, 256, 300])).tolist() == [
        1,
        128,
        128,
        1,
        128,
        128,
        128,
        128,
        44,
    ]


LISTS = st.lists(st.lists(st.integers(0, (1 << 32) - 1), min_size=1, max_size=300).map(sorted), max_size=4)


@given(LISTS)
def test_documents_round_trip(lists: list[list[int]]) -> None:
    values = np.array([number for numbers in lists for number in numbers], np.uint32)
    starts = np.cumsum([0, *map(len, lists)]).astype(np.uint64)
    firsts, offsets, packed = _native.pack(values, starts)
    sizes = block_sizes(np.array([len(numbers) for numbers in lists], np.int64))
    padded = np.concatenate([packed, np.zeros(8, np.uint8)])
    assert unpack_documents(firsts, offsets[:-1], padded, sizes).tolist() == values.tolist()


@given(st.lists(st.integers(1, 1 << 20), min_size=1, max_size=300))
def test_counts_round_trip(counts: list[int]) -> None:
    values, starts = np.array(counts, np.uint32), np.array([0, len(counts)], np.uint64)
    offsets, packed = _native.pack_counts(values, starts)
    padded = np.concatenate([packed, np.zeros(8, np.uint8)])
    assert (unpack_values(offsets[:-1], padded, block_sizes(np.array([len(counts)]))) + 1).tolist() == counts
