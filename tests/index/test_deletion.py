"""Deleted documents and the term counts that they subtract."""

from __future__ import annotations

from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import citadel
from citadel.index import deletion
from citadel.index.deletion import NumberSet, TermCounts
from tests.index.quick import Quick


@given(st.lists(st.sets(st.integers(0, 1000)), max_size=4), st.integers(0, 1000))
def test_number_set_behaves_like_a_set(parts: list[set[int]], number: int) -> None:
    numbers = NumberSet()
    for part in parts:
        numbers = numbers.union(part)
    expected = set[int]().union(*parts)
    assert (numbers.values.tolist(), len(numbers)) == (sorted(expected), len(expected))
    assert (number in numbers) == (number in expected)


def test_term_counts_are_summed_over_windows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deletion, "WINDOW", 4)
    generator, counts = np.random.default_rng(3), TermCounts(Quick(tmp_path), 11)
    expected = np.zeros(11, np.int64)
    for _ in range(5):
        ranks = np.unique(generator.integers(0, 11, 6))
        amounts = generator.integers(1, 9, len(ranks))
        counts.add(ranks, amounts)
        expected[ranks] += amounts
    counted, totals = counts.totals()
    assert counted.tolist() == np.flatnonzero(expected).tolist()
    assert totals.tolist() == expected[expected > 0].tolist()


def test_deletions_in_small_lookups_equal_a_fresh_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deletion, "_TERMS_PER_LOOKUP", 3)
    documents = [{"id": f"d{n}", "text": f"all word{n % 5} word{n % 7}"} for n in range(40)]
    deleted = [f"d{n}" for n in range(0, 40, 3)]
    folders = (Quick(tmp_path / name) for name in ("once", "twice"))
    once, twice = (citadel.Index.create(folder, analyser="plain") for folder in folders)
    for index in (once, twice):
        index.add(documents)
        index.commit()
    once.delete(deleted)
    once.commit()
    twice.delete(deleted[:4])
    twice.commit().delete(deleted[4:])
    twice.commit()
    left = citadel.Index.create(Quick(tmp_path / "left"), analyser="plain")
    left.add([document for document in documents if document["id"] not in deleted])
    expected = [(hit.id, hit.score) for hit in left.commit().searcher().search("all word1 word2", k=40)]
    for index in (once, twice):
        assert [(hit.id, hit.score) for hit in index.searcher().search("all word1 word2", k=40)] == expected


def test_deleting_raises_when_segment_lacks_a_term(tmp_path: Path) -> None:
    index = citadel.Index.create(Quick(tmp_path), analyser="plain")
    index.add([{"id": "a", "text": "ant bee"}])
    index.commit().delete(["a"])
    with (
        mock.patch("citadel.text.analyser.Analyser.windows", return_value=[["cat"]]),
        pytest.raises(citadel.CorruptIndexError, match="lacks a term of document 'a'"),
    ):
        index.commit()
