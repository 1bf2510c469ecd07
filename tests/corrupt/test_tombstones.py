"""Hostile tombstones with valid checksums are refused on opening or by a deep check."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import citadel
from tests.corrupt import rewrite
from tests.corrupt.test_contents import cheap_copy

Whole = Callable[[str], Path]
Change = Callable[[np.ndarray], np.ndarray]


def tampered(source: Path, folder: Path, section: str, change: Change) -> Path:
    """A copy of an index with other numbers in one section of its tombstones."""
    path = min(source.glob("del-*"))
    cheap_copy(source, folder, path.name)
    width = "<u8" if section in ("REMOVED_LENGTHS", "TERM_STARTS", "DELETED_STARTS") else "<u4"
    numbers = np.frombuffer(rewrite.sections(path)[section], width).copy()
    rewrite.tamper(folder, "del-", {section: change(numbers).astype(width).tobytes()})
    return folder


def put(position: int, value: int) -> Change:
    def change(numbers: np.ndarray) -> np.ndarray:
        numbers[position] = value
        return numbers

    return change


REFUSED: dict[str, tuple[str, str, Change]] = {
    "a rank beyond the terms": ("bm25", "TERM_RANKS", put(-1, 1 << 20)),
    "the largest rank": ("bm25", "TERM_RANKS", put(-1, 0xFFFFFFFF)),
    "ranks that fall": ("bm25", "TERM_RANKS", lambda ranks: ranks[::-1]),
    "a rank twice": (
        "bm25",
        "TERM_RANKS",
        lambda ranks: np.where(np.arange(len(ranks)) == 1, ranks[0], ranks),
    ),
    "a count of 0": ("bm25", "TERM_COUNTS", put(0, 0)),
    "a count beyond the deleted": ("bm25", "TERM_COUNTS", put(0, 2)),
    "more tokens than exist": ("bm25", "REMOVED_LENGTHS", put(0, 1 << 40)),
    "a negative length": ("bm25", "REMOVED_LENGTHS", put(0, (1 << 64) - 1)),
    "tokens of vectors": ("int8", "REMOVED_LENGTHS", put(0, 1)),
    "a document beyond the segment": ("int8", "DELETED_DOCUMENTS", put(0, 1000)),
    "one segment twice": ("int8", "SEGMENTS", lambda ids: np.tile(ids[:4], 2)),
    "half a segment id": ("int8", "SEGMENTS", lambda ids: ids[:-2]),
}


@pytest.mark.parametrize("case", REFUSED)
def test_hostile_tombstones_are_refused_on_opening(case: str, whole: Whole, tmp_path: Path) -> None:
    kind, section, change = REFUSED[case]
    folder = tampered(whole(kind), tmp_path / "copy", section, change)
    with pytest.raises(citadel.CorruptIndexError) as caught:
        citadel.Index.open(folder)
    assert (caught.value.file, caught.value.section) == (min(folder.glob("del-*")).name, section)


DEEP: dict[str, tuple[str, Change]] = {
    "TERM_COUNTS": ("TERM_RANKS", lambda ranks: np.where(np.arange(len(ranks)) == 0, ranks[0] - 1, ranks)),
    "REMOVED_LENGTHS": ("REMOVED_LENGTHS", put(0, 13)),
}


@pytest.mark.parametrize("section", DEEP)
def test_deep_check_compares_tombstones_with_documents(section: str, whole: Whole, tmp_path: Path) -> None:
    changed, change = DEEP[section]
    folder = tampered(whole("bm25"), tmp_path / "copy", changed, change)
    citadel.Index.open(folder).check()
    with pytest.raises(citadel.CorruptIndexError) as caught:
        citadel.Index.open(folder).check(deep=True)
    assert caught.value.section == section
    citadel.Index.open(whole("bm25")).check(deep=True)
