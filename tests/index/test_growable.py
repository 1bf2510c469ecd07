"""Columns and spools return what was appended."""

from __future__ import annotations

import errno
import mmap
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from citadel.index.growable import Column, Spool
from tests.index.quick import Quick
from tests.support.watched import Fail, WatchedStorage


@given(st.lists(st.integers(0, 50), min_size=1, max_size=30))
def test_column_returns_pieces_in_order(sizes: list[int]) -> None:
    check(sizes)


def test_column_copies_pages_without_mremap(monkeypatch: pytest.MonkeyPatch) -> None:
    class Fixed(mmap.mmap):
        def resize(self, newsize: int) -> None:
            raise SystemError("mmap: resizing not available--no mremap()")

    monkeypatch.setattr("citadel.index.growable.mmap.mmap", Fixed)
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


@pytest.mark.parametrize("sizes", [[], [0, 3], [5, 100_000, 1, 200_000, 7], [300_000]])
def test_spool_returns_appended_values(sizes: list[int], tmp_path: Path) -> None:
    spool, values = Spool(Quick(tmp_path), np.uint32), np.arange(sum(sizes), dtype=np.uint32)
    for part in np.split(values, np.cumsum(sizes)[:-1]) if sizes else []:
        spool.append(part)
    assert spool.values().dtype == np.uint32
    assert np.array_equal(spool.values(), values)
    assert list(tmp_path.iterdir()) == []  # its file is anonymous


def test_long_spool_uses_a_file(tmp_path: Path) -> None:
    spool = Spool(Quick(tmp_path), np.uint64)
    for _ in range(40):
        spool.append(np.zeros(10_000, np.uint64))
        assert len(spool._waiting) <= 1 << 18
    assert isinstance(spool.values().base.obj, mmap.mmap)  # type: ignore[union-attr]


def test_spool_raises_on_full_disk(tmp_path: Path) -> None:
    spool = Spool(WatchedStorage(Quick(tmp_path), Fail(1, errno.ENOSPC, ("scratch",))), np.uint64)
    with pytest.raises(OSError, match="No space"):
        spool.append(np.zeros(100_000, np.uint64))
