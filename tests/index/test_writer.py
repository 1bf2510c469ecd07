"""A writer between two commits: failures, spills, and holding the lock."""

from __future__ import annotations

import types
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

from citadel import Index, InputError, LockHeldError, OwnershipError, UncommittedChangesWarning, UsageError
from citadel.index.buffer import Buffer
from citadel.index.snapshot import Snapshot
from citadel.index.writer import Writer

FIELDS = {"lexical": 4}


def text(id: str, words: str = "hello") -> dict[str, Any]:
    return {"id": id, "text": words}


def vector(id: str, key: int = 1) -> dict[str, Any]:
    return {"id": id, "keys": [key], "weights": [1.0], "vectors": [[1.0] * 4]}


def test_stream_may_commit_while_it_is_read(tmp_path: Path) -> None:
    index = Index.create(tmp_path)

    def stream() -> Iterator[dict[str, Any]]:
        for number in range(10):
            yield text(str(number))
            if number == 4:
                index.commit()

    assert index.add(stream()) == 10
    assert len(index.commit()) == 10


def test_interrupt_leaves_no_partial_batch(tmp_path: Path) -> None:
    index = Index.create(tmp_path, fields=FIELDS, fingerprint="f")
    taken = Buffer._take
    with mock.patch.object(Buffer, "_take", autospec=True) as take:
        take.side_effect = [False, KeyboardInterrupt]
        with pytest.raises(KeyboardInterrupt):
            index.add_vectors([vector("a0", 0), vector("a1", 1)])
    assert Buffer._take is taken
    index.add_vectors([vector("b0", 100)])
    index.commit()
    searcher = index.searcher()
    assert searcher.search_vectors([1], [1.0], [[1.0] * 4]).ids == []
    assert searcher.search_vectors([100], [1.0], [[1.0] * 4]).ids == ["b0"]


def test_documents_before_an_invalid_one_are_kept(tmp_path: Path) -> None:
    index = Index.create(tmp_path)
    with pytest.raises(InputError):
        index.add([text("a"), text("")])
    assert len(index.commit()) == 1


@pytest.mark.parametrize("memory", [60_000, 1 << 30])
def test_failing_stream_drops_only_its_own_documents(tmp_path: Path, memory: int) -> None:
    index = Index.create(tmp_path, memory=memory)
    index.add([text("before"), text("replaced", "old words")])

    def stream() -> Iterator[dict[str, Any]]:
        yield text("replaced", "new words")
        for number in range(300):
            yield text(str(number), f"{'x' * 300} word{number}")
        raise OSError("connection lost")

    with pytest.raises(OSError, match="connection lost"):
        index.add(stream())
    index.add([text("after")])
    assert len(index.commit()) == 3
    replaced = index.get("replaced")
    assert replaced is not None
    assert replaced.text == "old words"
    assert not [name for name in Path(tmp_path).iterdir() if name.suffix == ".tmp"]
    assert index.counts == {}


@pytest.mark.parametrize("call", [lambda i: i.add([text("a")]), lambda i: i.add_vectors([vector("")])])
def test_refused_call_releases_the_lock(tmp_path: Path, call: Any) -> None:
    index = Index.create(tmp_path, fields=FIELDS, fingerprint="f")
    with pytest.raises((UsageError, InputError)):
        call(index)
    assert Index.open(tmp_path).add_vectors([vector("b")]) == 1


def test_lock_is_held_until_commit(tmp_path: Path) -> None:
    index, other = Index.create(tmp_path), Index.open(tmp_path)
    index.add([text("a")])
    with pytest.raises(LockHeldError):
        other.add([text("b")])
    index.commit()
    other.add([text("b")])
    assert len(other.commit()) == 2


@pytest.mark.parametrize(
    "metadata", [{"x": float("nan")}, {"x": {1, 2}}, {"m": types.MappingProxyType({"k": 1})}]
)
def test_metadata_that_is_not_json_is_refused(tmp_path: Path, metadata: Any) -> None:
    given = Index.create(tmp_path / "vectors", fields=FIELDS, fingerprint="f")
    with pytest.raises(InputError):
        given.add_vectors([{**vector("a"), **metadata}])
    with pytest.raises(InputError):
        Index.create(tmp_path / "text").add([{**text("a"), **metadata}])


