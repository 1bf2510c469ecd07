"""A centroid index of text: a model that compares all tokens, with a residual codec or int8."""

from __future__ import annotations

from pathlib import Path

import pytest

import citadel
from citadel.errors import UsageError
from citadel.index.repair import repair
from citadel.index.shard import shard_index
from tests.index.quick import Quick
from tests.support.centroid_indexes import few_tokens
from tests.support.models import ModelFolder

TEXTS = (
    "einstein proposed relativity",
    "darwin proposed evolution",
    "the history of rome",
    "newton in physics",
)


def build(
    folder: Path, model: Path, codec: str | None = "residual4", router: str | None = None
) -> citadel.Index:
    with few_tokens(100):
        index = citadel.Index.create(Quick(folder), model=model, codec=codec, router=router)
        index.add([{"id": f"d{n}", "text": TEXTS[n % 4], "title": f"title {n}"} for n in range(40)])
        return index.commit()


@pytest.fixture(params=["residual4", "int8"])
def index(request: pytest.FixtureRequest, tmp_path: Path, tiny_model: ModelFolder) -> citadel.Index:
    return build(tmp_path / "i", tiny_model("all_to_all"), request.param, "centroid")


def test_text_queries_find_what_exact_search_finds(
    index: citadel.Index, tmp_path: Path, tiny_model: ModelFolder
) -> None:
    plain = build(tmp_path / "plain", tiny_model("all_to_all"), codec="int8")
    assert (index.settings.router, plain.settings.router) == ("centroid", "all_to_all")
    for query in ("who proposed relativity", "history", "newton physics"):
        hits = index.searcher().search(query, k=5)
        best = {hit.id: hit.score for hit in plain.searcher().search(query, k=40)}
        assert len(hits) == 5
        for hit in hits:
            assert hit.score == pytest.approx(best[hit.id], abs=0.35)
            assert hit.score > sorted(best.values())[-10] - 0.35


def test_explanation_names_tokens_and_centroids(index: citadel.Index) -> None:
    searcher = index.searcher()
    hit = searcher.search("relativity", k=1)[0]
    explained = searcher.explain("relativity", hit.id)
    lexical = index.settings.lexical
    assert lexical is not None
    assert (explained.router, explained.codec) == ("centroid", lexical.codec)
    assert explained.score == pytest.approx(hit.score)
    match = next(match for match in explained.matches if explained.query_words(match) == "relativity")
    token = next(
        token for token in explained.document_tokens if (token.position,) == match.postings[0].document_tokens
    )
    assert token.token is not None
    assert token.token in (match.name or "")


def test_router_and_codec_imply_each_other(tmp_path: Path, tiny_model: ModelFolder) -> None:
    model = tiny_model("all_to_all")
    assert build(tmp_path / "a", model, None, "centroid").settings.lexical == citadel.Field(8, "residual2")
    assert build(tmp_path / "b", model, "residual1").settings.router == "centroid"
    with pytest.raises(UsageError, match="go with the router centroid"):
        build(tmp_path / "d", model, "fp16", "centroid")
    with pytest.raises(UsageError, match="go with the router centroid"):
        build(tmp_path / "c", tiny_model("static"), "residual2")


def test_updates_of_text(index: citadel.Index) -> None:
    index.add([{"id": "d1", "text": "gravity"}, {"id": "new", "text": ""}])
    index.delete(["d2"])
    with few_tokens(100):
        index.commit().merge(retrain=True)
    index.check(deep=True)
    ids = index.searcher().search("gravity", k=100).ids
    assert "d2" not in ids
    assert "new" not in ids  # it has no tokens, so it has no score
    assert "d1" in ids


def add_both(index: citadel.Index, first: int, last: int) -> None:
    index.add([{"id": f"d{n}", "text": TEXTS[n % 4], "title": f"title {n}"} for n in range(first, last)])
    index.commit()


@pytest.mark.parametrize("hybrid", [True, False])
def test_bm25_lists_beside_centroids(tmp_path: Path, tiny_model: ModelFolder, hybrid: bool) -> None:
    """A segment from before the centroids, one with residuals, replaced and deleted documents, merges."""
    model = tiny_model("all_to_all")
    with few_tokens(100):
        index = citadel.Index.create(Quick(tmp_path / "i"), model=model, codec="residual4", hybrid=hybrid)
        words = citadel.Index.create(Quick(tmp_path / "w"), model="bm25")
        for each in (index, words):
            add_both(each, 0, 3)
            add_both(each, 3, 40)
            each.delete(["d1", "d20"])
            add_both(each, 5, 8)
        for change in (lambda each: each, lambda each: each.merge(), lambda each: each.merge(retrain=True)):
            change(index)
            index.check(deep=True)
            assert len(index) == 38
            if hybrid:
                same_words(index, words)
        shard_index(index._snapshot, Quick(tmp_path / "s"), 2)
    sharded = citadel.Index.open(Quick(tmp_path / "s"), model=model)
    sharded.check(deep=True)
    assert len(sharded.search("relativity", k=40)) == len(index.search("relativity", k=40)) > 0
    if hybrid:
        same_words(sharded, words)


def same_words(index: citadel.Index, words: citadel.Index) -> None:
    searcher, own = index.searcher(mode="bm25"), words.searcher()
    for query in ("relativity", "title 7", "history of rome"):
        hits, expected = ({hit.id: hit.score for hit in each.search(query, k=40)} for each in (searcher, own))
        assert hits == pytest.approx(expected)
        assert index.search(query, mode="hybrid", k=40).ids


def test_lost_bm25_lists_are_rebuilt_beside_centroids(tmp_path: Path, tiny_model: ModelFolder) -> None:
    with few_tokens(100):
        index = citadel.Index.create(
            Quick(tmp_path / "i"), model=tiny_model("all_to_all"), codec="residual2", hybrid=True
        )
        add_both(index, 0, 3)
        add_both(index, 3, 40)
    before = [index.search(query, mode="bm25", k=40).to_dicts() for query in ("relativity", "title 7")]
    index.close()
    for file in (tmp_path / "i").glob("words-*.cit"):
        file.unlink()
    assert repair(Quick(tmp_path / "i")).lost == 0
    repaired = citadel.Index.open(tmp_path / "i", model=tiny_model("all_to_all"))
    repaired.check(deep=True)
    after = [repaired.search(query, mode="bm25", k=40).to_dicts() for query in ("relativity", "title 7")]
    assert after == before
