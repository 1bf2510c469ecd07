"""The tokens of an explanation: of the query, of the document, and alternative keys."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import citadel
from citadel.encode.encoder import Encoder
from citadel.explain import Explanation
from citadel.search.searcher import Searcher
from citadel.types import RoutedTokens
from tests.index.quick import Quick
from tests.support.models import ROUTERS, ModelFolder

DOCUMENTS: list[dict[str, Any]] = [
    {"id": "d1", "title": "Relativity", "text": "einstein proposed relativity in physics"},
    {"id": "d2", "text": "  darwin proposed evolution"},
    {"id": "d3", "title": "rome", "text": ""},
    {"id": "d4", "text": "who " * 40},
]
QUERIES = ["who proposed relativity", "rome in physics"]


def build(path: Path, **options: Any) -> Searcher:
    index = citadel.Index.create(Quick(path), **options)
    index.add(DOCUMENTS)
    return index.commit().searcher()


def words(found: Explanation, places: tuple[int, ...]) -> list[str]:
    """The text of the document's tokens at these positions."""
    fields = {"title": found.title, "text": found.text}
    tokens = [token for token in found.document_tokens if token.place in places]
    return [fields[token.field][token.start : token.end] if token.field else str(token.token) for token in tokens]


# ---- bm25 ------------------------------------------------------------------------------------------------------------


def test_terms_by_hand(tmp_path: Path) -> None:
    found = build(tmp_path / "index").explain("Who proposed the RELATIVITY of relativity", "d1")
    assert [token.token for token in found.query_tokens] == ["who", "propos", "rel", "rel"]
    assert [(match.name, match.query_tokens, match.met) for match in found.matches] == [
        ("who", (0,), False),
        ("propos", (1,), True),
        ("rel", (2, 3), True),
    ]
    [rel] = found.matches[2].postings
    assert rel.count == 2 and words(found, rel.document_tokens) == ["Relativity", "relativity"]
    assert (found.router, found.codec, found.semantic, found.cut) == ("bm25", None, None, False)


def test_one_document_and_one_term(tmp_path: Path) -> None:
    """idf = ln(1 + ½ / 1½), tf part = 1 / (1 + 0.9 · (0.6 + 0.4 · 1)) where dl = avgdl."""
    index = citadel.Index.create(Quick(tmp_path / "index"), analyser="plain")
    index.add([{"id": "d1", "text": "fox"}])
    [match] = index.commit().searcher().explain("fox", "d1").matches
    assert match.weight == pytest.approx(np.log(4 / 3), rel=1e-6)
    assert match.postings[0].weight == pytest.approx(1 / 1.9, rel=1e-6)
    assert match.gain == pytest.approx(np.log(4 / 3) / 1.9, rel=1e-6) and match.share == pytest.approx(1)


# ---- models ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("router", ROUTERS)
@pytest.mark.parametrize("codec", ["int8", "fp16"])
def test_a_model_names_what_it_stored(router: str, codec: str, tiny_model: ModelFolder, tmp_path: Path) -> None:
    """The named token is the one whose own vector gives that product, and every posting has its token."""
    searcher = build(tmp_path / "index", model=tiny_model(router), codec=codec)
    encoder = Encoder(tiny_model(router))
    for query in QUERIES:
        hits = searcher.search(query)
        assert len(hits) >= 2
        for hit in hits:
            found = searcher.explain(query, hit.id)
            assert found.score == hit.score
            check_products(encoder, found, query)


