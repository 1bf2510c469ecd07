"""Huge pages for model weights: every query reads all of them, and 4 KiB pages cost many TLB misses."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path

LARGE = 1 << 21
FILLED = 0.9  # resident share of a region; a huge page in a sparse region would enlarge the process
_COLLAPSE, _PREFER = 25, 14  # MADV_COLLAPSE (Linux 6.1) acts at once, MADV_HUGEPAGE in the background
_REGION = re.compile(r"([0-9a-f]+)-([0-9a-f]+) rw-p [0-9a-f]+ [0-9a-f:]+ 0\s*(\[heap\])?\s*$")
_CHOICE = Path("/sys/kernel/mm/transparent_hugepage/enabled")
_MEMORY = Path("/proc/self/smaps")


def prefer_large_pages() -> int:
    """Advise Linux to use 2 MiB pages for large resident regions; return the bytes it accepted.

    This is only a hint. It does nothing if huge pages are unavailable or disabled.

    >>> prefer_large_pages() >= 0
    True
    """
    try:
        if "[never]" in _CHOICE.read_text(encoding="ascii"):
            return 0
        regions = list(large_regions(_MEMORY.read_text(encoding="utf-8", errors="replace").splitlines()))
        advise = ctypes.CDLL(None).madvise
    except (OSError, AttributeError):
        return 0
    return sum(stop - start for start, stop in regions if _advised(advise, start, stop - start))


def large_regions(lines: Iterable[str]) -> Iterator[tuple[int, int]]:
    """Start and end, aligned to 2 MiB, of the resident private regions in `/proc/self/smaps`.

    >>> list(large_regions(["100000-700000 rw-p 00000000 00:00 0 ", "Size: 6144 kB", "Rss: 6140 kB"]))
    [(2097152, 6291456)]
    """
    named = (line for line in lines if "-" in line.split(" ", 1)[0] or line.startswith("Rss:"))
    for region, resident in pairwise(named):
        match = _REGION.match(region)
        if match is None or not resident.startswith("Rss:"):
            continue
        start, stop = int(match[1], 16), int(match[2], 16)
        first, last = -(-start // LARGE) * LARGE, stop // LARGE * LARGE
        if first < last and int(resident.split()[1]) * 1024 >= FILLED * (stop - start):
            yield first, last


def _advised(advise: ctypes._NamedFuncPointer, start: int, size: int) -> bool:
    position, length = ctypes.c_void_p(start), ctypes.c_size_t(size)
    return any(advise(position, length, advice) == 0 for advice in (_COLLAPSE, _PREFER))
