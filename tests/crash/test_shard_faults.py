"""A disk that fails while an index is split: typed error, old generation kept, a later run succeeds."""

from __future__ import annotations

import errno
import itertools
import os
from pathlib import Path

import pytest

import citadel
from citadel.errors import ResourceError
from citadel.index.shard import shard_index
from tests.index.quick import Quick
from tests.support.watched import WRITING, WatchedStorage


def source(folder: Path, count: int) -> citadel.Index:
    index = citadel.Index.create(Quick(folder), model="bm25")
    index.add({"id": f"d{n}", "text": f"fox w{n}"} for n in range(count))
    return index.commit()


class Fails:
    """Fails one writing call."""

    def __init__(self, call: int, number: int) -> None:
        self._left, self._number = call, number

    def __call__(self, kind: str) -> None:
        if kind in WRITING:
            self._left -= 1
            if self._left == 0:
                raise OSError(self._number, os.strerror(self._number))

    @property
    def has_failed(self) -> bool:
        return self._left <= 0


@pytest.mark.slow
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_every_writing_call_fails_once(number: int, tmp_path: Path) -> None:
    old, new = source(tmp_path / "old", 6), source(tmp_path / "new", 9)
    root = tmp_path / "root"
    for call in itertools.count(1):
        shard_index(old._snapshot, Quick(root), 2, overwrite=True)
        fails = Fails(call, number)
        try:
            shard_index(new._snapshot, WatchedStorage(Quick(root), fails), 2, overwrite=True)
            completed = True
        except ResourceError:
            completed = False
        opened = citadel.Index.open(root)
        opened.check(deep=True)
        assert len(opened) in ((9,) if completed else (6, 9))  # the last sync may fail after the commit
        if completed and not fails.has_failed:
            break
    assert call > 60
    shard_index(new._snapshot, Quick(root), 2, overwrite=True)
    assert len(citadel.Index.open(root)) == 9
    assert len(list(root.glob("shard-*"))) <= 4
