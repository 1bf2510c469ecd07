"""Merging: which segments, and that nothing is lost on the way."""

from __future__ import annotations

from pathlib import Path
from unittest import mock

import numpy as np
import pytest

import citadel
from citadel.index.merge import choose_merge
from tests.index.quick import Quick


@pytest.mark.parametrize(
    ("live", "chosen"),
    [
        ([], (0, 0)),
        ([1] * 5, (0, 0)),
        ([1] * 6, (0, 6)),
        ([40, 1, 1, 1, 1, 1, 1], (1, 7)),
        ([1, 1, 1, 40, 1, 1, 1], (0, 0)),  # a larger one between them: only neighbours are merged
        ([7] * 6, (0, 6)),
    ],
)
def test_choose(live: list[int], chosen: tuple[int, int]) -> None:
    found = choose_merge(live, live)
    assert (found.start, found.stop) == chosen


def test_many_deletions_rewrite_a_segment() -> None:
    assert choose_merge([10], [8]) == slice(0, 0)
    assert choose_merge([10], [6]) == slice(0, 1)


def test_few_segments_after_many_commits(tmp_path: Path) -> None:
    index = citadel.Index.create(Quick(tmp_path / "i"), analyser="plain")
    for n in range(150):
        index.add([{"id": f"d{n}", "text": f"word{n % 7} all"}])
        index.commit()
    assert (len(index), index.searcher().search("all", k=1000).ids) == (150, [f"d{n}" for n in range(150)])
    assert index.stats()["segments"] <= 16
    assert [len(list((tmp_path / "i").glob(pattern))) for pattern in ("gen.*", "*.tmp")] == [2, 0]
    index.check(deep=True)


def test_a_term_all_of_whose_documents_went_is_gone(tmp_path: Path) -> None:
    index = citadel.Index.create(Quick(tmp_path / "i"), analyser="plain")
    index.add([{"id": "a", "text": "ant"}, {"id": "b", "text": "bee"}, {"id": "c", "text": "bee cat"}])
    index.commit().delete(["a"])
    index.merge()
    assert (index.stats()["lists"], index.stats()["postings"], index.stats()["deleted"]) == (2, 3, 0)
    index.check(deep=True)


def test_merging_nothing(tmp_path: Path) -> None:
    index = citadel.Index.create(Quick(tmp_path / "i"), analyser="plain")
    assert len(index.merge()) == 0
    index.add([{"id": "a", "text": "ant"}])
    index.commit().delete(["a"])
    assert (len(index.merge()), index.stats()["segments"]) == (0, 0)
    index.add([{"id": "a", "text": "ant"}])
    assert len(index.commit()) == 1


def test_pq_comes_when_there_are_enough_vectors(tmp_path: Path) -> None:
    """int8 until then; a merge brings the older segment to the codebook, and its documents stay the nearest."""
    random = np.random.default_rng(0)
    vectors = random.normal(size=(60, 8)).astype(np.float32)
    with mock.patch("citadel.index.writer.SAMPLE_FLOOR", 50):
        index = citadel.Index.create(
            Quick(tmp_path / "i"), fields={"lexical": citadel.Field(8, "pq2")}, fingerprint="x"
        )
        for start, codecs in ((0, ["int8"]), (30, ["int8", "pq2"])):
            index.add_vectors([{"id": f"d{n}", "keys": [1], "vectors": [vectors[n]]} for n in range(start, start + 30)])
            assert index.commit().stats()["codecs"] == codecs
        assert index.merge().stats()["codecs"] == ["pq2"]
        nearest = [index.searcher().search_vectors(keys=[1], vectors=[v], k=1).ids[0] for v in vectors]
        exact = [f"d{n}" for n in np.argmax(vectors @ vectors.T, axis=1)]
        assert sum(map(str.__eq__, nearest, exact)) >= 57
        index.merge(retrain=True).check(deep=True)
        assert index.stats()["codecs"] == ["pq2"]


def test_a_pq_segment_without_postings(tmp_path: Path) -> None:
    """The sample was large enough, but its documents went before the commit."""
    with mock.patch("citadel.index.writer.SAMPLE_FLOOR", 1):
        index = citadel.Index.create(
            Quick(tmp_path / "i"), fields={"lexical": citadel.Field(4, "pq2")}, fingerprint="x"
        )
        index.add_vectors(
            [{"id": "gone", "keys": [1], "vectors": [[1, 2, 3, 4]]}, {"id": "empty", "keys": [], "vectors": []}]
        )
        index.delete(["gone"])
        assert len(index.commit()) == 1
        index.check(deep=True)


def test_sparse_has_no_codebook_whatever_its_codec(tmp_path: Path) -> None:
    fields = {"lexical": citadel.Field(0, "pq2")}
    with mock.patch("citadel.index.writer.SAMPLE_FLOOR", 1):
        index = citadel.Index.create(Quick(tmp_path / "i"), fields=fields, router="sparse", fingerprint="x")
        for name in "ab":
            index.add_vectors([{"id": name, "keys": [1], "weights": [2.0]}])
            index.commit()
    assert index.merge().searcher().search_vectors(keys=[1]).scores == [2.0, 2.0]
