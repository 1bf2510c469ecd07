"""Splitting an index: what is refused, what is left after an interruption, what readers see."""

from __future__ import annotations

import copy
import shutil
from pathlib import Path
from typing import Any

import pytest

import citadel
from citadel.errors import (
    CitadelError,
    CorruptIndexError,
    IndexNotFoundError,
    InputError,
    LockHeldError,
    ResourceError,
    UsageError,
)
from citadel.index import shard as sharding
from citadel.index.shard import shard_index
from citadel.index.sharded import shard_of
from citadel.index.storage import FolderStorage
from tests.index.quick import Quick
from tests.support import graphs


@pytest.fixture
def index(tmp_path: Path) -> citadel.Index:
    index = citadel.Index.create(Quick(tmp_path / "idx"), model="bm25")
    index.add({"id": f"d{n}", "text": f"fox w{n % 7}", "year": 1900 + n} for n in range(60))
    return index.commit()


def split(index: citadel.Index, root: Path, shards: int = 3, **options: Any) -> citadel.Index:
    shard_index(index._snapshot, Quick(root), shards, **options)
    return citadel.Index.open(root)


@pytest.mark.parametrize("shards", [0, -1, 1025, True, 2.0, "2"])
def test_numbers_of_shards_that_are_refused(index: citadel.Index, tmp_path: Path, shards: int) -> None:
    with pytest.raises(UsageError, match="1 to 1024 shards"):
        split(index, tmp_path / "root", shards)
    assert not (tmp_path / "root").exists()


def test_more_shards_than_documents(index: citadel.Index, tmp_path: Path) -> None:
    root = split(index, tmp_path / "root", 200)
    assert root.stats()["smallest_shard"] == 0
    assert root.search("fox", 100).ids == index.search("fox", 100).ids
    root.check(deep=True)


def test_empty_index(tmp_path: Path) -> None:
    root = split(citadel.Index.create(Quick(tmp_path / "idx"), model="bm25"), tmp_path / "root")
    assert (len(root), root.search("fox").ids) == (0, [])


