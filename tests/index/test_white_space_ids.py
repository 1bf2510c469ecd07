"""Ids with white space are found in all segments, among live documents only."""

from __future__ import annotations

from pathlib import Path

import pytest

from citadel import Index
from citadel.index import id_table
from citadel.types import Document


def spaced(index: Index) -> list[str]:
    return list(index.searcher().snapshot.ids_with_white_space())


def build(path: Path, *segments: list[str]) -> Index:
    index = Index.create(path, model="bm25")
    for ids in segments:
        index.add([Document(id, "fox") for id in ids])
        index.commit()
    return index


@pytest.mark.parametrize("part", [1, 2, 1 << 16])
def test_ids_with_white_space(part: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(id_table, "IDS_PER_PART", part)
    ids = ["d1", "a b", "ü", "c\u3000d", " e", "f\u00a0"]
    with build(tmp_path / "idx", ids, ["d2", "g h"]) as index:
        assert sorted(spaced(index)) == sorted(["a b", "c\u3000d", " e", "f\u00a0", "g h"])


def test_no_id_with_white_space(tmp_path: Path) -> None:
    with build(tmp_path / "idx", ["d1", "ü", "🦊"]) as index:
        assert spaced(index) == []


def test_empty_index(tmp_path: Path) -> None:
    with build(tmp_path / "idx") as index:
        assert spaced(index) == []


def test_deleted_ids_are_ignored(tmp_path: Path) -> None:
    with build(tmp_path / "idx", ["d1", "a b", "c d"]) as index:
        index.delete(["a b"])
        index.commit()
        assert spaced(index) == ["c d"]
