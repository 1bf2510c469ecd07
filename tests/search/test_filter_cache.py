"""A searcher keeps the masks of the latest filters: few of them, small, and safe to share between threads."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import citadel
from citadel.filter.parse import filter_key, parse_filter
from citadel.index import segment_columns
from citadel.search import request
from tests.index.quick import Quick

ROWS = 60


@pytest.fixture
def index(tmp_path: Path) -> citadel.Index:
    index = citadel.Index.create(Quick(tmp_path / "index"), analyser="plain")
    for part in (range(40), range(40, ROWS)):
        index.add({"id": f"d{n}", "text": "ant", "n": n} for n in part)
        index.commit()
    return index


class Evaluated:
    """Counts how often filters are evaluated."""

    def __init__(self, searcher: citadel.Searcher, monkeypatch: pytest.MonkeyPatch) -> None:
        self.filters: list[Any] = []
        evaluate = searcher.snapshot.allowed

        def allowed(filter: Any, cancel: Any = None) -> list[np.ndarray]:
            self.filters.append(filter)
            return evaluate(filter, cancel)

        monkeypatch.setattr(searcher.snapshot, "allowed", allowed)


def below(limit: int) -> dict[str, Any]:
    return {"n": {"$lt": limit}}


def test_recent_filters_are_evaluated_once(index: citadel.Index, monkeypatch: pytest.MonkeyPatch) -> None:
    searcher = index.searcher()
    evaluated = Evaluated(searcher, monkeypatch)
    for limit in range(1, 9):
        assert len(searcher.search("ant", k=ROWS, filter=below(limit))) == limit
    for limit in range(1, 9):
        assert len(searcher.search("ant", k=ROWS, filter=below(limit))) == limit
    assert len(evaluated.filters) == 8


def test_the_filter_used_longest_ago_is_dropped(
    index: citadel.Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    searcher = index.searcher()
    evaluated = Evaluated(searcher, monkeypatch)
    for limit in (1, 2, 3, 4, 5, 6, 7, 8, 1, 9):  # 1 was used again, so 2 is dropped for 9
        searcher.search("ant", filter=below(limit))
    assert len(searcher._requests._filters) == request._MAX_CACHED_FILTERS == 8
    evaluated.filters.clear()
    searcher.search("ant", filter=below(1))
    assert evaluated.filters == []
    searcher.search("ant", filter=below(2))
    assert evaluated.filters == [parse_filter(below(2))]


def test_filters_that_python_calls_equal_are_told_apart(tmp_path: Path) -> None:
    index = citadel.Index.create(Quick(tmp_path / "index"), analyser="plain")
    index.add([{"id": "a", "text": "ant", "n": 1}])
    searcher = index.commit().searcher()
    for value, expected in ((1, ["a"]), (True, []), (1.0, ["a"]), (0, []), (1, ["a"])):
        assert searcher.search("ant", filter={"n": value}).ids == expected


def test_a_filter_that_fails_is_not_kept(index: citadel.Index) -> None:
    searcher = index.searcher()
    for _ in range(2):
        with pytest.raises(citadel.FilterError):
            searcher.search("ant", filter={"n": {"$contains": "a"}})
    assert not searcher._requests._filters


def test_threads_share_the_filters(index: citadel.Index) -> None:
    searcher, start = index.searcher(threads=1), threading.Barrier(4)

    def search(offset: int) -> list[tuple[int, int]]:
        start.wait()
        limits = [(offset * 7 + step * 5) % 23 for step in range(200)]
        return [(limit, len(searcher.search("ant", k=ROWS, filter=below(limit)))) for limit in limits]

    with ThreadPoolExecutor(4) as pool:
        results = [pair for part in pool.map(search, range(4)) for pair in part]
    assert len(results) == 800 and all(limit == count for limit, count in results)
    assert len(searcher._requests._filters) <= request._MAX_CACHED_FILTERS


def test_columns_built_from_documents_are_bounded(
    index: citadel.Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a segment of format 1, which has no columns file."""
    monkeypatch.setattr(segment_columns, "_MAX_BUILT", 3)
    segment = index._snapshot.segments[0]
    columns = segment_columns.SegmentColumns(
        segment.record.__class__(segment.record.file, segment.record.documents_file, segment.documents, 0),
        None,
        segment.store,
    )
    for name in ("a", "b", "c", "n", "n"):
        assert (columns.column(name) is None) == (name != "n")
    assert set(columns._built) == {"b", "c", "n"}


def test_equal_numbers_of_other_types_are_other_filters() -> None:
    values = [1, True, 1.0, "1", None, [1], [True], {"$eq": 1}, {"$eq": True}, {"$in": [1]}]
    assert len({filter_key({"x": value}) for value in values}) == len(values)
    assert filter_key({"x": np.int64(1)}) is None and filter_key({"x": (1,)}) is None
    parsed = parse_filter({"x": 1})
    assert filter_key(parsed) is parsed
