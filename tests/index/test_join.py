"""Joining the list names of several segments, with windows of any size."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import citadel
from citadel.index.join import join_names
from citadel.index.segment import Segment
from tests.index.quick import Quick


class Lists:
    """A stub of a segment that has list names only."""

    def __init__(self, terms: list[bytes] | None = None, keys: list[int] | None = None) -> None:
        self.meta = mock.Mock(kind="bm25" if keys is None else "vectors")
        self.lists = len(terms or keys or [])
        self._terms, self.keys = terms or [], np.array(keys or [], np.uint32)
        self.file = mock.MagicMock()
        corrupt = self.file.__getitem__().corrupt
        corrupt.side_effect = lambda problem: citadel.CorruptIndexError("seg", "", problem)

    def terms_between(self, first: int, stop: int) -> list[bytes]:
        return self._terms[first:stop]


names = st.sets(st.binary(min_size=1, max_size=2), max_size=20).map(sorted)
keys = st.sets(st.integers(0, 40), max_size=20).map(sorted)


@given(st.lists(names, min_size=1, max_size=4), st.integers(1, 7))
def test_terms_are_joined(parts: list[list[bytes]], window: int) -> None:
    check([Lists(terms=part) for part in parts], parts, window)


@given(st.lists(keys, min_size=1, max_size=4), st.integers(1, 7))
def test_keys_are_joined(parts: list[list[int]], window: int) -> None:
    check([Lists(keys=part) for part in parts], parts, window)


def check(segments: list[Lists], parts: list[Any], window: int) -> None:
    joined, lists = list[Any](), [list[Any]() for _ in segments]
    for union, taken in join_names(segments, window):  # type: ignore[arg-type]
        assert len(union) <= window * len(segments)
        joined += list(union)
        for own, part, before in zip(parts, taken, lists, strict=True):
            assert part.first == len(before)
            assert [union[position] for position in part.positions] == own[part.first : part.stop]
            before += own[part.first : part.stop]
    assert joined == sorted(set().union(*parts))
    assert lists == parts


@pytest.mark.parametrize("window", [1, 2, 9])
def test_unsorted_names_raise(window: int) -> None:
    for segment in (Lists(terms=[b"a", b"c", b"b"]), Lists(keys=[1, 3, 3])):
        with pytest.raises(citadel.CorruptIndexError, match="not sorted"):
            list(join_names([segment], window))  # type: ignore[list-item]


def test_changes_never_read_all_terms_at_once(tmp_path: Path) -> None:
    index = citadel.Index.create(Quick(tmp_path), analyser="plain")
    with mock.patch.object(Segment, "terms", property(lambda _: pytest.fail("all terms were read"))):
        for number in range(8):
            index.add([{"id": f"d{number}", "text": f"all word{number}"}])
            index.commit()
        index.add([{"id": "d3", "text": "again"}])
        index.commit().delete(["d5"])
        index.merge().check(deep=True)
    assert index.searcher().search("all").ids == ["d0", "d1", "d2", "d4", "d6", "d7"]
