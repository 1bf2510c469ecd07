"""Indexes, searchers, hits and rankings can be pickled."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler  # used by worker pools
from pathlib import Path
from typing import Any

import pytest

from citadel import AddedCount, Index, IndexNotFoundError, Ranking, Searcher, UsageError
from citadel.errors import (
    CitadelError,
    CorruptIndexError,
    FilterError,
    InputError,
    ServerError,
    UnknownQueryError,
)
from tests.support.models import ModelFolder


@pytest.fixture
def index(tmp_path: Path) -> Index:
    index = Index.create(tmp_path / "index")
    index.add({"id": f"d{n}", "text": f"rome word{n}", "n": n} for n in range(20))
    return index.commit()


def copied(value: Any) -> Any:
    return ForkingPickler.loads(ForkingPickler.dumps(value))


def test_pickled_index_is_reopened_by_path(
    index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    data = ForkingPickler.dumps(Index.open("index"))
    monkeypatch.chdir("/")
    copy = ForkingPickler.loads(data)
    copy.add([{"id": "new", "text": "rome"}])
    assert len(copy.commit()) == 21


def test_index_with_uncommitted_changes_cannot_be_pickled(index: Index) -> None:
    index.add([{"id": "new", "text": "rome"}])
    with pytest.raises(UsageError, match="commit them first"):
        ForkingPickler.dumps(index)


def test_pickled_searcher_keeps_its_generation(index: Index) -> None:
    searcher = index.searcher(threads=1)
    data = ForkingPickler.dumps(searcher)
    index.delete(["d7"])
    index.commit()
    copy: Searcher = ForkingPickler.loads(data)
    assert len(copy) == 20
    assert copy.search("word7", k=1).ids == searcher.search("word7", k=1).ids == ["d7"]


def test_removed_generation_raises(index: Index) -> None:
    data = ForkingPickler.dumps(index.searcher())
    index.delete(["d7"])
    index.merge()
    with pytest.raises(IndexNotFoundError, match="generation 2 was removed"):
        ForkingPickler.loads(data)


def test_replaced_index_raises(index: Index, tmp_path: Path) -> None:
    data = ForkingPickler.dumps(index.searcher())
    (tmp_path / "index").rename(tmp_path / "old")
    other = Index.create(tmp_path / "index")
    other.add([{"id": "d1", "text": "rome"}])
    other.commit()
    with pytest.raises(IndexNotFoundError):
        ForkingPickler.loads(data)


def test_pickled_hits_and_rankings_keep_their_contents(index: Index) -> None:
    searcher = index.searcher()
    hits = searcher.search("rome word7", k=3)
    copy = copied(hits)
    assert (copy.ids, copy.scores, copy[0].text, copy[0].metadata) == (
        hits.ids,
        hits.scores,
        "rome word7",
        {"n": 7},
    )
    assert copied(hits[0]).text == "rome word7"
    ranking = copied(searcher.search_batch({"q1": "word1", "q2": "word2"}, k=5))
    assert isinstance(ranking, Ranking)
    assert [hits.ids for hits in ranking.hits] == [["d1"], ["d2"]]  # type: ignore[attr-defined]


def test_pickled_searcher_keeps_its_model(tmp_path: Path, tiny_model: Callable[..., Path]) -> None:
    index = Index.create(tmp_path / "index", model=tiny_model())
    index.add({"id": f"d{n}", "text": f"rome word{n}"} for n in range(5))
    index.commit()
    searcher = Index.open(tmp_path / "index", model=tiny_model()).searcher()
    assert copied(searcher).search("rome", k=3).scores == searcher.search("rome", k=3).scores


def _search(searcher: Searcher) -> Any:
    return searcher.search("word7", k=1)


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_process_pool_searches_with_pickled_searcher(index: Index, method: str) -> None:
    with multiprocessing.get_context(method).Pool(1) as pool:
        [hits] = pool.map(_search, [index.searcher()])
    assert hits[0].text == "rome word7"


def test_pickled_hits_keep_their_passages(tiny_model: ModelFolder, tmp_path: Path) -> None:
    index = Index.create(tmp_path / "long", model=tiny_model())
    index.add([{"id": "d1", "text": "a history of rome. " * 40}, {"id": "d2", "text": "rome"}])
    hits = index.commit().search("history")
    for hit, copy in zip(hits, copied(hits), strict=True):
        assert (hit.passage, list(hit.passages)) == (copy.passage, list(copy.passages))
    assert len(next(hit for hit in hits if hit.id == "d1").passages) > 5


def test_pickled_results_keep_their_fields(index: Index) -> None:
    ranking = index.searcher().search_batch({"q1": "rome"})
    copy = copied(ranking)
    assert copy["q1"][0] == ranking["q1"][0] and copy.to_dict() == ranking.to_dict()
    added = copied(AddedCount(2, 1, 512, ["a"]))
    assert (added, added.cut, added.limit, added.generated_ids) == (2, 1, 512, ["a"])


@pytest.mark.parametrize(
    "error",
    [
        CorruptIndexError("seg-1.cit", "header", "the magic bytes are wrong"),
        FilterError("unknown operator", "year"),
        InputError("not valid JSON", "corpus.jsonl", 7),
        ServerError(503, "busy", "too many requests", retry_after=1),
        UnknownQueryError("the ranking has no query 'q9'"),
        UsageError("k must be positive"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_pickled_errors_keep_message_and_fields(error: CitadelError) -> None:
    copy = copied(error)
    assert (type(copy), str(copy), vars(copy)) == (type(error), str(error), vars(error))
