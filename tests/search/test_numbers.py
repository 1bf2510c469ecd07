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


def document(id: str, vector: list[float], weight: float = 1.0, key: int = 7, **more: Any) -> dict[str, Any]:
    return {"id": id, "keys": [key], "weights": [weight], "vectors": [vector], **more}


def search(index: citadel.Index, engine: str, k: int = 10, **query: Any) -> list[tuple[str, float]]:
    usual: dict[str, Any] = {"keys": [7], "weights": [1.0], "vectors": [[1.0, 0.0]]}
    hits = index.searcher(engine=engine).search_vectors(**usual | query, k=k)
    return list(zip(hits.ids, hits.scores, strict=True))


# ---- invalid numbers --------------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("codec", ["fp16", "int8", "pq2"])
def test_non_finite_document_is_rejected(bad: float, codec: str, tmp_path: Path) -> None:
    index = vectors_index(tmp_path / "i", codec, 4, fields={"semantic": 2})
    good = document("good", [1.0, 0, 0, 0], semantic=[1.0, 0.0])
    bad_documents = [
        document("bad", [1.0, bad, 0, 0], semantic=[1.0, 0.0]),
        document("bad", [1.0, 0, 0, 0], weight=bad, semantic=[1.0, 0.0]),
        document("bad", [1.0, 0, 0, 0], semantic=[bad, 0.0]),
    ]
    for bad_document in bad_documents:
        with pytest.raises(citadel.InputError, match=r"document 'bad': .*NaN or"):
            index.add_vectors([good, bad_document])
        index.rollback()
    index.add_vectors([good])
    assert len(index.commit()) == 1


@pytest.mark.parametrize(
    ("codec", "value", "fits"),
    [("fp16", 65504.0, True), ("fp16", 65505.0, False), ("fp16", 1e30, False),
     ("int8", 65505.0, True), ("int8", 65504.0 * 127, True), ("int8", 65504.0 * 128, False),
     ("int8", 3e38, False)],
)  # fmt: skip
def test_largest_value_of_each_codec(codec: str, value: float, fits: bool, tmp_path: Path) -> None:
    index = vectors_index(tmp_path / "i", codec)
    if not fits:
        with pytest.raises(citadel.InputError, match=r"document 'big': the vectors hold .* at most"):
            index.add_vectors([document("big", [value, 0.0])])
        return
    index.add_vectors([document("big", [value, 0.0])])
    ((_, score),) = search(index.commit(), "native")
    assert score == pytest.approx(value, rel=1e-2)


def test_weighted_vector_too_large_for_fp16(tmp_path: Path) -> None:
    index = vectors_index(tmp_path / "i", "fp16")
    with pytest.raises(citadel.InputError, match="document 'big': the weighted vectors hold"):
        index.add_vectors([document("big", [60000.0, 0.0], weight=2.0)])


def test_sparse_weight_too_large_for_fp16(tmp_path: Path) -> None:
    index = citadel.Index.create(
        Quick(tmp_path / "i"), fields={"lexical": 0}, router="sparse", fingerprint="x"
    )
    with pytest.raises(citadel.InputError, match="document 'big': the weights hold 70000"):
        index.add_vectors([{"id": "big", "keys": [1], "weights": [70000.0]}])


@BOTH
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_non_finite_query_is_rejected(bad: float, engine: str, tmp_path: Path) -> None:
    index = vectors_index(tmp_path / "i", fields={"semantic": 2})
    index.add_vectors([document("d", [1.0, 0.0], semantic=[1.0, 0.0])])
    index.commit()
    for query in ({"vectors": [[bad, 0.0]]}, {"weights": [bad]}, {"semantic": [bad, 0.0]}):
        with pytest.raises(citadel.InputError, match="NaN or"):
            search(index, engine, **query)


@BOTH
def test_query_overflowing_fp32_is_rejected(engine: str, tmp_path: Path) -> None:
    index = vectors_index(tmp_path / "i")
    index.add_vectors([document("d", [1.0, 0.0])])
    index.commit()
    with pytest.raises(citadel.InputError, match="overflow to infinity"):
        search(index, engine, weights=[3e38], vectors=[[3e38, 0.0]])


