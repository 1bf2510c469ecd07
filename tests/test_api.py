"""The public API of `Index`, and its errors for invalid calls."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import citadel
from tests.index.quick import Quick


@pytest.fixture
def index(tmp_path: Path) -> citadel.Index:
    made = citadel.Index.create(Quick(tmp_path / "text"))
    made.add([
        {"id": "d1", "text": "On the electrodynamics of moving bodies", "title": "Relativity", "year": 1905},
        citadel.Document("d2", "A history of Rome", metadata={"pages": [1, 2]}),
    ])  # fmt: skip
    return made.commit()


@pytest.fixture
def vectors(tmp_path: Path) -> citadel.Index:
    made = citadel.Index.create(
        Quick(tmp_path / "vectors"), fields={"lexical": 2, "semantic": 2}, fingerprint="model-1"
    )
    made.add_vectors([{"id": "v1", "keys": [3], "vectors": [[1, 0]], "semantic": [0, 1], "text": "first"}])
    return made.commit()


def test_documents_round_trip(index: citadel.Index) -> None:
    hit = index.searcher().search("moving body")[0]
    assert (hit.id, hit.rank, hit.title, hit.metadata["year"]) == ("d1", 1, "Relativity", 1905)
    assert index.get("d2") == citadel.Document("d2", "A history of Rome", metadata={"pages": [1, 2]})
    assert (len(index), "d1" in index, "d9" in index, 7 in index, index.get("d9")) == (
        2,
        True,
        False,
        False,
        None,
    )


def test_titles_are_searched(index: citadel.Index) -> None:
    assert index.searcher().search("relativity").ids == ["d1"]


def test_changes_are_invisible_before_commit(index: citadel.Index) -> None:
    index.add([{"id": "d3", "text": "Rome again"}])
    assert (len(index), index.searcher().search("rome").ids) == (2, ["d2"])
    assert sorted(index.commit().searcher().search("rome").ids) == ["d2", "d3"]


def test_rollback_and_close_drop_uncommitted_changes(index: citadel.Index) -> None:
    index.add([{"id": "d3", "text": "Rome"}])
    index.rollback()
    assert len(index.commit()) == 2
    with index:
        index.delete(["d1"])
    assert "d1" in index


def test_last_document_with_an_id_wins(index: citadel.Index) -> None:
    taken = index.add(
        [{"id": "d1", "text": "one"}, {"id": "d4", "text": "two"}, {"id": "d4", "text": "three"}]
    )
    assert (taken, len(index.commit())) == (3, 3)
    assert index.searcher().search("two").ids == [] and index.searcher().search("three").ids == ["d4"]
    assert index.get("d1") == citadel.Document("d1", "one")
    assert index.stats()["counts"]["replaced"] == 2


def test_delete_returns_the_number_deleted(index: citadel.Index) -> None:
    assert index.delete(["d1", "d1", "unknown"]) == 1
    assert index.delete("d1") == 0
    assert len(index.commit()) == 1


def test_refresh_shows_commits_of_another_index(index: citadel.Index, tmp_path: Path) -> None:
    other = citadel.Index.open(tmp_path / "text")
    index.add([{"id": "d3", "text": "new"}])
    index.commit()
    assert (len(other), len(other.refresh())) == (2, 3)


def test_second_writer_is_refused(index: citadel.Index, tmp_path: Path) -> None:
    other = citadel.Index.open(tmp_path / "text")
    index.add([{"id": "d3", "text": "new"}])
    with pytest.raises(citadel.LockHeldError, match="another writer"):
        other.delete(["d1"])
    index.commit()
    assert other.delete(["d3"]) == 1
    assert len(other.commit()) == 2


def test_existing_index_is_not_overwritten(index: citadel.Index, tmp_path: Path) -> None:
    with pytest.raises(citadel.UsageError, match="overwrite"):
        citadel.Index.create(tmp_path / "text")
    assert len(citadel.Index.create(tmp_path / "text", overwrite=True)) == 0


@pytest.mark.parametrize(
    ("documents", "message"),
    [
        ({"id": "a", "text": "x"}, "put a single one into a list"),
        ("abc", "put a single one"),
        (b"abc", "put a single one"),
    ],
)
def test_single_document_must_be_in_a_list(documents: Any, message: str, index: citadel.Index) -> None:
    with pytest.raises(citadel.UsageError, match=message):
        index.add(documents)


@pytest.mark.parametrize(
    "bad", [7, None, ["id"], {"id": None, "text": "x"}, {"id": "", "text": "x"}, {"id": "a", "text": 7}]
)
def test_invalid_document_is_refused(bad: Any, index: citadel.Index) -> None:
    with pytest.raises(citadel.InputError):
        index.add([bad])


CREATE: list[tuple[dict[str, Any], str]] = [
    ({"codec": "fp16"}, "codec and semantic_codec go with a model"),
    ({"tau": 0.5}, "dynamic router only"),
    ({"router": "dynamic"}, "needs vectors"),
    ({"analyser": "klingon"}, "analyser"),
    ({"k1": -1.0}, "k1"),
    ({"b": 2.0}, "b 2.0"),
    ({"fields": {"lexical": 8}}, "fingerprint"),
    ({"fields": {"other": 8}, "fingerprint": "x"}, "unknown field 'other'"),
    ({"fields": {"lexical": 8}, "fingerprint": "x", "router": "none"}, "does not go with"),
    ({"fields": {"lexical": 8}, "fingerprint": "x", "router": "bm25"}, "does not go with"),
    ({"fields": {"lexical": 8}, "fingerprint": "x", "router": "sparse"}, "dimension"),
    ({"fields": {"lexical": {"dimension": 6, "codec": "pq2"}}, "fingerprint": "x"}, "divisible by 4"),
    ({"fields": {"lexical": {"codec": "int8"}}, "fingerprint": "x"}, "dimension"),
    (
        {"fields": {"lexical": citadel.Field(8), "semantic": citadel.Field(8, "pq2")}, "fingerprint": "x"},
        "fp16 or int8",
    ),
    ({"fields": {"lexical": 8}, "fingerprint": "x", "tau": 99.0}, "τ = 99"),
    ({"fields": {"lexical": 8}, "fingerprint": "x", "tau": float("nan")}, "τ = nan"),
    ({"fields": {"lexical": 8}, "fingerprint": "x", "router": "static", "tau": 0.5}, "dynamic router only"),
]


@pytest.mark.parametrize(("settings", "message"), CREATE)
def test_invalid_settings_are_refused(settings: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(citadel.UsageError, match=message):
        citadel.Index.create(tmp_path / "new", **settings)
    assert not (tmp_path / "new").exists()


# ---- given vectors -----------------------------------------------------------------------------------------


def test_search_given_vectors(vectors: citadel.Index) -> None:
    hits = vectors.searcher().search_vectors(keys=[3], vectors=[[2.0, 0.0]], semantic=[0.0, 3.0])
    assert (hits.ids, [round(score, 1) for score in hits.scores], hits[0].text) == (["v1"], [5.0], "first")


def test_text_and_vectors_are_not_mixed(index: citadel.Index, vectors: citadel.Index) -> None:
    with pytest.raises(citadel.UsageError, match="search_vectors"):
        vectors.searcher().search("text")
    with pytest.raises(citadel.UsageError, match="text query"):
        index.searcher().search_vectors(keys=[1])
    with pytest.raises(citadel.UsageError, match="use add_vectors"):
        vectors.add([{"id": "a", "text": "x"}])
    with pytest.raises(citadel.UsageError, match="this index holds text"):
        index.add_vectors([])


def test_vectors_of_another_model_are_refused(vectors: citadel.Index) -> None:
    with pytest.raises(citadel.InputError, match="'model-2'"):
        vectors.add_vectors([], fingerprint="model-2")


def test_npz_arrays_and_mappings_are_equivalent(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    arrays = {
        "ids": np.array(["a", "b", "c"]),
        "offsets": np.array([0, 2, 2, 5]),
        "keys": np.array([1, 2, 1, 1, 3], np.uint32),
        "weights": np.array([1, 0.5, 2, 1, 1], np.float32),
        "vectors": random.normal(size=(5, 4)).astype(np.float32),
        "texts": np.array(["A", "B", "C"]),
    }
    np.savez(tmp_path / "v.npz", **arrays)  # type: ignore[arg-type]
    rows = [slice(0, 2), slice(2, 2), slice(2, 5)]
    single = [
        {"id": id, "text": id.upper(), **{name: arrays[name][row] for name in ("keys", "weights", "vectors")}}
        for id, row in zip("abc", rows, strict=True)
    ]
    results = []
    for number, given in enumerate([tmp_path / "v.npz", arrays, single]):
        index = citadel.Index.create(Quick(tmp_path / str(number)), fields={"lexical": 4}, fingerprint="x")
        assert index.add_vectors(given) == 3
        hits = index.commit().searcher().search_vectors(keys=[1, 3], vectors=np.eye(2, 4))
        results.append((hits.ids, hits.scores, [hit.text for hit in hits], index.get("b")))
    assert results[0] == results[1] == results[2]


QUERIES: list[tuple[dict[str, Any], str]] = [
    ({"keys": [3], "vectors": [[1.0]]}, "do not go together"),
    ({"keys": [3]}, "vectors are missing"),
    ({"keys": [3, 4], "vectors": [[1.0, 0.0]]}, "do not go together"),
    ({"keys": [-1], "vectors": [[1.0, 0.0]]}, "whole numbers"),
    ({"keys": [1.5], "vectors": [[1.0, 0.0]]}, "whole numbers"),
    ({"keys": [3], "vectors": [["a", "b"]]}, "cannot be read as numbers"),
    ({"keys": [3], "vectors": [1.0, 0.0]}, "dimension"),
    ({"semantic": [1.0]}, "semantic vector has dimension 1"),
]


@pytest.mark.parametrize(("query", "message"), QUERIES)
def test_mismatched_query_is_refused(query: dict[str, Any], message: str, vectors: citadel.Index) -> None:
    with pytest.raises(citadel.InputError, match=message):
        vectors.searcher().search_vectors(**query)


def test_tau_can_only_be_raised(tmp_path: Path) -> None:
    index = citadel.Index.create(Quick(tmp_path / "i"), fields={"lexical": 2}, fingerprint="x", tau=0.5)
    index.add_vectors(
        [{"id": f"d{w}", "keys": [1], "weights": [w], "vectors": [[1, 0]]} for w in (0.5, 0.75, 1.0)]
    )
    searcher = index.commit().searcher()
    query: dict[str, Any] = {"keys": [1], "vectors": [[1.0, 0.0]]}
    assert searcher.search_vectors(**query).ids == ["d1.0", "d0.75"]
    raised = searcher.search_vectors(**query, tau=0.761)
    assert (raised.ids, round(raised.tau, 2)) == (["d1.0"], 0.76)
    with pytest.raises(citadel.UsageError, match="only be raised"):
        searcher.search_vectors(**query, tau=0.1)


def test_unknown_semantic_mode_is_refused(vectors: citadel.Index) -> None:
    with pytest.raises(citadel.UsageError, match="choose one of auto, exact, graph, rerank, off"):
        vectors.searcher().search_vectors(semantic=[0, 1], semantic_mode="fast")


@pytest.mark.parametrize("query", ["", " ", "?!"])
def test_query_without_words_is_refused(query: str, tmp_path: Path) -> None:
    searcher = citadel.Index.create(tmp_path, model="bm25").searcher()
    with pytest.raises(citadel.EmptyQueryError, match="has no words to search for"):
        searcher.search(query)


def test_query_of_stop_words_matches_nothing(tmp_path: Path) -> None:
    assert len(citadel.Index.create(tmp_path, model="bm25").searcher().search("the")) == 0


def test_index_of_a_path_names_the_constructors(tmp_path: Path) -> None:
    with pytest.raises(citadel.UsageError, match=r"use Index\.open or Index\.create"):
        citadel.Index(str(tmp_path))  # type: ignore[arg-type]
