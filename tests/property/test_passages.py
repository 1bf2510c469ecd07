"""A document with several passages ranks by its best one, and so does a group of documents."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, seed
from hypothesis import strategies as st

import citadel
from citadel.index.vectors import batches
from citadel.types import Document, Passages, VectorBatch
from tests.property.test_same_answer import EXAMPLES, SEED
from tests.property.worlds import World, answers, built, worlds

VECTORS = ("static", "dynamic", "all_to_all", "none", "sparse")
Sizes = list[int]  # passages per document


def split_evenly(items: Sequence[Any], sizes: Sizes) -> list[list[Any]]:
    """Consecutive parts of these sizes."""
    ends = np.cumsum(sizes).tolist()
    return [list(items[end - size : end]) for size, end in zip(sizes, ends, strict=True)]


def long_documents(world: World, index: citadel.Index, sizes: Sizes, first: int) -> VectorBatch:
    """Documents whose passages are consecutive documents of the world, from `first` on."""
    passages = [world.document(first + number) for number in range(sum(sizes))]
    [batch] = batches(passages, index.settings, 1 << 30)
    documents = [
        Document(f"d{own[0]['id'][1:]}", "x" * 10 * len(own), metadata={"parity": int(own[0]["id"][1:]) % 2})
        for own in split_evenly(passages, sizes)
    ]
    starts = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    spans = [(10 * i, 10 * i + 10) for size in sizes for i in range(size)]
    return replace(batch, documents=documents, passages=Passages(starts, np.array(spans, np.uint32)))


@st.composite
def layouts(draw: st.DrawFn) -> list[Sizes]:
    """Passages per document, in commits."""
    sizes = st.lists(st.integers(1, 4), min_size=1, max_size=5)
    return draw(st.lists(sizes, min_size=1, max_size=3))


def best_of(answer: Sequence[tuple[list[str], list[float]]], owner: dict[str, str], k: int) -> list[Any]:
    """The best hit of each owner, from rankings of passages."""
    rankings = []
    for ids, scores in answer:
        best: dict[str, float] = {}
        for id, score in zip(ids, scores, strict=True):
            if id in owner:
                best.setdefault(owner[id], score)
        rankings.append(list(best.items())[:k])
    return rankings


def pairs(answer: Sequence[tuple[list[str], list[float]]]) -> list[Any]:
    return [list(zip(*hits, strict=True)) for hits in answer]


@seed(SEED)
@EXAMPLES
@given(
    st.data(),
    worlds(VECTORS, codecs=("fp16", "int8")),
    layouts(),
    st.sampled_from([1, 2, 3, 1000]),
    st.booleans(),
)
def test_long_documents_rank_by_their_best_passage(
    data: st.DataObject, world: World, layout: list[Sizes], k: int, filtered: bool
) -> None:
    """The oracle indexes each passage as a document of its own and takes the best one of each."""
    firsts = np.cumsum([0, *(sum(sizes) for sizes in layout)]).tolist()
    owner: dict[str, str] = {}
    for sizes, first in zip(layout, firsts, strict=False):
        for own in split_evenly(range(first, first + sum(sizes)), sizes):
            owner |= {f"d{number}": f"d{own[0]}" for number in own}
    plain = [
        [world.document(first + n) for n in range(sum(sizes))]
        for sizes, first in zip(layout, firsts, strict=False)
    ]
    deleted = data.draw(st.sets(st.sampled_from(sorted(set(owner.values()))), max_size=2))
    with built(world, plain) as passages:
        everything = answers(world, passages, engine="reference")
    kept = {
        passage: document
        for passage, document in owner.items()
        if document not in deleted and (not filtered or int(document[1:]) % 2 == 0)
    }
    expected = best_of(everything, kept, k)
    options: dict[str, Any] = {"filter": {"parity": 0}} if filtered else {}
    with built(world, []) as index:
        for sizes, first in zip(layout, firsts, strict=False):
            index.add_vectors(long_documents(world, index, sizes, first))
            index.commit()
        index.delete(sorted(deleted))
        index.commit()
        assert len(index) == len(set(owner.values())) - len(deleted)
        assert pairs(answers(world, index, k, engine="reference", **options)) == expected
        assert pairs(answers(world, index, k, **options)) == expected
        assert pairs(answers(world, index, k, threads=3, **options)) == expected
        index.merge()
        index.check(deep=True)
        assert pairs(answers(world, index, k, **options)) == expected


@seed(SEED)
@EXAMPLES
@given(st.data(), worlds(VECTORS, codecs=("fp16", "int8")), st.sampled_from([1, 2, 5, 1000]))
def test_group_by_keeps_the_best_of_each_value(data: st.DataObject, world: World, k: int) -> None:
    values = st.sampled_from([None, "a", "b", 1, 1.5, "1"])
    kind = data.draw(st.sampled_from(["text", "number"]))
    groups = []
    for _ in range(world.count):
        value = data.draw(values)
        groups.append(value if value is None or isinstance(value, str) == (kind == "text") else None)
    documents = [
        document | ({} if group is None else {"group": group})
        for document, group in zip(world.documents(), groups, strict=True)
    ]
    owner = {
        f"d{number}": f"alone {number}" if group is None else f"value {group}"
        for number, group in enumerate(groups)
    }
    with built(world, [documents[: world.count // 2], documents[world.count // 2 :]]) as index:
        everything = answers(world, index, engine="reference")
        expected = [[score for _, score in ranking] for ranking in best_of(everything, owner, k)]
        for engine in ("reference", "native"):
            grouped = answers(world, index, k, engine=engine, group_by="group")
            assert [scores for _, scores in grouped] == expected
            for ids, _ in grouped:
                assert len({owner[id] for id in ids}) == len(ids)


def test_gpu_engine_returns_the_best_passages() -> None:
    pytest.importorskip("torch", reason="torch is not installed: `pip install citadel-ir[gpu]`")
    world = World("dynamic", "int8", 8, "int8", seed=5, count=40)
    with built(world, []) as index:
        index.add_vectors(long_documents(world, index, [3, 1, 2, 4, 1], 0))
        index.commit()
        index.add_vectors(long_documents(world, index, [2, 2], 20))
        index.delete(["d4"])
        index.commit()
        expected = pairs(answers(world, index, 3, engine="reference"))
        for query, wanted in zip(world.queries(), expected[::3], strict=True):
            hits = index.searcher(engine="gpu", device="cpu").search_vectors(
                **query, k=3, semantic_mode="exact"
            )
            assert hits.ids == [id for id, _ in wanted]
            assert hits.scores == pytest.approx([score for _, score in wanted], rel=1e-3, abs=1e-3)
