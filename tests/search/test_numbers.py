"""NaN, infinity, overflow, ties and empty input."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import citadel
from tests.index.quick import Quick

ENGINES = ("native", "reference")
BOTH = pytest.mark.parametrize("engine", ENGINES)


def vectors_index(folder: Path, codec: str = "int8", dimension: int = 2, **more: Any) -> citadel.Index:
    fields: dict[str, Any] = {"lexical": citadel.Field(dimension, codec)} | more.pop("fields", {})
    return citadel.Index.create(Quick(folder), fields=fields, fingerprint="by hand", **more)


def one(id: str, vector: list[float], weight: float = 1.0, key: int = 7, **more: Any) -> dict[str, Any]:
    return {"id": id, "keys": [key], "weights": [weight], "vectors": [vector], **more}


def found(index: citadel.Index, engine: str, k: int = 10, **query: Any) -> list[tuple[str, float]]:
    usual: dict[str, Any] = {"keys": [7], "weights": [1.0], "vectors": [[1.0, 0.0]]}
    hits = index.searcher(engine=engine).search_vectors(**usual | query, k=k)
    return list(zip(hits.ids, hits.scores, strict=True))


# ---- what is refused ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("codec", ["fp16", "int8", "pq2"])
def test_no_number_in_a_document(bad: float, codec: str, tmp_path: Path) -> None:
    index = vectors_index(tmp_path / "i", codec, 4, fields={"semantic": 2})
    good = one("good", [1.0, 0, 0, 0], semantic=[1.0, 0.0])
    bad_ones = [
        one("bad", [1.0, bad, 0, 0], semantic=[1.0, 0.0]),
        one("bad", [1.0, 0, 0, 0], weight=bad, semantic=[1.0, 0.0]),
        one("bad", [1.0, 0, 0, 0], semantic=[bad, 0.0]),
    ]
    for document in bad_ones:
        with pytest.raises(citadel.InputError, match=r"document 'bad': .*NaN or"):
            index.add_vectors([good, document])
        index.rollback()
    index.add_vectors([good])
    assert len(index.commit()) == 1


@pytest.mark.parametrize(
    ("codec", "value", "fits"),
    [("fp16", 65504.0, True), ("fp16", 65505.0, False), ("fp16", 1e30, False),
     ("int8", 65505.0, True), ("int8", 65504.0 * 127, True), ("int8", 65504.0 * 128, False), ("int8", 3e38, False)],
)  # fmt: skip
def test_the_largest_number_a_codec_keeps(codec: str, value: float, fits: bool, tmp_path: Path) -> None:
    index = vectors_index(tmp_path / "i", codec)
    if not fits:
        with pytest.raises(citadel.InputError, match=r"document 'big': the vectors hold .* at most"):
            index.add_vectors([one("big", [value, 0.0])])
        return
    index.add_vectors([one("big", [value, 0.0])])
    ((_, score),) = found(index.commit(), "native")
    assert score == pytest.approx(value, rel=1e-2)


def test_the_product_counts(tmp_path: Path) -> None:
    """Weight and vector fit, w'·v does not."""
    index = vectors_index(tmp_path / "i", "fp16")
    with pytest.raises(citadel.InputError, match="document 'big': the weighted vectors hold"):
        index.add_vectors([one("big", [60000.0, 0.0], weight=2.0)])


def test_sparse_weights_too_large(tmp_path: Path) -> None:
    index = citadel.Index.create(Quick(tmp_path / "i"), fields={"lexical": 0}, router="sparse", fingerprint="x")
    with pytest.raises(citadel.InputError, match="document 'big': the weights hold 70000"):
        index.add_vectors([{"id": "big", "keys": [1], "weights": [70000.0]}])


@BOTH
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_no_number_in_a_query(bad: float, engine: str, tmp_path: Path) -> None:
    index = vectors_index(tmp_path / "i", fields={"semantic": 2})
    index.add_vectors([one("d", [1.0, 0.0], semantic=[1.0, 0.0])])
    index.commit()
    for query in ({"vectors": [[bad, 0.0]]}, {"weights": [bad]}, {"semantic": [bad, 0.0]}):
        with pytest.raises(citadel.InputError, match="NaN or"):
            found(index, engine, **query)


@BOTH
def test_a_query_too_large_for_fp32(engine: str, tmp_path: Path) -> None:
    index = vectors_index(tmp_path / "i")
    index.add_vectors([one("d", [1.0, 0.0])])
    index.commit()
    with pytest.raises(citadel.InputError, match="overflow to infinity"):
        found(index, engine, weights=[3e38], vectors=[[3e38, 0.0]])


