"""Deleting by a filter chooses among the committed documents of the newest generation."""

from __future__ import annotations

from pathlib import Path

import citadel


def test_filter_sees_the_commits_of_others(tmp_path: Path) -> None:
    index = citadel.Index.create(tmp_path / "i", model="bm25")
    index.add([{"id": "a", "text": "x", "year": 1}])
    index.commit()
    with citadel.Index.open(tmp_path / "i") as other:
        other.add([{"id": "b", "text": "x", "year": 1}, {"id": "a", "text": "x", "year": 2}])
        other.commit()
    assert index.delete(filter={"year": 1}) == 1
    index.commit()
    assert [(document.id, document.metadata) for document in index.documents()] == [("a", {"year": 2})]


def test_uncommitted_replacement_is_kept(tmp_path: Path) -> None:
    index = citadel.Index.create(tmp_path / "i", model="bm25")
    index.add([{"id": "a", "text": "old", "x": 1}, {"id": "b", "text": "old", "x": 1}])
    index.commit()
    index.add([{"id": "a", "text": "new", "x": 99}])
    assert index.delete(filter={"x": 1}) == 2
    assert index.delete(filter={"x": 1}) == 0
    index.commit()
    assert [(document.id, document.text) for document in index.documents()] == [("a", "new")]
    index.merge().check(deep=True)
    assert len(index) == 1