def test_other_folders_are_refused(index: citadel.Index, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds an index"):
        split(index, tmp_path / "idx")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").touch()
    with pytest.raises(InputError, match=r"letter\.txt"):
        split(index, tmp_path / "mine")
    root = split(index, tmp_path / "root")
    with pytest.raises(UsageError, match="--overwrite"):
        split(index, tmp_path / "root")
    with pytest.raises(UsageError, match="sharded already"):
        split(root, tmp_path / "again")


def test_readers_move_to_a_new_generation(index: citadel.Index, tmp_path: Path) -> None:
    root = split(index, tmp_path / "root")
    before = root.searcher()
    index.delete(["d7"])
    split(index.commit(), tmp_path / "root", 2, overwrite=True)
    assert "d7" in before.search("fox", 100).ids
    assert "d7" not in root.search("fox", 100).ids
    assert (root.generation, root.stats()["shards"]) == (2, 2)


def test_a_sharded_index_cannot_be_changed(index: citadel.Index, tmp_path: Path) -> None:
    root = split(index, tmp_path / "root")
    for change in (
        lambda: root.add([{"id": "x", "text": "y"}]),
        lambda: root.delete(["d1"]),
        lambda: root.update_metadata("d1", {"a": 1}),
        root.merge,
        root.optimize,
    ):
        with pytest.raises(UsageError, match="citadel shard"):
            change()
    with pytest.raises(InputError):
        citadel.Index.create(tmp_path / "root", model="bm25", overwrite=True)
    assert len(citadel.Index.open(tmp_path / "root")) == 60


def test_interrupted_before_the_root_manifest(
    index: citadel.Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(*arguments: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(sharding, "write_root", die)
        with pytest.raises(KeyboardInterrupt):
            split(index, tmp_path / "root")
    with pytest.raises(IndexNotFoundError, match="interrupted"):
        citadel.Index.open(tmp_path / "root")
    assert len(split(index, tmp_path / "root", 2)) == 60
    assert len(list((tmp_path / "root").glob("shard-*"))) == 2  # nothing is left of the first run


def test_two_writers(index: citadel.Index, tmp_path: Path) -> None:
    target = FolderStorage(tmp_path / "root")
    target.make()
    lock = target.lock()
    with pytest.raises(LockHeldError):
        split(index, tmp_path / "root")
    lock.release()
    assert len(split(index, tmp_path / "root")) == 60


def test_a_full_disk_is_reported_first(
    index: citadel.Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Quick, "free_space", lambda self: 1000)
    with pytest.raises(ResourceError, match="make room"):
        split(index, tmp_path / "root")


def test_a_missing_or_damaged_shard_is_reported(index: citadel.Index, tmp_path: Path) -> None:
    split(index, tmp_path / "root")
    shard = min((tmp_path / "root").glob("shard-*"))
    for pattern in ("seg-*", "docs-*", "order-*", "gen.*", "cols-*"):
        copy = tmp_path / pattern.strip("-.*")
        shutil.copytree(tmp_path / "root", copy)
        file = next((copy / shard.name).glob(pattern))
        file.write_bytes(b"\0" * file.stat().st_size)
        with pytest.raises(CorruptIndexError):
            citadel.Index.open(copy).check(deep=True)
        file.unlink()
        with pytest.raises(CorruptIndexError):
            citadel.Index.open(copy).check(deep=True)
    shutil.rmtree(shard)
    with pytest.raises(CorruptIndexError, match="missing"):
        citadel.Index.open(tmp_path / "root")


def test_every_flipped_bit_of_the_order_is_found(index: citadel.Index, tmp_path: Path) -> None:
    split(index, tmp_path / "root", 1)
    [file] = (tmp_path / "root").glob("shard-*/order-*")
    good = file.read_bytes()
    for position in range(0, len(good), 7):
        file.write_bytes(good[:position] + bytes([good[position] ^ 4]) + good[position + 1 :])
        with pytest.raises(CorruptIndexError):
            citadel.Index.open(tmp_path / "root").check(deep=True)


def test_a_link_instead_of_a_shard_is_refused(index: citadel.Index, tmp_path: Path) -> None:
    split(index, tmp_path / "root")
    shard = min((tmp_path / "root").glob("shard-*"))
    shard.rename(tmp_path / "elsewhere")
    shard.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(CorruptIndexError, match="not a plain folder"):
        citadel.Index.open(tmp_path / "root")


def test_a_shard_of_another_root_is_refused(index: citadel.Index, tmp_path: Path) -> None:
    split(index, tmp_path / "root")
    split(index, tmp_path / "other")
    mine, theirs = (min((tmp_path / name).glob("shard-*")) for name in ("root", "other"))
    shutil.rmtree(mine)
    shutil.copytree(theirs, mine)
    with pytest.raises(CorruptIndexError, match="another index"):
        citadel.Index.open(tmp_path / "root")


def test_large_shards_get_graphs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sharding, "GRAPH_FLOOR", 20)
    fields = {"semantic": citadel.Field(len(graphs.given(0, "none")["semantic"]), "int8")}
    index = citadel.Index.create(tmp_path / "idx", fields=fields, router="none", fingerprint="x")
    index.add_vectors([{"id": f"d{n}", **graphs.given(n, "none")} for n in range(120)])
    root = split(index.commit(), tmp_path / "root", 2, graph=True)
    assert all(segment.record.graph_file for segment in root.searcher().snapshot.segments)
    query = graphs.given(3, "none")["semantic"]
    exact, graph = (
        root.searcher().search_vectors(semantic=query, semantic_mode=mode) for mode in ("exact", "graph")
    )
    assert len(set(exact.ids) & set(graph.ids)) >= 9
    plain = split(index, tmp_path / "plain", 2, graph=False)
    assert not any(segment.record.graph_file for segment in plain.searcher().snapshot.segments)


def test_copied_searchers_open_the_same_generation(index: citadel.Index, tmp_path: Path) -> None:
    root = split(index, tmp_path / "root")
    searcher = copy.deepcopy(root.searcher())
    assert searcher.search("fox").ids == index.search("fox").ids
    for shards in (1, 2):
        split(index, tmp_path / "root", shards, overwrite=True)
    with pytest.raises(CitadelError, match="removed"):
        copy.deepcopy(root.searcher())


def test_hashes_choose_the_shard() -> None:
    assert shard_of([0, 5, (1 << 64) - 1], 4).tolist() == [0, 1, 3]