def check_products(encoder: Encoder, found: Explanation, query: str) -> None:
    asked, held = encoder.encode_query(query), encoder.encode_documents([f"{found.title} {found.text}".strip()])[0]
    [text] = encoder.tokenizer.documents([f"{found.title} {found.text}".strip()])
    [question] = encoder.tokenizer.queries([query])
    if asked.vectors is None or held.vectors is None:
        return
    assert asked.tokens is not None and held.tokens is not None
    asked_places = np.flatnonzero(question.routed)[asked.tokens]
    held_places = np.flatnonzero(text.routed)[held.tokens]
    for match in found.matches:
        [row] = np.flatnonzero((asked_places == match.query_tokens[0]) & (asked.keys == match.key))
        for posting in match.postings:
            [place] = posting.document_tokens
            [column] = np.flatnonzero((held_places == place) & (held.keys == match.key))
            product = asked.weights[row] * asked.vectors[row] @ (held.weights[column] * held.vectors[column])
            assert posting.product == pytest.approx(product, rel=0.05, abs=0.02)
            assert held.weights[column] - 1e-6 <= posting.weight <= held.weights[column] + 0.02


def test_offsets_and_special_tokens(tiny_model: ModelFolder, tmp_path: Path) -> None:
    """With all_to_all every token matches, so all of them are named."""
    found = build(tmp_path / "index", model=tiny_model("all_to_all")).explain("relativity", "d2")
    names = [(token.token, token.field, token.start, token.end) for token in found.document_tokens]
    assert names == [
        ("darwin", "text", 2, 8),
        ("proposed", "text", 9, 17),
        ("evolution", "text", 18, 27),
        ("[SEP]", None, None, None),
    ]
    assert {match.name for match in found.matches} == {"any"}


def test_title_and_text(tiny_model: ModelFolder, tmp_path: Path) -> None:
    found = build(tmp_path / "index", model=tiny_model("static")).explain("relativity", "d1")
    [match] = [match for match in found.matches if match.name == "relativity"]
    places = sorted(place for posting in match.postings for place in posting.document_tokens)
    tokens = {token.place: token for token in found.document_tokens}
    assert [(tokens[place].field, tokens[place].start) for place in places] == [("title", 0), ("text", 18)]


