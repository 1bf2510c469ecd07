"""Ids sorted by hash in groups, as if they were sorted whole."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from citadel.index import lists
from citadel.index.columns import Spool
from tests.index.quick import Quick


@pytest.mark.parametrize("count", [0, 1, 7, 8, 500])
@pytest.mark.parametrize("limit", [8, 1 << 17])
def test_hashes_are_sorted_in_groups(count: int, limit: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lists, "WINDOW", 64)
    monkeypatch.setattr("citadel.index.packing.windows.__defaults__", (64,))
    hashes = np.random.default_rng(count).integers(0, 1 << 64, count, np.uint64)
    hashes[count // 2 :] = hashes[: count - count // 2]  # equal hashes keep the order of their documents
    numbers = Spool(Quick(tmp_path), np.uint32)
    parts = list(lists._sorted_hashes(hashes, numbers, limit))
    order = np.argsort(hashes, kind="stable")
    assert np.concatenate(parts).tolist() == hashes[order].tolist()
    assert numbers.values().tolist() == order.tolist()
    assert max(map(len, parts)) < 500 or limit > 500
