"""Repair keeps every document that can be read, lists the others, and asks before it loses one."""

from __future__ import annotations

from pathlib import Path

import pytest

import citadel
from citadel.errors import CorruptIndexError, RepairLossError
from citadel.index.manifest import generations
from citadel.index.repair import plan_repair, repair
from tests.index.quick import Quick

WORDS = [f"word{n}" for n in range(40)]


def build(storage: Quick) -> citadel.Index:
    index = citadel.Index.create(storage, analyser="plain")
    index.add({"id": f"d{n:04}", "text": f"{WORDS[n % 40]} marker{n:04}"} for n in range(1400))
    return index.commit()


def spoil(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)


def spoil_document(storage: Quick, number: int) -> None:
    (path,) = storage.path.glob("docs-*")
    spoil(path, path.read_bytes().index(f"marker{number:04}".encode()))


@pytest.fixture
def storage(tmp_path: Path) -> Quick:
    made = Quick(tmp_path / "index")
    build(made)
    return made


def test_one_damaged_document_costs_one_document(storage: Quick) -> None:
    expected = citadel.Index.open(storage).searcher().search("word7", k=100).ids
    spoil_document(storage, 700)
    with pytest.raises(RepairLossError, match=r"keeps 1,399 documents and loses 1: d0700; .* --yes"):
        repair(storage)
    with pytest.raises(CorruptIndexError):
        citadel.Index.open(storage).check(deep=True)  # nothing was changed
    plan = repair(storage, accept_loss=True)
    assert (plan.kept, plan.lost, plan.lost_ids) == (1399, 1, ("d0700",))
    index = citadel.Index.open(storage)
    index.check(deep=True)
    assert (len(index), "d0700" in index, "d0701" in index) == (1399, False, True)
    assert index.searcher().search("word7", k=100).ids == expected
    index.add([{"id": "new", "text": "new"}])
    assert len(index.commit()) == 1400


def test_damaged_lists_are_built_again_from_the_texts(storage: Quick) -> None:
    before = citadel.Index.open(storage).searcher().search("word7 marker0007", k=50)
    expected = [(hit.id, hit.score) for hit in before]
    (path,) = storage.path.glob("seg-*")
    spoil(path, path.stat().st_size // 2)
    assert repair(storage).lost == 0
    index = citadel.Index.open(storage)
    index.check(deep=True)
    assert [(hit.id, hit.score) for hit in index.searcher().search("word7 marker0007", k=50)] == expected


def test_deleted_documents_stay_deleted(storage: Quick) -> None:
    index = citadel.Index.open(storage)
    index.delete(["d0001", "d0002"])
    index.commit()
    spoil_document(storage, 2)  # of a deleted document: nothing is lost
    assert repair(storage).lost == 0
    index = citadel.Index.open(storage)
    index.check(deep=True)
    assert (len(index), "d0001" in index) == (1398, False)


def test_nothing_to_save_is_refused(tmp_path: Path) -> None:
    storage = Quick(tmp_path / "index")
    build(storage)
    for pattern in ("docs-*", "seg-*"):
        (path,) = storage.path.glob(pattern)
        spoil(path, 20)
    before = generations(storage)
    with pytest.raises(CorruptIndexError, match="no document can be saved"):
        repair(storage, accept_loss=True)
    assert generations(storage) == before


def test_vectors_of_a_damaged_segment_are_lost_and_listed(tmp_path: Path) -> None:
    storage = Quick(tmp_path / "index")
    index = citadel.Index.create(storage, fields={"lexical": 4}, fingerprint="x")
    for id in "ab":
        index.add_vectors([{"id": id, "keys": [1], "weights": [1.0], "vectors": [[1.0, 0, 0, 0]]}])
        index.commit()
    damaged = storage.path / index._snapshot.segments[1].name
    spoil(damaged, damaged.stat().st_size // 2)
    plan = plan_repair(storage)
    assert (plan.action, plan.kept, plan.lost_ids) == ("rewrite", 1, ("b",))
    repair(storage, accept_loss=True)
    assert [hit.id for hit in citadel.Index.open(storage).searcher().search_vectors([1], [1.0], [[1.0, 0, 0, 0]])] == [
        "a"
    ]


def test_a_merge_that_was_damaged_returns_to_the_same_documents(tmp_path: Path) -> None:
    storage = Quick(tmp_path / "index")
    index = citadel.Index.create(storage, fields={"lexical": 4}, fingerprint="x")
    for n in range(6):  # the sixth commit merges
        index.add_vectors([{"id": f"d{n}", "keys": [1], "weights": [1.0], "vectors": [[1.0, 0, 0, 0]]}])
        index.commit()
    (merged,) = (storage.path / segment.name for segment in index._snapshot.segments)
    spoil(merged, merged.stat().st_size // 2)
    plan = repair(storage)
    assert (plan.action, plan.lost) == ("return", 0)
    assert len(citadel.Index.open(storage)) == 6
