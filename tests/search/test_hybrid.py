"""`citadel.Hybrid`: the same answer as fused rankings, with filters, pages, groups and explanations."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import citadel
from citadel.encode.locate import default_model

pytestmark = pytest.mark.skipif(default_model() is None, reason="the default model is not installed")

TEXTS = {
    "wing": "the lift and drag of a thin wing in supersonic flow",
    "delta": "pressure on a delta wing",
    "layer": "heat transfer in a laminar boundary layer on a flat plate",
    "buckling": "buckling of thin cylindrical shells under axial load",
    "lift": "elevators lift passengers in tall buildings",
}
QUERIES = {"q1": "lift of a wing", "q2": "thin shells", "q3": "heat"}


@pytest.fixture(scope="module")
def searchers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[citadel.Searcher]]:
    folder = tmp_path_factory.mktemp("hybrid")
    indexes = [citadel.Index.create(folder / name, model=name) for name in ("default", "bm25")]
    for index in indexes:
        index.add(
            {"id": id, "text": text, "year": 1950 + n, "kind": "air" if n < 3 else "solid"}
            for n, (id, text) in enumerate(TEXTS.items())
        )
    yield [index.commit().searcher() for index in indexes]
    for index in indexes:
        index.close()


@pytest.fixture(scope="module")
def hybrid(searchers: list[citadel.Searcher]) -> citadel.Hybrid:
    return citadel.Hybrid(searchers, weights=[0.7, 0.3])


@pytest.mark.parametrize("method", ["linear", "rrf"])
def test_a_hybrid_is_the_fusion_of_its_searchers(searchers: list[citadel.Searcher], method: str) -> None:
    rankings = [searcher.search_batch(QUERIES, k=100) for searcher in searchers]
    fused = citadel.fuse(rankings, method, [0.7, 0.3], k=10)
    hybrid = citadel.Hybrid(searchers, method, [0.7, 0.3])
    assert hybrid.search_batch(QUERIES).to_dict() == fused.to_dict()
    for id, query in QUERIES.items():
        assert hybrid.search(query).ids == [hit.id for hit in fused[id]]


def test_hits_have_documents_relevance_and_named_parts(hybrid: citadel.Hybrid) -> None:
    hit = hybrid.search("lift of a wing")[0]
    assert (hit.id, hit.text, hit.metadata["year"]) == ("wing", TEXTS["wing"], 1950)
    assert [part.name for part in hit.parts] == ["default", "bm25"]
    assert hit.relevance is not None
    assert 0.3 < hit.relevance <= 1


def test_filters_pages_and_scores(hybrid: citadel.Hybrid) -> None:
    everything = hybrid.search("lift of a wing")
    assert set(hybrid.search("lift of a wing", filter={"year": {"$gt": 1952}}).ids) == {"buckling", "lift"}
    page = hybrid.search("lift of a wing", k=2, offset=1)
    assert page.ids == everything.ids[1:3]
    assert [hit.rank for hit in page] == [2, 3]
    assert page[0].text == TEXTS[page[0].id]
    best = everything.scores[0]
    assert hybrid.search("lift of a wing", min_score=best).ids == ["wing"]
    assert len(hybrid.search("lift of a wing", k=0)) == 0


def test_groups_have_one_hit_each(hybrid: citadel.Hybrid) -> None:
    hits = hybrid.search("lift of a wing", group_by="kind")
    assert sorted(hit.metadata["kind"] for hit in hits) == ["air", "solid"]


def test_min_relevance_needs_a_calibrated_model(
    hybrid: citadel.Hybrid, searchers: list[citadel.Searcher]
) -> None:
    assert hybrid.search("best pizza in Naples", min_relevance=0.3).ids == []
    assert "wing" in hybrid.search("lift of a wing", min_relevance=0.3).ids
    with pytest.raises(citadel.UsageError, match="min_relevance needs"):
        citadel.Hybrid(searchers[1:]).search("wing", min_relevance=0.5)


def test_the_explanation_has_each_part(hybrid: citadel.Hybrid) -> None:
    explanation = hybrid.explain("lift of a wing", "delta")
    hit = next(hit for hit in hybrid.search("lift of a wing") if hit.id == "delta")
    assert explanation.score == hit.score == pytest.approx(sum(part.gain for part in explanation.parts))
    assert [(part.name, part.weight) for part in explanation.parts] == [("default", 0.7), ("bm25", 0.3)]
    assert all(part.explanation and part.explanation.id == "delta" for part in explanation.parts)
    assert explanation.to_json()["parts"][1]["explanation"]["router"] == "bm25"
    with pytest.raises(citadel.InputError):
        hybrid.explain("lift of a wing", "unknown")


def test_a_document_that_one_index_lacks_is_still_a_hit(
    tmp_path: Path, searchers: list[citadel.Searcher]
) -> None:
    with citadel.Index.create(tmp_path / "other", model="bm25") as other:
        other.add([{"id": "new", "text": "a new wing"}])
        hybrid = citadel.Hybrid([searchers[0], other.commit().searcher()])
    assert {"new", "wing"} <= set(hybrid.search("lift of a wing").ids)
    parts = hybrid.explain("lift of a wing", "new").parts
    assert [part.explanation is None for part in parts] == [True, False]
    assert hybrid.search("wing", filter={"year": 1950}).ids == ["wing"]


def test_a_query_without_words_is_refused_only_if_no_searcher_has_any(hybrid: citadel.Hybrid) -> None:
    for empty in ("", " ?! "):
        with pytest.raises(citadel.EmptyQueryError):
            hybrid.search(empty) if not empty else hybrid.search_batch({"q": ""})


def test_options_go_to_the_searchers_that_they_fit(hybrid: citadel.Hybrid) -> None:
    assert hybrid.search("lift of a wing", semantic_mode="exact").ids == hybrid.search("lift of a wing").ids
    assert hybrid.search("lift of a wing", tau=2.0).ids
    flag = citadel.CancelFlag()
    flag.set()
    with pytest.raises(citadel.Cancelled):
        hybrid.search("lift of a wing", cancel=flag)
    with pytest.raises(citadel.UsageError):
        hybrid.search("lift of a wing", semantic_mode="everything")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"method": "sum"}, "unknown fusion method"),
        ({"weights": [1]}, "1 weights for 2 rankings"),
        ({"weights": [0, 0]}, "sum to 0"),
        ({"weights": [2, -1]}, "0 or more"),
        ({"candidates": 0}, "candidates must be"),
        ({"candidates": True}, "candidates must be"),
        ({"names": ["a", "a"]}, "names must be"),
    ],
)
def test_bad_arguments_are_refused(
    searchers: list[citadel.Searcher], arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(citadel.UsageError, match=message):
        citadel.Hybrid(searchers, **arguments)


@pytest.mark.parametrize("given", [[], None, ["index"]])
def test_only_searchers_make_a_hybrid(given: Any) -> None:
    with pytest.raises(citadel.UsageError, match="at least one searcher"):
        citadel.Hybrid(given)


@pytest.mark.parametrize("options", [{"k": -1}, {"offset": 1.5}, {"min_score": "high"}, {"min_relevance": 2}])
def test_bad_options_are_refused(hybrid: citadel.Hybrid, options: dict[str, Any]) -> None:
    with pytest.raises(citadel.UsageError):
        hybrid.search("wing", **options)
