"""One writer at a time: a second is refused, and a dead one never blocks the next."""

from __future__ import annotations

import signal
import threading
from pathlib import Path

import pytest

from citadel import Index
from citadel.errors import LockHeldError
from tests.support.children import start


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    index = Index.create(tmp_path / "index")
    index.add([{"id": "d1", "text": "rome"}])
    index.commit()
    return tmp_path / "index"


def refused(folder: Path) -> LockHeldError:
    with pytest.raises(LockHeldError) as caught:
        Index.open(folder).add([{"id": "d2", "text": "rome"}])
    return caught.value


def test_second_writer_is_refused_with_exit_code_5(folder: Path) -> None:
    first = Index.open(folder)
    first.add([{"id": "d2", "text": "rome"}])
    error = refused(folder)
    assert error.exit_code == 5
    assert str(folder) in str(error)


def test_second_writer_in_another_thread_is_refused(folder: Path) -> None:
    first = Index.open(folder)
    first.delete(["d1"])
    errors: list[LockHeldError] = []
    thread = threading.Thread(target=lambda: errors.append(refused(folder)))
    thread.start()
    thread.join()
    assert len(errors) == 1


@pytest.mark.parametrize("change", ["add", "delete", "create"])
def test_every_change_needs_the_lock(folder: Path, change: str) -> None:
    first = Index.open(folder)
    first.delete(["d1"])
    second = Index.open(folder)
    changes = {
        "add": lambda: second.add([]),
        "delete": lambda: second.delete(["d1"]),
        "create": lambda: Index.create(folder, overwrite=True),
    }
    with pytest.raises(LockHeldError):
        changes[change]()


def test_commit_rollback_and_close_release_the_lock(folder: Path) -> None:
    for end in (Index.commit, Index.rollback, Index.close):
        first = Index.open(folder)
        first.add([{"id": "d2", "text": "rome"}])
        end(first)
        Index.open(folder).add([])


def test_opening_and_searching_need_no_lock(folder: Path) -> None:
    first = Index.open(folder)
    first.add([{"id": "d2", "text": "rome"}])
    second = Index.open(folder)
    assert [hit.id for hit in second.searcher().search("rome")] == ["d1"]
    first.commit()
    assert [hit.id for hit in second.refresh().searcher().search("rome")] == ["d1", "d2"]


def test_refused_writer_can_write_after_the_first(folder: Path) -> None:
    first, second = Index.open(folder), Index.open(folder)
    first.add([{"id": "d2", "text": "rome"}])
    with pytest.raises(LockHeldError):
        second.delete(["d1"])
    first.commit()
    assert second.delete(["d1", "d2"]) == 2  # as committed by the first writer
    assert len(second.commit()) == 0


def test_killing_another_process_frees_its_lock(folder: Path) -> None:
    holder = start("tests.concurrency.holder", str(folder))
    assert holder.stdin is not None
    assert holder.stdout is not None
    with holder, holder.stdin, holder.stdout:
        assert holder.stdout.readline() == "holding\n"
        assert refused(folder).exit_code == 5
        assert refused(folder).exit_code == 5
        holder.send_signal(signal.SIGKILL)
        holder.wait()
        index = Index.open(folder)
        index.add([{"id": "d3", "text": "rome"}])
        assert len(index.commit()) == 2


def test_second_process_is_refused(folder: Path) -> None:
    first = Index.open(folder)
    first.add([{"id": "d2", "text": "rome"}])
    holder = start("tests.concurrency.holder", str(folder))
    output, _ = holder.communicate()
    assert output == "LockHeldError\n"
    assert holder.returncode == 5
