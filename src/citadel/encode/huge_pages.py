"""Large pages for a model's weights: a query reads all of them once, and with 4 KiB pages it waits for page tables."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path

LARGE = 1 << 21
FILLED = 0.9  # of a region must be in memory: a large page in an empty one would make the process grow
_COLLAPSE, _PREFER = 25, 14  # MADV_COLLAPSE (Linux 6.1) moves at once, MADV_HUGEPAGE lets the kernel do it in time
_REGION = re.compile(r"([0-9a-f]+)-([0-9a-f]+) rw-p [0-9a-f]+ [0-9a-f:]+ 0\s*(\[heap\])?\s*$")
_CHOICE = Path("/sys/kernel/mm/transparent_hugepage/enabled")
_MEMORY = Path("/proc/self/smaps")


def prefer_large_pages() -> int:
    """Ask Linux to hold the large filled regions of this process in 2 MiB pages; gives the bytes it agreed to.

    Only a hint: nothing else changes, and where the system has no such pages, or its owner forbids them, nothing does.

    >>> prefer_large_pages() >= 0
    True
    """
    try:
        if "[never]" in _CHOICE.read_text(encoding="ascii"):
            return 0
        found = list(large_regions(_MEMORY.read_text(encoding="utf-8", errors="replace").splitlines()))
        advise = ctypes.CDLL(None).madvise
    except (OSError, AttributeError):
        return 0
    return sum(stop - start for start, stop in found if _advised(advise, start, stop - start))


def large_regions(lines: Iterable[str]) -> Iterator[tuple[int, int]]:
    """Start and end, on 2 MiB bounds, of the private memory that `/proc/self/smaps` says is filled.

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
