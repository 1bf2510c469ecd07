"""Truncate index files while they are in use and print the error of each reader."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import citadel
from tests.corrupt import indexes


def main() -> None:
    folder, kind, what, keep, spare = (
        Path(sys.argv[1]),
        sys.argv[2],
        sys.argv[3],
        float(sys.argv[4]),
        Path(sys.argv[5]),
    )
    index, other = citadel.Index.open(folder), citadel.Index.open(spare)
    query = next(iter(indexes.queries(kind)))
    expected = query(other.searcher(threads=1)).ids
    searchers = {name: index.searcher(engine=name, threads=1) for name in ("native", "reference")}
    for searcher in searchers.values():
        assert query(searcher).ids == expected  # all checksums are verified before the truncation
    for path in folder.glob(f"{what}*"):
        os.truncate(path, int(path.stat().st_size * keep))
    time.sleep(0.02)  # queries check the length every 10 ms
    actions: dict[str, Callable[[], Any]] = {
        "search": lambda: query(searchers["native"]).ids,
        "reference": lambda: query(searchers["reference"]).ids,
        "explain": lambda: indexes.explained(searchers["native"], kind, "d0"),
        "ids": lambda: [index.get(f"d{number}") for number in range(indexes.DOCUMENTS)],
        "filter": lambda: list(indexes.filtered(index, searchers["native"], kind)),
        "stats": index.stats,
        "merge": index.merge,
        "check": lambda: index.check(deep=True),
    }
    print(json.dumps({name: outcome(action) for name, action in actions.items()}), flush=True)
    assert query(other.searcher(threads=1)).ids == expected  # other indexes are not affected
    shutil.rmtree(folder)
    shutil.copytree(spare, folder)
    again = citadel.Index.open(folder)
    assert query(again.searcher(threads=1)).ids == expected  # usable once its files are restored
    print("alive")


def outcome(action: Callable[[], Any]) -> list[str]:
    try:
        action()
    except Exception as error:  # checked by the test
        return [type(error).__name__, str(getattr(error, "problem", error))]
    return ["", ""]


if __name__ == "__main__":
    main()