# ---- empty and zero ----------------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("codec", ["fp16", "int8"])
def test_zero_vector_scores_zero(codec: str, engine: str, tmp_path: Path) -> None:
    index = vectors_index(tmp_path / "i", codec)
    index.add_vectors(
        [document("zero", [0.0, 0.0]), document("up", [2.0, 0.0]), document("down", [-2.0, 0.0])]
    )
    index.commit()
    assert [(id, round(score, 2)) for id, score in search(index, engine)] == [
        ("up", 2.0),
        ("zero", 0.0),
        ("down", 0.0),
    ]
    assert [score for _, score in search(index, engine, vectors=[[0.0, 0.0]])] == [0.0, 0.0, 0.0]


@BOTH
def test_weights_at_or_below_tau_are_not_indexed(engine: str, tmp_path: Path) -> None:
    index = vectors_index(tmp_path / "i", tau=0.5)
    index.add_vectors([document("light", [1.0, 0.0], weight=0.5), document("none", [1.0, 0.0], weight=0.0)])
    index.commit()
    assert (len(index), index.stats()["postings"], search(index, engine)) == (2, 0, [])
    index.add_vectors([document("heavy", [1.0, 0.0], weight=0.51)])
    index.commit()
    assert [id for id, _ in search(index, engine)] == ["heavy"]


@BOTH
def test_empty_index_returns_no_hits(engine: str, tmp_path: Path) -> None:
    index = vectors_index(tmp_path / "v", fields={"semantic": 2})
    assert search(index, engine, semantic=[1.0, 0.0]) == []
    text = citadel.Index.create(Quick(tmp_path / "t"))
    assert list(text.searcher(engine=engine).search("anything")) == []
    assert (len(text), text.get("x"), "x" in text) == (0, None, False)


@BOTH
@pytest.mark.parametrize("query", ["zebra", "the of and"])
def test_query_without_matching_terms_returns_no_hits(query: str, engine: str, tmp_path: Path) -> None:
    index = citadel.Index.create(Quick(tmp_path / "i"))
    index.add([{"id": "d", "text": "an ant meets a bee"}])
    assert list(index.commit().searcher(engine=engine).search(query)) == []


@BOTH
@pytest.mark.parametrize("query", ["", "   ", "!?"])
def test_query_without_words_is_rejected(query: str, engine: str, tmp_path: Path) -> None:
    index = citadel.Index.create(Quick(tmp_path / "i"))
    index.add([{"id": "d", "text": "an ant meets a bee"}])
    with pytest.raises(citadel.EmptyQueryError, match="no words"):
        index.commit().searcher(engine=engine).search(query)


@BOTH
def test_documents_without_words_are_indexed_but_never_match(engine: str, tmp_path: Path) -> None:
    index = citadel.Index.create(Quick(tmp_path / "i"))
    index.add([{"id": "empty", "text": ""}, {"id": "marks", "text": "!!!"}])
    index.commit()
    assert (len(index), list(index.searcher(engine=engine).search("ant"))) == (2, [])
    index.check(deep=True)


@BOTH
def test_query_with_only_a_semantic_vector(engine: str, tmp_path: Path) -> None:
    index = vectors_index(tmp_path / "i", fields={"semantic": citadel.Field(2, "fp16")})
    index.add_vectors(
        [document("a", [1.0, 0.0], semantic=[1.0, 0.0]), document("b", [1.0, 0.0], semantic=[-1.0, 0.0])]
    )
    index.commit()
    for mode in ("exact", "rerank"):
        hits = index.searcher(engine=engine).search_vectors(semantic=[2.0, 0.0], semantic_mode=mode)
        assert (hits.ids, hits.scores) == (["a", "b"], [2.0, -2.0])
    assert len(index.searcher(engine=engine).search_vectors(semantic=[2.0, 0.0], semantic_mode="off")) == 0


@BOTH
def test_empty_vector_query_returns_no_hits(engine: str, tmp_path: Path) -> None:
    index = vectors_index(tmp_path / "i")
    index.add_vectors([document("a", [1.0, 0.0]), {"id": "empty", "keys": [], "weights": [], "vectors": []}])
    index.commit()
    assert len(index) == 2
    assert search(index, engine, keys=[], weights=[], vectors=[]) == []
    assert search(index, engine, keys=None, weights=None, vectors=None) == []
    assert search(index, engine, keys=[8]) == []
    assert search(index, engine, weights=[0.0]) == []