# ---- what is nothing ------------------------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("codec", ["fp16", "int8"])
def test_a_zero_vector_scores_zero(codec: str, engine: str, tmp_path: Path) -> None:
    index = vectors_index(tmp_path / "i", codec)
    index.add_vectors([one("zero", [0.0, 0.0]), one("up", [2.0, 0.0]), one("down", [-2.0, 0.0])])
    index.commit()
    assert [(id, round(score, 2)) for id, score in found(index, engine)] == [("up", 2.0), ("zero", 0.0), ("down", 0.0)]
    assert [score for _, score in found(index, engine, vectors=[[0.0, 0.0]])] == [0.0, 0.0, 0.0]


@BOTH
def test_all_weights_at_or_below_tau(engine: str, tmp_path: Path) -> None:
    index = vectors_index(tmp_path / "i", tau=0.5)
    index.add_vectors([one("light", [1.0, 0.0], weight=0.5), one("none", [1.0, 0.0], weight=0.0)])
    index.commit()
    assert (len(index), index.stats()["postings"], found(index, engine)) == (2, 0, [])
    index.add_vectors([one("heavy", [1.0, 0.0], weight=0.51)])
    index.commit()
    assert [id for id, _ in found(index, engine)] == ["heavy"]


@BOTH
def test_an_empty_index(engine: str, tmp_path: Path) -> None:
    index = vectors_index(tmp_path / "v", fields={"semantic": 2})
    assert found(index, engine, semantic=[1.0, 0.0]) == []
    text = citadel.Index.create(Quick(tmp_path / "t"))
    assert list(text.searcher(engine=engine).search("anything")) == []
    assert (len(text), text.get("x"), "x" in text) == (0, None, False)


@BOTH
@pytest.mark.parametrize("query", ["zebra", "the of and"])
def test_a_query_that_meets_nothing(query: str, engine: str, tmp_path: Path) -> None:
    index = citadel.Index.create(Quick(tmp_path / "i"))
    index.add([{"id": "d", "text": "an ant meets a bee"}])
    assert list(index.commit().searcher(engine=engine).search(query)) == []


@BOTH
@pytest.mark.parametrize("query", ["", "   ", "!?"])
def test_a_query_without_words_is_refused(query: str, engine: str, tmp_path: Path) -> None:
    index = citadel.Index.create(Quick(tmp_path / "i"))
    index.add([{"id": "d", "text": "an ant meets a bee"}])
    with pytest.raises(citadel.EmptyQueryError, match="no words"):
        index.commit().searcher(engine=engine).search(query)


@BOTH
def test_documents_without_a_word(engine: str, tmp_path: Path) -> None:
    index = citadel.Index.create(Quick(tmp_path / "i"))
    index.add([{"id": "empty", "text": ""}, {"id": "marks", "text": "!!!"}])
    index.commit()
    assert (len(index), list(index.searcher(engine=engine).search("ant"))) == (2, [])
    index.check(deep=True)


@BOTH
def test_an_empty_vector_query_still_has_its_semantic_part(engine: str, tmp_path: Path) -> None:
    index = vectors_index(tmp_path / "i", fields={"semantic": citadel.Field(2, "fp16")})
    index.add_vectors([one("a", [1.0, 0.0], semantic=[1.0, 0.0]), one("b", [1.0, 0.0], semantic=[-1.0, 0.0])])
    index.commit()
    for mode in ("exact", "rerank"):
        hits = index.searcher(engine=engine).search_vectors(semantic=[2.0, 0.0], semantic_mode=mode)
        assert (hits.ids, hits.scores) == (["a", "b"], [2.0, -2.0])
    assert len(index.searcher(engine=engine).search_vectors(semantic=[2.0, 0.0], semantic_mode="off")) == 0


@BOTH
def test_an_empty_vector_query(engine: str, tmp_path: Path) -> None:
    index = vectors_index(tmp_path / "i")
    index.add_vectors([one("a", [1.0, 0.0]), {"id": "empty", "keys": [], "weights": [], "vectors": []}])
    index.commit()
    assert len(index) == 2
    assert found(index, engine, keys=[], weights=[], vectors=[]) == []
    assert found(index, engine, keys=None, weights=None, vectors=None) == []
    assert found(index, engine, keys=[8]) == []
    assert found(index, engine, weights=[0.0]) == []


