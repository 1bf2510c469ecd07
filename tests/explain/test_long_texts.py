"""Explanations of long documents analyse only a part, but have the score of the whole."""

from __future__ import annotations

import contextlib
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

import citadel
from citadel.cli.support.render_hits import _body
from citadel.encode.encoder import Encoder
from citadel.explain import tokens
from citadel.text import snippet
from citadel.text.analyser import fold, get_analyser
from citadel.types import Hit

FILLER = "lorem ipsum dolor sit amet consectetur "
LIMIT = snippet.MAX_ANALYSED


@pytest.fixture
def searcher(tmp_path: Path) -> citadel.Searcher:
    index = citadel.Index.create(tmp_path / "i", model="bm25")
    index.add(
        [
            {"id": "end", "text": FILLER * 30_000 + "Einstein proposed relativity."},
            {"id": "often", "text": "relativity " * 100_000},
            {"id": "title", "title": "relativity " * 20_000, "text": "Einstein"},
            {"id": "short", "title": "Physics", "text": "Einstein proposed relativity."},
        ]
    )
    return index.commit().searcher()


def test_long_document_is_analysed_around_the_matches(searcher: citadel.Searcher) -> None:
    explanation = searcher.explain("who proposed relativity", "end")
    whole = searcher.snapshot.get("end")
    assert whole is not None
    assert (
        explanation.text_cut
        and explanation.text == whole.text[explanation.text_start :]
        and len(explanation.text) <= LIMIT
    )
    assert [explanation.text[span.start : span.end] for span in explanation.spans()] == [
        "proposed",
        "relativity",
    ]
    assert explanation.snippet.text.endswith("proposed relativity.")
    scores = {hit.id: hit.score for hit in searcher.search("who proposed relativity")}
    assert explanation.score == scores["end"]
    value = explanation.to_json()
    assert (value["text_start"], value["text_cut"]) == (explanation.text_start, True)


def test_short_document_is_not_cut(searcher: citadel.Searcher) -> None:
    explanation = searcher.explain("who proposed relativity", "short")
    assert (explanation.text, explanation.text_start, explanation.text_cut) == (
        "Einstein proposed relativity.",
        0,
        False,
    )


@pytest.mark.parametrize("id", ["often", "title"])
def test_explanation_size_is_bounded(searcher: citadel.Searcher, id: str) -> None:
    explanation = searcher.explain("relativity", id)
    assert explanation.text_cut and len(explanation.text) <= LIMIT and len(explanation.title) <= LIMIT
    assert 0 < len(explanation.document_tokens) <= LIMIT // len("relativity")
    assert explanation.matches[0].postings[0].count == (100_000 if id == "often" else 20_000)


def test_text_explanation_size_is_bounded(searcher: citadel.Searcher) -> None:
    explanation = searcher.explain_text("relativity " * 100_000)
    assert explanation.cut and len(explanation.text) == LIMIT and len(explanation.tokens) <= LIMIT // 10
    assert not searcher.explain_text("relativity").cut


def test_cancelled_explanation_stops_within_the_document(
    searcher: citadel.Searcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    cancel, pieces = citadel.CancelFlag(), 0

    def fold_and_cancel(text: str) -> str:
        nonlocal pieces
        pieces += 1
        cancel.set()
        return fold(text)

    monkeypatch.setattr(snippet, "fold", fold_and_cancel)
    with pytest.raises(citadel.Cancelled):
        searcher.explain("einstein", "end", cancel=cancel)
    assert pieces == 1
    with pytest.raises(citadel.Cancelled):
        searcher.explain("einstein", "short", cancel=cancel)


@pytest.mark.parametrize("text", ["x" * 1_000_000, FILLER * 30_000])
def test_model_tokenises_only_the_beginning(
    tiny_model: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    """Also if the text is one very long word."""
    index = citadel.Index.create(tmp_path / "m", model=tiny_model(), long="cut")
    with pytest.warns(citadel.TruncatedDocumentsWarning) if " " in text else contextlib.nullcontext():
        index.add([{"id": "d1", "text": text}])
    searcher = index.commit().searcher()
    lengths: list[int] = []
    model_document = tokens.model_document

    def measured(encoder: Encoder, document: citadel.Document) -> tokens.DocumentTokens:
        lengths.append(len(document.encoded_text))
        return model_document(encoder, document)

    monkeypatch.setattr("citadel.explain.match.model_document", measured)
    explanation = searcher.explain("relativity", "d1")
    assert lengths == [LIMIT] and explanation.text == text[:LIMIT] and explanation.text_cut
    assert len(searcher.explain_text(text).text) == LIMIT


def test_long_hit_is_rendered_in_bounded_memory() -> None:
    english = get_analyser("english")
    document = citadel.Document("d1", FILLER * 200_000 + "Einstein proposed\n relativity.")
    hit = Hit("d1", 1.0, 1, lambda _: document)
    english.terms(FILLER + "Einstein proposed relativity")  # fill the analyser's cache before measuring
    tracemalloc.start()
    try:
        body = _body(hit, "proposed relativity", english)
        plain = _body(hit, None, english)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert body.plain.startswith("… ") and body.plain.endswith("Einstein proposed relativity.")
    assert plain.plain.endswith(" …") and len(plain.plain) < 250
    assert peak < 64_000_000


def test_tau_beyond_fp32_prunes_everything_without_a_warning(
    tiny_model: Callable[..., Path], tmp_path: Path
) -> None:
    index = citadel.Index.create(tmp_path / "m", model=tiny_model())
    tokens = index.searcher().explain_text("relativity", tau=1e300).tokens
    assert tokens and all(token.pruned for token in tokens)
