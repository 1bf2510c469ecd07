"""Which regions of memory are moved to huge pages."""

from __future__ import annotations

import pytest

from citadel.encode import huge_pages
from citadel.encode.huge_pages import large_regions, prefer_large_pages

MIB = 1 << 20


def region(start: int, stop: int, rest: str, resident: int) -> list[str]:
    return [f"{start:x}-{stop:x} {rest}", "Size: 1 kB", f"Rss: {resident // 1024} kB", "Pss: 0 kB"]


@pytest.mark.parametrize("rest", ["rw-p 00000000 00:00 0 ", "rw-p 00000000 00:00 0          [heap]"])
def test_resident_region_is_aligned_to_2_mib(rest):
    assert list(large_regions(region(3 * MIB, 9 * MIB, rest, 6 * MIB))) == [(4 * MIB, 8 * MIB)]


@pytest.mark.parametrize(
    ("rest", "resident"),
    [
        ("rw-p 00000000 00:00 0 ", 5 * MIB),  # such as a thread's stack, which huge pages would enlarge
        ("r--p 00000000 00:00 0 ", 6 * MIB),
        ("rw-s 00000000 00:00 0 ", 6 * MIB),
        ("rw-p 00000000 08:01 77   /usr/lib/libc.so.6", 6 * MIB),
        ("rw-p 00000000 00:00 0          [stack]", 6 * MIB),
    ],
)
def test_other_memory_is_ignored(rest, resident):
    assert list(large_regions(region(3 * MIB, 9 * MIB, rest, resident))) == []


def test_region_smaller_than_a_huge_page_is_ignored():
    assert list(large_regions(region(3 * MIB, 5 * MIB, "rw-p 00000000 00:00 0 ", 2 * MIB))) == []


def test_disabled_huge_pages_are_not_requested(tmp_path, monkeypatch):
    (tmp_path / "enabled").write_text("always madvise [never]\n")
    monkeypatch.setattr(huge_pages, "_CHOICE", tmp_path / "enabled")
    monkeypatch.setattr(huge_pages, "_MEMORY", tmp_path / "never read")
    assert prefer_large_pages() == 0


def test_missing_system_files_are_ignored(tmp_path, monkeypatch):
    monkeypatch.setattr(huge_pages, "_CHOICE", tmp_path / "absent")
    assert prefer_large_pages() == 0