def test_a_model_that_reads_otherwise_here(
    tiny_model: ModelFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on another machine: if the number of postings differs, no token is named and the score is the same."""
    searcher = build(tmp_path / "index", model=tiny_model("static"))
    before = searcher.explain("proposed relativity", "d1")
    cut = Encoder.route_documents
    monkeypatch.setattr(Encoder, "route_documents", lambda self, texts: [_without(one) for one in cut(self, texts)])
    after = searcher.explain("proposed relativity", "d1")
    assert [match.gain for match in after.matches] == [match.gain for match in before.matches]
    assert after.score == before.score
    named = {match.name: [posting.document_tokens for posting in match.postings] for match in after.matches}
    assert named["relativity"] == [(), ()] and len(named["proposed"][0]) == 1  # one of the two was dropped here


def _without(routed: RoutedTokens) -> RoutedTokens:
    """All rows but the first."""
    kept = np.arange(len(routed)) > 0
    assert routed.tokens is not None and routed.vectors is not None
    return RoutedTokens(
        routed.keys[kept], routed.weights[kept], routed.vectors[kept], routed.semantic, routed.tokens[kept]
    )


def test_a_document_that_was_cut(tiny_model: ModelFolder, tmp_path: Path) -> None:
    searcher = build(tmp_path / "index", model=tiny_model("static"))
    assert searcher.explain("who", "d4").cut and not searcher.explain("who", "d1").cut


def test_alternatives_are_what_a_wider_router_would_have_met(tiny_model: ModelFolder, tmp_path: Path) -> None:
    """Used and unused keys of a token are together the model's best L, and products belong to their keys."""
    searcher = build(tmp_path / "index", model=tiny_model(), tau=0.0)
    encoder = Encoder(tiny_model())
    found = searcher.explain(QUERIES[0], "d1")
    [text] = encoder.tokenizer.queries([QUERIES[0]])
    [wide] = encoder.route([text], encoder.config.document_keys, 0.0)
    assert wide.tokens is not None and wide.vectors is not None
    places = np.flatnonzero(text.routed)[wide.tokens]
    for token in found.query_tokens:
        rows = np.flatnonzero(places == token.place)
        taken = [match.key for match in found.matches if match.query_tokens == (token.place,)]
        assert [*taken, *(one.key for one in token.alternatives)] == wide.keys[rows].tolist()
        for row, one in zip(rows[1:], token.alternatives, strict=True):
            alone = searcher.explain_vectors("d1", [one.key], [one.weight], wide.vectors[row : row + 1])
            [match] = alone.matches
            assert one.product == (match.postings[0].product if match.postings else None)
    assert any(one.product is not None for token in found.query_tokens for one in token.alternatives)


def test_a_raised_tau_still_names_the_right_tokens(tiny_model: ModelFolder, tmp_path: Path) -> None:
    searcher = build(tmp_path / "index", model=tiny_model(), tau=0.0)
    low, high = (searcher.explain(QUERIES[0], "d1", tau=tau) for tau in (None, 1.5))
    for before, after in zip(low.matches, high.matches, strict=True):
        assert set(after.postings) <= set(before.postings)
    count = [sum(len(match.postings) for match in found.matches) for found in (low, high)]
    assert count[0] > count[1] > 0


# ---- given vectors ---------------------------------------------------------------------------------------------------


def test_given_vectors_have_numbers_only(tmp_path: Path) -> None:
    index = citadel.Index.create(Quick(tmp_path / "index"), fields={"lexical": 2}, fingerprint="by hand")
    held = {"id": "d1", "text": "a b", "keys": [7, 7, 9], "weights": [1, 2, 1], "vectors": [[1, 0], [1, 0], [0, 1]]}
    index.add_vectors([held])
    found = index.commit().searcher().explain_vectors("d1", [9, 7, 3], [1, 1, 1], [[0, -1], [3, 0], [1, 1]])
    assert [token.place for token in found.query_tokens] == [0, 1, 2]
    assert [(match.key, match.name, match.query_tokens) for match in found.matches] == [
        (9, None, (0,)),
        (7, None, (1,)),
        (3, None, (2,)),
    ]
    negative, met, unmet = found.matches
    assert negative.gain == 0 and negative.postings[0].product == pytest.approx(-1, rel=0.01)
    assert [posting.product for posting in met.postings] == pytest.approx([6, 3], rel=0.01)
    assert not unmet.met and found.document_tokens == () and found.score == met.gain


# ---- what is refused -------------------------------------------------------------------------------------------------


def test_what_is_refused(tmp_path: Path) -> None:
    searcher = build(tmp_path / "index")
    with pytest.raises(citadel.InputError, match="no document 'd9'"):
        searcher.explain("who", "d9")
    with pytest.raises(citadel.InputError, match="no document"):
        searcher.explain("who", "\udcff")
    with pytest.raises(citadel.UsageError, match="a query is a text"):
        searcher.explain(7, "d1")  # type: ignore[arg-type]
    with pytest.raises(citadel.UsageError, match="id is a text"):
        searcher.explain("who", 7)  # type: ignore[arg-type]
    with pytest.raises(citadel.UsageError, match="dynamic"):
        searcher.explain("who", "d1", tau=0.5)
    with pytest.raises(citadel.UsageError, match="text query"):
        searcher.explain_vectors("d1", [1], [1], [[1]])


def test_text_for_given_vectors(tmp_path: Path) -> None:
    index = citadel.Index.create(Quick(tmp_path / "index"), fields={"semantic": 2}, fingerprint="by hand")
    index.add_vectors([{"id": "d1", "semantic": [1, 0]}])
    searcher = index.commit().searcher()
    for ask in (lambda: searcher.explain("who", "d1"), lambda: searcher.explain_text("who")):
        with pytest.raises(citadel.UsageError, match="given vectors"):
            ask()


def test_a_deleted_document(tmp_path: Path) -> None:
    index = citadel.Index.create(Quick(tmp_path / "index"))
    index.add(DOCUMENTS)
    index.commit().delete(["d1"])
    with pytest.raises(citadel.InputError, match="no document 'd1'"):
        index.commit().searcher().explain("relativity", "d1")