@BOTH
def test_a_query_without_its_semantic_part(engine: str, tmp_path: Path) -> None:
    index = vectors_index(tmp_path / "i", fields={"semantic": 2})
    index.add_vectors([one("a", [1.0, 0.0], semantic=[1.0, 0.0]), one("b", [2.0, 0.0], semantic=[-9.0, 0.0])])
    assert [id for id, _ in found(index.commit(), engine)] == ["b", "a"]


@BOTH
def test_only_deleted_documents(engine: str, tmp_path: Path) -> None:
    index = vectors_index(tmp_path / "i", fields={"semantic": 2})
    index.add_vectors([one("a", [1.0, 0.0], semantic=[1.0, 0.0])])
    index.commit().delete(["a"])
    index.commit()
    assert (len(index), found(index, engine, semantic=[1.0, 0.0])) == (0, [])
    text = citadel.Index.create(Quick(tmp_path / "t"))
    text.add([{"id": "a", "text": "ant"}])
    text.commit().delete(["a"])
    assert list(text.commit().searcher(engine=engine).search("ant")) == []
    text.check(deep=True)


# ---- k and ties -----------------------------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize(("k", "length"), [(0, 0), (1, 1), (5, 5), (6, 5), (10**9, 5), (2**62, 5), (10**30, 5)])
@pytest.mark.parametrize("mode", ["exact", "rerank", "off"])
def test_k(k: int, length: int, mode: str, engine: str, tmp_path: Path) -> None:
    index = vectors_index(tmp_path / "i", fields={"semantic": 2})
    index.add_vectors([one(f"d{n}", [n + 1.0, 0.0], semantic=[1.0, 0.0]) for n in range(5)])
    searcher = index.commit().searcher(engine=engine)
    query: dict[str, Any] = {"keys": [7], "vectors": [[1.0, 0.0]], "semantic": [1.0, 0.0]}
    assert searcher.search_vectors(**query, k=k, semantic_mode=mode).ids == ["d4", "d3", "d2", "d1", "d0"][:length]


@pytest.mark.parametrize("k", [-1, 1.5, "3", None, True])
def test_k_that_is_no_count(k: Any, tmp_path: Path) -> None:
    index = vectors_index(tmp_path / "i")
    with pytest.raises(citadel.UsageError, match="k must be a whole number"):
        found(index, "native", k=k)


@BOTH
def test_equal_scores_stand_in_document_order(engine: str, tmp_path: Path) -> None:
    """Ties over three segments and a merge, for a k that cuts through them."""
    index = vectors_index(tmp_path / "i")
    names = [f"d{n}" for n in (5, 2, 9, 1, 8, 0)]
    for start in (0, 2, 4):
        index.add_vectors([one(name, [1.0, 0.0]) for name in names[start : start + 2]])
        index.commit()
    for k in (1, 3, 6):
        assert [id for id, _ in found(index, engine, k)] == names[:k]
    assert [id for id, _ in found(index.merge(), engine)] == names


# ---- dimensions -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dimension", [1, 3, 32, 33, 384, 1024])
@pytest.mark.parametrize("codec", ["fp16", "int8"])
def test_dimensions(dimension: int, codec: str, tmp_path: Path) -> None:
    random = np.random.default_rng(dimension)
    index = vectors_index(tmp_path / "i", codec, dimension, fields={"semantic": citadel.Field(dimension, codec)})
    vectors, query = random.normal(size=(40, dimension)), random.normal(size=dimension)
    index.add_vectors([one(f"d{n}", vectors[n], semantic=vectors[n]) for n in range(40)])
    index.commit()
    asked: dict[str, Any] = {"vectors": [query], "semantic": query, "k": 40}
    fast, slow = found(index, "native", **asked), found(index, "reference", **asked)
    assert fast == slow
    exact = np.maximum(vectors @ query, 0) + vectors @ query
    size = float(np.abs(vectors).max() * np.abs(query).sum())
    assert [abs(score - exact[int(id[1:])]) < 0.02 * size for id, score in fast] == [True] * 40


@pytest.mark.parametrize("dimension", [-1, 1025, 1 << 40])
def test_dimensions_out_of_range(dimension: int, tmp_path: Path) -> None:
    with pytest.raises(citadel.UsageError, match="out of range"):
        vectors_index(tmp_path / "i", dimension=dimension)
