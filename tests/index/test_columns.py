"""Columns that grow in place hold what was appended, whatever the sizes of the pieces."""

from __future__ import annotations

import mmap

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from citadel.index.columns import Column


@given(st.lists(st.integers(0, 50), min_size=1, max_size=30))
def test_pieces_come_back_in_order(sizes: list[int]) -> None:
    check(sizes)


def test_where_the_system_cannot_move_pages_they_are_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    class Fixed(mmap.mmap):
        def resize(self, newsize: int) -> None:
            raise SystemError("mmap: resizing not available--no mremap()")

    monkeypatch.setattr("citadel.index.columns.mmap.mmap", Fixed)
    check([1, 50, 0, 400, 2_000])


def check(sizes: list[int]) -> None:
    column = Column()
    rows = np.arange(3 * sum(sizes), dtype=np.int32).reshape(-1, 3)
    start = 0
    for size in sizes:
        column.append(rows[start : start + size])
        start += size
    assert column.values().dtype == np.int32
    assert column.values().tolist() == rows.tolist()
