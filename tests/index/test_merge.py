"""Choosing segments to merge, and merging without loss."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

import citadel
from citadel.index.merge import choose_merge
from tests.index.quick import Quick
from tests.support.watched import WatchedStorage


@pytest.mark.parametrize(
    ("live", "chosen"),
    [
        ([], (0, 0)),
        ([1] * 5, (0, 0)),
        ([1] * 6, (0, 6)),
        ([40, 1, 1, 1, 1, 1, 1], (1, 7)),
        ([1, 1, 1, 40, 1, 1, 1], (0, 0)),  # a larger one in between: only adjacent segments are merged
        ([7] * 6, (0, 6)),
    ],
)
def test_choose_merge(live: list[int], chosen: tuple[int, int]) -> None:
    merged = choose_merge(live, live)
    assert (merged.start, merged.stop) == chosen


def test_segment_with_many_deletions_is_rewritten() -> None:
    assert choose_merge([10], [8]) == slice(0, 0)
    assert choose_merge([10], [6]) == slice(0, 1)


def test_many_commits_leave_few_segments(tmp_path: Path) -> None:
    index = citadel.Index.create(Quick(tmp_path / "i"), analyser="plain")
    for n in range(150):
        index.add([{"id": f"d{n}", "text": f"word{n % 7} all"}])
        index.commit()
    assert (len(index), index.searcher().search("all", k=1000).ids) == (150, [f"d{n}" for n in range(150)])
    assert index.stats()["segments"] <= 16
    assert [len(list((tmp_path / "i").glob(pattern))) for pattern in ("gen.*", "*.tmp")] == [2, 0]
    index.check(deep=True)


def test_merge_drops_terms_without_documents(tmp_path: Path) -> None:
    index = citadel.Index.create(Quick(tmp_path / "i"), analyser="plain")
    index.add([{"id": "a", "text": "ant"}, {"id": "b", "text": "bee"}, {"id": "c", "text": "bee cat"}])
    index.commit().delete(["a"])
    index.merge()
    assert (index.stats()["lists"], index.stats()["postings"], index.stats()["deleted"]) == (2, 3, 0)
    index.check(deep=True)


def test_merging_an_empty_index(tmp_path: Path) -> None:
    index = citadel.Index.create(Quick(tmp_path / "i"), analyser="plain")
    assert len(index.merge()) == 0
    index.add([{"id": "a", "text": "ant"}])
    index.commit().delete(["a"])
    assert (len(index.merge()), index.stats()["segments"]) == (0, 0)
    index.add([{"id": "a", "text": "ant"}])
    assert len(index.commit()) == 1


def test_pq_is_used_once_there_are_enough_vectors(tmp_path: Path) -> None:
    """Before that, int8; a merge re-encodes older segments, and rankings stay the same."""
    random = np.random.default_rng(0)
    vectors = random.normal(size=(60, 8)).astype(np.float32)
    with mock.patch("citadel.index.spill.SAMPLE_FLOOR", 50):
        index = citadel.Index.create(
            Quick(tmp_path / "i"), fields={"lexical": citadel.Field(8, "pq2")}, fingerprint="x"
        )
        for start, codecs in ((0, ["int8"]), (30, ["int8", "pq2"])):
            index.add_vectors(
                [{"id": f"d{n}", "keys": [1], "vectors": [vectors[n]]} for n in range(start, start + 30)]
            )
            assert index.commit().stats()["codecs"] == codecs
        assert index.merge().stats()["codecs"] == ["pq2"]
        nearest = [index.searcher().search_vectors(keys=[1], vectors=[v], k=1).ids[0] for v in vectors]
        exact = [f"d{n}" for n in np.argmax(vectors @ vectors.T, axis=1)]
        assert sum(map(str.__eq__, nearest, exact)) >= 57
        index.merge(retrain=True).check(deep=True)
        assert index.stats()["codecs"] == ["pq2"]


def test_pq_segment_without_postings(tmp_path: Path) -> None:
    """The sample was large enough, but its documents were deleted before the commit."""
    with mock.patch("citadel.index.spill.SAMPLE_FLOOR", 1):
        index = citadel.Index.create(
            Quick(tmp_path / "i"), fields={"lexical": citadel.Field(4, "pq2")}, fingerprint="x"
        )
        index.add_vectors(
            [
                {"id": "gone", "keys": [1], "vectors": [[1, 2, 3, 4]]},
                {"id": "empty", "keys": [], "vectors": []},
            ]
        )
        index.delete(["gone"])
        assert len(index.commit()) == 1
        index.check(deep=True)


def test_sparse_field_never_has_a_codebook(tmp_path: Path) -> None:
    fields = {"lexical": citadel.Field(0, "pq2")}
    with mock.patch("citadel.index.spill.SAMPLE_FLOOR", 1):
        index = citadel.Index.create(Quick(tmp_path / "i"), fields=fields, router="sparse", fingerprint="x")
        for name in "ab":
            index.add_vectors([{"id": name, "keys": [1], "weights": [2.0]}])
            index.commit()
    assert index.merge().searcher().search_vectors(keys=[1]).scores == [2.0, 2.0]


# -- disk space ------------------------------------------------------------------------------------------


def texts(count: int, first: int = 0) -> list[dict[str, Any]]:
    return [{"id": f"d{n}", "text": f"all word{n} word{n % 100} " * 20} for n in range(first, first + count)]


def vectors(count: int, first: int = 0) -> list[dict[str, Any]]:
    generator = np.random.default_rng(first)
    return [
        {
            "id": f"d{n}",
            "keys": generator.integers(0, 200, 30),
            "weights": np.ones(30),
            "vectors": generator.standard_normal((30, 8)),
        }
        for n in range(first, first + count)
    ]


class Watched(Quick):
    """A folder with a given amount of free space."""

    free: int | None = None

    def free_space(self) -> int | None:
        return self.free


def two_segments(storage: Any, kind: str) -> citadel.Index:
    vectors_only: dict[str, Any] = {"fields": {"lexical": 8}, "fingerprint": "f"}
    index = citadel.Index.create(storage, **({"analyser": "plain"} if kind == "text" else vectors_only))
    for first in (0, 2_000):
        if kind == "text":
            index.add(texts(2_000, first))
        else:
            index.add_vectors(vectors(2_000, first))
        index.commit()
    return index


def folder_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize("kind", ["text", "vectors"])
@pytest.mark.parametrize("deleted", [0, 3_000])
def test_merge_space_bounds_the_disk_space_of_a_merge(kind: str, deleted: int, tmp_path: Path) -> None:
    sizes: list[int] = []
    storage = WatchedStorage(Quick(tmp_path), lambda _: sizes.append(folder_bytes(tmp_path)))
    index = two_segments(storage, kind)
    with mock.patch("citadel.index.commit.choose_merge", return_value=slice(0, 0)):
        index.delete([f"d{n}" for n in range(deleted)])
        index.commit()
        before, needed = folder_bytes(tmp_path), index.merge_space()
        sizes.clear()
        index.merge()
    taken = max(sizes) - before
    assert needed / 2 < taken <= needed
    assert index.merge_space() == 0


def test_merge_without_disk_space_raises_before_writing(tmp_path: Path) -> None:
    storage = Watched(tmp_path)
    index = two_segments(storage, "text")
    files, storage.free = sorted(tmp_path.iterdir()), 500_000
    refused = r"up to [0-9.]+ MB of disk space, 0.5 MB are free"
    with pytest.raises(citadel.ResourceError, match=refused) as info:
        index.merge()
    assert info.value.exit_code == 6
    assert sorted(tmp_path.iterdir()) == files
    assert len(index.searcher().search("all", k=5000)) == 4_000
    storage.free = index.merge_space()
    assert index.merge().stats()["segments"] == 1


def test_merge_is_tried_when_free_space_is_unknown(tmp_path: Path) -> None:
    assert two_segments(Watched(tmp_path), "text").merge().stats()["segments"] == 1


def test_automatic_merge_is_postponed_without_disk_space(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    storage = Watched(tmp_path)
    index = citadel.Index.create(storage, analyser="plain")
    storage.free = 0
    with caplog.at_level(logging.WARNING, "citadel"):
        for n in range(7):
            index.add(texts(1, n))
            index.commit()
    assert "merging is postponed" in caplog.text
    assert (index.stats()["segments"], len(index)) == (7, 7)
    storage.free = None
    index.add(texts(1, 7))
    assert index.commit().stats()["segments"] < 7


def test_spills_are_not_merged_without_disk_space(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    storage = Watched(tmp_path)
    index = citadel.Index.create(storage, analyser="plain", memory=4096)
    storage.free = 0
    with caplog.at_level(logging.WARNING, "citadel"):
        index.add(texts(12))
        index.commit()
    assert "merging is postponed" in caplog.text
    assert len(index.searcher().search("all", k=20)) == 12


def test_folder_storage_reports_free_space(tmp_path: Path) -> None:
    assert (Quick(tmp_path).free_space() or 0) > 0
    assert Quick(tmp_path / "nothing").free_space() is None