@BOTH
def test_query_without_semantic_vector_ranks_by_tokens(engine: str, tmp_path: Path) -> None:
    index = vectors_index(tmp_path / "i", fields={"semantic": 2})
    index.add_vectors(
        [document("a", [1.0, 0.0], semantic=[1.0, 0.0]), document("b", [2.0, 0.0], semantic=[-9.0, 0.0])]
    )
    assert [id for id, _ in search(index.commit(), engine)] == ["b", "a"]


@BOTH
def test_deleted_documents_do_not_match(engine: str, tmp_path: Path) -> None:
    index = vectors_index(tmp_path / "i", fields={"semantic": 2})
    index.add_vectors([document("a", [1.0, 0.0], semantic=[1.0, 0.0])])
    index.commit().delete(["a"])
    index.commit()
    assert (len(index), search(index, engine, semantic=[1.0, 0.0])) == (0, [])
    text = citadel.Index.create(Quick(tmp_path / "t"))
    text.add([{"id": "a", "text": "ant"}])
    text.commit().delete(["a"])
    assert list(text.commit().searcher(engine=engine).search("ant")) == []
    text.check(deep=True)


# ---- k and ties --------------------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize(
    ("k", "length"), [(0, 0), (1, 1), (5, 5), (6, 5), (10**9, 5), (2**62, 5), (10**30, 5)]
)
@pytest.mark.parametrize("mode", ["exact", "rerank", "off"])
def test_k_limits_the_hits(k: int, length: int, mode: str, engine: str, tmp_path: Path) -> None:
    index = vectors_index(tmp_path / "i", fields={"semantic": 2})
    index.add_vectors([document(f"d{n}", [n + 1.0, 0.0], semantic=[1.0, 0.0]) for n in range(5)])
    searcher = index.commit().searcher(engine=engine)
    query: dict[str, Any] = {"keys": [7], "vectors": [[1.0, 0.0]], "semantic": [1.0, 0.0]}
    assert (
        searcher.search_vectors(**query, k=k, semantic_mode=mode).ids
        == ["d4", "d3", "d2", "d1", "d0"][:length]
    )


@pytest.mark.parametrize("k", [-1, 1.5, "3", None, True])
def test_invalid_k_is_rejected(k: Any, tmp_path: Path) -> None:
    index = vectors_index(tmp_path / "i")
    with pytest.raises(citadel.UsageError, match="k must be a whole number"):
        search(index, "native", k=k)


@BOTH
def test_ties_are_in_document_order(engine: str, tmp_path: Path) -> None:
    """Across three segments and after a merge, also when k cuts through the ties."""
    index = vectors_index(tmp_path / "i")
    names = [f"d{n}" for n in (5, 2, 9, 1, 8, 0)]
    for start in (0, 2, 4):
        index.add_vectors([document(name, [1.0, 0.0]) for name in names[start : start + 2]])
        index.commit()
    for k in (1, 3, 6):
        assert [id for id, _ in search(index, engine, k)] == names[:k]
    assert [id for id, _ in search(index.merge(), engine)] == names


# ---- dimensions --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dimension", [1, 3, 32, 33, 384, 1024])
@pytest.mark.parametrize("codec", ["fp16", "int8"])
def test_scores_at_various_dimensions(dimension: int, codec: str, tmp_path: Path) -> None:
    random = np.random.default_rng(dimension)
    index = vectors_index(
        tmp_path / "i", codec, dimension, fields={"semantic": citadel.Field(dimension, codec)}
    )
    vectors, query = random.normal(size=(40, dimension)), random.normal(size=dimension)
    index.add_vectors([document(f"d{n}", vectors[n], semantic=vectors[n]) for n in range(40)])
    index.commit()
    query_options: dict[str, Any] = {"vectors": [query], "semantic": query, "k": 40}
    fast, slow = search(index, "native", **query_options), search(index, "reference", **query_options)
    assert fast == slow
    exact = np.maximum(vectors @ query, 0) + vectors @ query
    bound = float(np.abs(vectors).max() * np.abs(query).sum())
    assert [abs(score - exact[int(id[1:])]) < 0.02 * bound for id, score in fast] == [True] * 40


@pytest.mark.parametrize("dimension", [-1, 1025, 1 << 40])
def test_dimension_out_of_range_is_rejected(dimension: int, tmp_path: Path) -> None:
    with pytest.raises(citadel.UsageError, match="out of range"):
        vectors_index(tmp_path / "i", dimension=dimension)
