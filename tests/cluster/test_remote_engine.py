"""Searches over shards that are asked one by one: rankings of one index, filters, missing shards."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import citadel
from citadel._native import Cancel
from citadel.cluster.remote_engine import RemoteEngine, RemoteOptions, with_bits
from citadel.cluster.shard_server import ShardReply, ShardRequest, ShardServer
from citadel.errors import Cancelled, ServerError, UsageError
from citadel.index.shard import shard_index
from citadel.index.snapshot import Snapshot
from citadel.index.storage import FolderStorage
from citadel.search.deadline import deadline
from citadel.search.searcher import Searcher
from tests.index.quick import Quick
from tests.support import centroid_indexes, graphs

WORDS = ("fox", "dog", "cat", "red", "old")


class Shards:
    """Asks shard servers in this process; those in `silent` do not answer."""

    def __init__(self, root: Path, shards: int, **options: Any) -> None:
        self.servers = [ShardServer(FolderStorage(root), shard) for shard in range(shards)]
        self.silent: set[int] = set()
        self.with_bits = 0
        self.options = RemoteOptions(**options)

    def open_engine(self, snapshot: Snapshot, floor: bool, norm: tuple[float, float]) -> RemoteEngine:
        return RemoteEngine(snapshot, floor, norm, self.ask, self.options)

    def ask(
        self, requests: Sequence[ShardRequest], seconds: float, cancel: Cancel | None
    ) -> list[ShardReply | None]:
        return [
            None if shard in self.silent else self._one(shard, each) for shard, each in enumerate(requests)
        ]

    def _one(self, shard: int, request: ShardRequest) -> ShardReply | None:
        reply = self.servers[shard].answer(with_bits(request, False))
        if reply.needs_filter:
            self.with_bits += 1
            reply = self.servers[shard].answer(with_bits(request, True))
        return None if reply.problem else reply


def texts(count: int) -> list[dict[str, Any]]:
    return [
        {"id": f"d{n}", "text": f"{WORDS[n % 5]} {WORDS[n % 3]} x{n % 11}", "year": 1900 + n % 7}
        for n in range(count)
    ]


def text_root(folder: Path, shards: int = 3, deleted: Sequence[str] = ()) -> citadel.Index:
    """An index, also split into shards beside it."""
    index = citadel.Index.create(Quick(folder / "one"), model="bm25")
    index.add(texts(120))
    index.commit()
    if deleted:
        index.delete(list(deleted))
        index.commit()
    shard_index(index._snapshot, FolderStorage(folder / "root"), shards)
    return index


def searcher(folder: Path, shards: Shards) -> Searcher:
    return citadel.Index.open(folder / "root").searcher(engine=shards.open_engine)


@pytest.mark.parametrize("deleted", [(), ("d3", "d50")])
@pytest.mark.parametrize(
    "options",
    [
        {"k": 7},
        {"k": 500},
        {"k": 5, "offset": 9},
        {"k": 9, "filter": {"year": {"$gte": 1904}}},
        {"k": 4, "group_by": "year"},
        {"k": 9, "min_score": 1.0},
    ],
)
def test_rankings_equal_those_of_one_index(
    tmp_path: Path, options: dict[str, Any], deleted: Sequence[str]
) -> None:
    index = text_root(tmp_path, deleted=deleted)
    remote, one = searcher(tmp_path, Shards(tmp_path / "root", 3)), index.searcher()
    for query in ("fox", "dog red", "x7 cat old", "missing"):
        ours, theirs = remote.search(query, **options), one.search(query, **options)
        assert (ours.ids, ours.scores) == (theirs.ids, theirs.scores)
        assert ours.shards == (3, 3)
        assert [hit.document for hit in ours] == [hit.document for hit in theirs]


@pytest.mark.parametrize("mode", ["exact", "off", "auto"])
def test_vectors(tmp_path: Path, mode: str) -> None:
    random = np.random.default_rng(7)
    fields = {"lexical": citadel.Field(4, codec="int8"), "semantic": citadel.Field(3)}
    index = citadel.Index.create(Quick(tmp_path / "one"), fields=fields, fingerprint="by hand")
    rows = [
        {
            "id": f"d{n}",
            "keys": np.array([n % 5, 5 + n % 3], np.uint32),
            "weights": np.ones(2, np.float32),
            "vectors": random.integers(-3, 4, (2, 4)).astype(np.float32),
            "semantic": random.integers(-3, 4, 3).astype(np.float32),
        }
        for n in range(90)
    ]
    index.add_vectors(rows)
    index.commit()
    shard_index(index._snapshot, FolderStorage(tmp_path / "root"), 4)
    remote: Any = searcher(tmp_path, Shards(tmp_path / "root", 4))
    one: Any = index.searcher()
    for number in range(5):
        query: Any = [rows[number][name] for name in ("keys", "weights", "vectors", "semantic")]
        for k in (3, 40, 90):
            ours = remote.search_vectors(*query, k, semantic_mode=mode)
            theirs = one.search_vectors(*query, k, semantic_mode=mode)
            assert (ours.ids, ours.scores) == (theirs.ids, theirs.scores)
    explained = remote.explain_vectors("d1", *query).to_json()
    assert explained == index.searcher().explain_vectors("d1", *query).to_json()


@pytest.mark.parametrize("options", [{}, {"filter": {"parity": 1}}], ids=["all", "filtered"])
def test_graphs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]) -> None:
    """Shards with graphs: exact scores, nearly the best documents, and a larger `ef` finds more."""
    monkeypatch.setattr("citadel.index.shard.GRAPH_FLOOR", 1)
    index = graphs.build(tmp_path / "one")
    shard_index(index._snapshot, FolderStorage(tmp_path / "root"), 2, graph=True)
    remote = searcher(tmp_path, Shards(tmp_path / "root", 2))
    assert all(segment.record.graph_file for segment in remote.snapshot.segments)
    one, shares = index.searcher(threads=1), []
    for number in range(10):
        query = graphs.query(number)
        whole = one.search_vectors(**query, k=graphs.DOCUMENTS, semantic_mode="exact", **options)
        exact = dict(zip(whole.ids, whole.scores, strict=True))
        for mode, ef in (("graph", None), ("graph", graphs.DOCUMENTS), ("auto", None)):
            hits = remote.search_vectors(**query, k=10, semantic_mode=mode, ef=ef, **options)
            assert list(hits.scores) == [exact[id] for id in hits.ids]
            shares.append(len(set(hits.ids) & set(whole.ids[:10])) / 10)
            assert ef is None or list(hits.ids) == list(whole.ids[:10])
    assert float(np.mean(shares)) > 0.95


def test_bits_of_a_filter_are_sent_once(tmp_path: Path) -> None:
    text_root(tmp_path)
    shards = Shards(tmp_path / "root", 3)
    remote = searcher(tmp_path, shards)
    for _ in range(4):
        remote.search("fox", filter={"year": 1903})
    assert shards.with_bits == 3
    assert remote.count({"year": 1903}) == len([row for row in texts(120) if row["year"] == 1903])


def test_a_missing_shard_is_told(tmp_path: Path) -> None:
    text_root(tmp_path)
    shards = Shards(tmp_path / "root", 3)
    remote = searcher(tmp_path, shards)
    whole = remote.search("fox", k=500)
    shards.silent = {1}
    hits = remote.search("fox", k=500)
    assert hits.shards == (2, 3)
    assert set(hits.ids) < set(whole.ids)
    assert remote.search("fox", k=4, group_by="year").shards == (2, 3)
    hybrid = citadel.Hybrid([remote, citadel.Index.open(tmp_path / "one").searcher()])
    assert hybrid.search("fox").shards == (2, 3)
    assert remote.search("fox", rerank=lambda query, texts: [1.0] * len(texts)).shards == (2, 3)
    shards.silent = {0, 1, 2}
    with pytest.raises(ServerError, match="3 of 3 shards did not answer"):
        remote.search("fox")
    strict = Shards(tmp_path / "root", 3, require_complete=True)
    strict.silent = {1}
    with pytest.raises(ServerError, match="1 of 3 shards"):
        searcher(tmp_path, strict).search("fox")


def test_one_generation_per_answer(tmp_path: Path) -> None:
    """A searcher of the old generation gets answers of the old one, also from a server that knows both."""
    index = text_root(tmp_path)
    shards = Shards(tmp_path / "root", 3)
    old = searcher(tmp_path, shards)
    before = old.search("fox", k=500)
    index.add([{"id": f"new{n}", "text": "fox fox"} for n in range(20)])
    index.commit()
    shard_index(index._snapshot, FolderStorage(tmp_path / "root"), 3, overwrite=True)
    new = searcher(tmp_path, shards)
    for _ in range(2):
        assert new.search("fox", k=500).ids == index.searcher().search("fox", k=500).ids
        assert old.search("fox", k=500).ids == before.ids
    fresh = Shards(tmp_path / "root", 3)
    assert searcher(tmp_path, fresh).search("fox", k=500).shards == (3, 3)


def test_a_damaged_shard_is_missing(tmp_path: Path) -> None:
    text_root(tmp_path)
    remote = searcher(tmp_path, Shards(tmp_path / "root", 3))
    file = sorted((tmp_path / "root").glob("shard-*/gen.*"))[0]
    file.write_bytes(file.read_bytes()[:-3])
    assert remote.search("fox").shards == (2, 3)


def test_deadline_and_cancel(tmp_path: Path) -> None:
    text_root(tmp_path)
    shards = Shards(tmp_path / "root", 3)
    remote = searcher(tmp_path, shards)
    with deadline(time.perf_counter() + 0.001), pytest.raises(Cancelled):
        remote.search("fox")
    cancel = Cancel()
    cancel.set()
    with pytest.raises(Cancelled):
        remote.search("fox", cancel=cancel)


def test_only_sharded_indexes(tmp_path: Path) -> None:
    index = text_root(tmp_path)
    with pytest.raises(UsageError, match="citadel shard"):
        index.searcher(engine=Shards(tmp_path / "root", 3).open_engine)


@pytest.mark.parametrize("filter", [None, {"year": {"$lt": 3}}])
def test_shards_of_a_centroid_index(tmp_path: Path, filter: dict[str, Any] | None) -> None:
    """Every shard scores `ef` documents of its own, so no document of the one index's top k is missing."""
    with centroid_indexes.few_tokens():
        index = centroid_indexes.mixed(tmp_path / "one")
    shard_index(index._snapshot, FolderStorage(tmp_path / "root"), 3)
    shards = Shards(tmp_path, 3)
    shards.servers = [ShardServer(FolderStorage(tmp_path / "root"), shard) for shard in range(3)]
    remote, local = searcher(tmp_path, shards), index.searcher()
    for number in range(5):
        vectors = centroid_indexes.query(number)
        asked: dict[str, Any] = {"vectors": vectors, "k": 8, "filter": filter}
        exact = local.search_vectors(**asked, semantic_mode="exact")
        assert remote.search_vectors(**asked, semantic_mode="exact").to_dicts() == exact.to_dicts()
        scores = dict(zip(exact.ids, exact.scores, strict=True))
        for own, other in zip(
            remote.search_vectors(**asked, ef=12), local.search_vectors(**asked, ef=12), strict=True
        ):
            assert own.score >= other.score
            assert own.score == scores.get(own.id, own.score)
