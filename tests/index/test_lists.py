"""Sorting id hashes in groups equals sorting them at once."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from citadel.index import segment_writer
from citadel.index.growable import Spool
from tests.index.quick import Quick


@pytest.mark.parametrize(
    ("count", "limit"), [(0, 8), (1, 8), (8, 8), (500, 64), (500, 1 << 17), (70_000, 1 << 14)]
)
def test_hashes_are_sorted_in_groups(count: int, limit: int, tmp_path: Path) -> None:
    hashes = np.random.default_rng(count).integers(0, 1 << 64, count, np.uint64)
    hashes[count // 2 :] = hashes[: count - count // 2]  # equal hashes keep the order of their documents
    numbers = Spool(Quick(tmp_path), np.uint32)
    parts = list(segment_writer._sorted_hashes(hashes, numbers, limit))
    order = np.argsort(hashes, kind="stable")
    assert np.concatenate(parts).tolist() == hashes[order].tolist()
    assert numbers.values().tolist() == order.tolist()
    assert max(map(len, parts)) <= 2 * limit
