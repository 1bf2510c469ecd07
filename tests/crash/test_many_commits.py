"""Merging by tiers bounds the number of segments after many commits."""

from __future__ import annotations

import tempfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from citadel import Index
from citadel.index.merge import choose_merge
from tests.support.seeds import NIGHT, fast_folder


@pytest.mark.parametrize("commits", [1_500 if NIGHT else 300])
def test_one_document_commits_leave_few_segments(commits: int) -> None:
    with tempfile.TemporaryDirectory(dir=fast_folder()) as folder:
        index = Index.create(folder)
        max_segments = 0
        for number in range(commits):
            index.add([{"id": f"d{number}", "text": f"rome w{number % 10}"}])
            index.commit()
            max_segments = max(max_segments, len(index._snapshot.segments))
        assert len(Index.open(folder)) == commits
        index.check(deep=True)
        assert max_segments <= 32


@given(st.lists(st.tuples(st.integers(1, 40), st.integers(0, 3)), min_size=1, max_size=120))
def test_tiers_stay_ordered(commits: list[tuple[int, int]]) -> None:
    """At max_segments five segments per tier: 30 for ten thousand documents."""
    sizes, live = list[int](), list[int]()
    for size, deleted in commits:
        sizes, live = [*sizes, size], [*live, size]
        live[0] = max(live[0] - deleted, 0)
        while (chosen := choose_merge(sizes, live)).start != chosen.stop:
            left = sum(live[chosen])
            sizes[chosen] = live[chosen] = [left] if left else []
        assert len(sizes) <= 32


def test_ten_thousand_commits_by_arithmetic() -> None:
    sizes: list[int] = []
    max_segments = 0
    for _ in range(10_000):
        sizes.append(1)
        while (chosen := choose_merge(sizes, sizes)).start != chosen.stop:
            sizes[chosen] = [sum(sizes[chosen])]
        max_segments = max(max_segments, len(sizes))
    assert sum(sizes) == 10_000
    assert max_segments <= 32