def test_given_vectors_keep_text_and_metadata(tmp_path: Path) -> None:
    index = Index.create(tmp_path, fields=FIELDS, fingerprint="f")
    index.add_vectors([{**vector("a"), "title": "T", "text": "x", "year": 1905}])
    document = index.commit().get("a")
    assert document is not None
    assert (document.title, document.text, document.metadata) == ("T", "x", {"year": 1905})


def test_writer_refuses_a_replaced_index(tmp_path: Path) -> None:
    old = Index.create(tmp_path, fields=FIELDS, fingerprint="A")
    Index.create(tmp_path, fields=FIELDS, fingerprint="B", overwrite=True)
    with pytest.raises(OwnershipError, match="open it again"):
        old.add_vectors([vector("a")])
    assert len(Index.open(tmp_path)) == 0


def test_delete_accepts_the_ids_of_add_and_is_atomic(tmp_path: Path) -> None:
    index = Index.create(tmp_path)
    index.add([text("a"), {"id": 7, "text": "seven"}])
    index.commit()
    with pytest.raises(UsageError):
        index.delete(["a", None])  # type: ignore[list-item]
    assert "a" in index.commit()
    assert 7 in index
    assert "\ud800" not in index
    assert index.delete([7, "\ud800"]) == 1
    assert len(index.commit()) == 1


def test_closed_index_refuses_changes(tmp_path: Path) -> None:
    with (
        pytest.warns(UncommittedChangesWarning, match="call commit") as caught,
        Index.create(tmp_path) as index,
    ):
        index.add([text("a")])
    assert caught[0].filename == __file__
    with pytest.raises(UsageError, match="closed"):
        index.add([text("b")])
    assert len(Index.open(tmp_path)) == 0


def test_many_spills_equal_one_segment(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    documents = [
        text(f"d{i % 700}", " ".join(f"w{w}" for w in generator.zipf(1.3, 30) % 500)) for i in range(1500)
    ]
    spilled = Index.create(tmp_path / "spilled", memory=200_000)
    spilled.add(documents)
    assert len(spilled._writer._pending) < 12
    last = list({document["id"]: document for document in documents}.values())
    whole = Index.create(tmp_path / "whole")
    whole.add(last)
    spilled.commit()
    whole.commit()
    spilled.check(deep=True)
    for query in ("w1 w7", "w30 w2 w100"):
        a, b = (index.searcher().search(query, 1000) for index in (spilled, whole))
        assert dict(zip(a.ids, a.scores, strict=True)) == dict(zip(b.ids, b.scores, strict=True))


def test_exception_drops_changes_without_a_warning(tmp_path: Path) -> None:
    index = Index.create(tmp_path)
    index.add([text("a")])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(KeyError), index:
            raise KeyError
    assert len(Index.open(tmp_path)) == 0


def test_committed_index_closes_without_a_warning(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with Index.create(tmp_path) as index:
            index.add([text("a")])
            index.commit()


def test_reading_creates_no_writer(tmp_path: Path) -> None:
    Index.create(tmp_path)
    with Index.open(tmp_path) as index:
        assert (len(index), index.generation, index.has_changes) == (0, 1, False)
        index.refresh().commit().rollback()
        index.searcher().search("a")
        assert isinstance(index._view, Snapshot)
        index.add([text("b")])
        assert isinstance(index._view, Writer)
        index.commit()
    assert "b" in Index.open(tmp_path)


def test_refresh_shows_new_generations(tmp_path: Path) -> None:
    writer = Index.create(tmp_path)
    reader = Index.open(tmp_path)
    writer.add([text("a")])
    writer.commit()
    assert "a" not in reader
    assert "a" in reader.refresh()


def test_progress_counts_documents(tmp_path: Path) -> None:
    counts: list[int] = []
    index = Index.create(tmp_path)
    assert index.add([text("a"), text("b"), text("c")], progress=counts.append) == 3
    assert counts == [1, 2, 3]
    assert index.add([text("d")], progress=True) == 1
    index.rollback()
