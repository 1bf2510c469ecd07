"""A full or failing disk while graphs are built or merged leaves the index as it was."""

from __future__ import annotations

import contextlib
import errno
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from citadel import Index
from citadel.errors import ResourceError
from citadel.index.storage import FolderStorage
from tests.support.contents import checked_contents, orphans
from tests.support.seeds import fast_folder
from tests.support.watched import READING, WRITING, Fail, WatchedStorage
from tests.support.workload import GRAPH_FLOOR, Step, create_with_graphs, document

ALLOCATING = ("lock", "scratch", "create", "write", "fsync", "sync")
CASES = [
    pytest.param(errno.ENOSPC, ALLOCATING, True, id="full from then on"),
    pytest.param(errno.EIO, WRITING, False, id="one write error"),
    pytest.param(errno.EIO, READING, False, id="one read error"),
]


@pytest.fixture(scope="module")
def origin() -> Iterator[Path]:
    """Two segments, the larger with a graph and deletions."""
    with tempfile.TemporaryDirectory(dir=fast_folder()) as path:
        index = create_with_graphs(f"{path}/index")
        Step(add=tuple(document(number) for number in range(9)), delete=()).apply(index)
        index.merge()
        Step(add=(document(20), document(21)), delete=("d3", "d4")).apply(index)
        index.close()
        yield Path(path) / "index"


def merge(index: Index) -> None:
    index._writer.graph_floor = GRAPH_FLOOR
    index.merge()


def optimize(index: Index) -> None:
    index.optimize(min_documents=1)


def has_graphs(folder: Path) -> list[bool]:
    return [bool(record.graph_file) for record in Index.open(folder)._snapshot.manifest.segments]


@pytest.mark.parametrize("change", [merge, optimize])
@pytest.mark.parametrize(("code", "kinds", "forever"), CASES)
def test_any_storage_call_may_fail(
    origin: Path, code: int, kinds: tuple[str, ...], forever: bool, change: Callable[[Index], None]
) -> None:
    before = checked_contents(origin)
    assert before is not None
    assert has_graphs(origin) == [True, False]
    number = 0
    while True:
        number += 1
        with tempfile.TemporaryDirectory(dir=fast_folder()) as path:
            folder, fail = Path(path) / "index", Fail(number, code, kinds, forever)
            shutil.copytree(origin, folder)
            with contextlib.suppress(ResourceError):
                change(Index.open(WatchedStorage(FolderStorage(folder), fail)))
            after = checked_contents(folder)
            assert after is not None
            assert after.same(before)
            change(Index.open(folder))
            assert all(has_graphs(folder))
            assert orphans(FolderStorage(folder)) == set()
            after = checked_contents(folder)
            assert after is not None
            assert after.same(before)
            if not fail.failed:
                break
    print(f"{number - 1} failing calls")
    assert number > 10
