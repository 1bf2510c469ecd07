"""An index that is no longer referenced is freed at once, with its files, without garbage collection."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path

import citadel


def test_dropped_index_is_freed(tmp_path: Path) -> None:
    index = citadel.Index.create(tmp_path / "index", model="bm25")
    index.add([{"id": "d1", "text": "E = mc²"}, {"id": "d2", "text": "the equation of a mass"}])
    index.commit().close()
    gc.collect()
    gc.disable()
    try:
        index = citadel.Index.open(tmp_path / "index")
        assert index.search("equation")[0].id == "d2"
        index.check(deep=True)
        snapshot = weakref.ref(index.searcher().snapshot)
        del index
        assert snapshot() is None
    finally:
        gc.enable()
