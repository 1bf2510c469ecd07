"""Build, change, merge, check and search an index of text; print the peak memory of each step."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator

from citadel import Index
from tests.crash.memory_child import report_peaks, resident

TERMS_PER_DOCUMENT = 10  # unique to it, besides ten common ones
COMMON = 2_000


def documents(count: int, first: int = 0) -> Iterator[dict[str, str]]:
    """Documents of unique and of common words."""
    for number in range(first, first + count):
        own = (f"u{TERMS_PER_DOCUMENT * number + i:x}q" for i in range(TERMS_PER_DOCUMENT))
        common = (f"common{(number * 37 + i * i * 11) % COMMON}" for i in range(10))
        yield {"id": f"doc{number}", "text": " ".join([*own, *common])}


def build(index: Index, count: int) -> None:
    """Add and commit in three parts."""
    for first in range(0, count, count // 3):
        index.add(documents(min(count // 3, count - first), first))
        index.commit()


def delete(index: Index) -> None:
    index.delete(["doc5", "doc77"])
    index.commit()


def replace(index: Index, count: int) -> None:
    """Replace every document, in one commit."""
    index.add(documents(count))
    index.commit()


def main(folder: str, memory: int, count: int) -> None:
    small = Index.create(f"{folder}/small", model="bm25", memory=memory)  # triggers lazy imports
    build(small, 30)
    small.delete(["doc5"])
    small.merge().check(deep=True)
    assert small.searcher(threads=1).search("common0")
    del small
    baseline = resident()
    index = Index.create(f"{folder}/index", model="bm25", memory=memory)
    steps: dict[str, Callable[[], object]] = {
        "build": lambda: build(index, count),
        "delete": lambda: delete(index),
        "merge": index.merge,
        "replace": lambda: replace(index, count),
        "second merge": index.merge,
        "check": lambda: index.check(deep=True),
        "search": lambda: [index.searcher(threads=1).search(f"common{i} u{i:x}q") for i in range(20)],
    }
    report_peaks(index, baseline, steps)


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
