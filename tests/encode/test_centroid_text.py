"""A centroid index of text: a model that compares all tokens, with a residual codec."""

from __future__ import annotations

from pathlib import Path

import pytest

import citadel
from citadel.errors import UsageError
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


@pytest.fixture
def index(tmp_path: Path, tiny_model: ModelFolder) -> citadel.Index:
    return build(tmp_path / "i", tiny_model("all_to_all"))


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
    assert (explained.router, explained.codec) == ("centroid", "residual4")
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
    with pytest.raises(UsageError, match="go with the router centroid"):
        build(tmp_path / "b", model, "int8", "centroid")
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
