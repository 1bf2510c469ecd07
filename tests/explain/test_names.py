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


def words(explanation: Explanation, positions: tuple[int, ...]) -> list[str]:
    """The text of the document's tokens at these positions."""
    fields = {"title": explanation.title, "text": explanation.text}
    tokens = [token for token in explanation.document_tokens if token.position in positions]
    return [
        fields[token.field][token.start : token.end] if token.field else str(token.token) for token in tokens
    ]


# ---- bm25 --------------------------------------------------------------------------------------------------


def test_bm25_matches_by_hand(tmp_path: Path) -> None:
    explanation = build(tmp_path / "index").explain("Who proposed the RELATIVITY of relativity", "d1")
    assert [token.token for token in explanation.query_tokens] == ["who", "propos", "rel", "rel"]
    assert [(match.name, match.query_tokens, match.is_matched) for match in explanation.matches] == [
        ("who", (0,), False),
        ("propos", (1,), True),
        ("rel", (2, 3), True),
    ]
    [rel] = explanation.matches[2].postings
    assert rel.count == 2 and words(explanation, rel.document_tokens) == ["Relativity", "relativity"]
    assert (explanation.router, explanation.codec, explanation.semantic, explanation.cut) == (
        "bm25",
        None,
        None,
        False,
    )


def test_bm25_score_by_hand(tmp_path: Path) -> None:
    """idf = ln(1 + ½ / 1½), tf part = 1 / (1 + 0.9 · (0.6 + 0.4 · 1)) where dl = avgdl."""
    index = citadel.Index.create(Quick(tmp_path / "index"), analyser="plain")
    index.add([{"id": "d1", "text": "fox"}])
    [match] = index.commit().searcher().explain("fox", "d1").matches
    assert match.weight == pytest.approx(np.log(4 / 3), rel=1e-6)
    assert match.postings[0].weight == pytest.approx(1 / 1.9, rel=1e-6)
    assert match.gain == pytest.approx(np.log(4 / 3) / 1.9, rel=1e-6) and match.share == pytest.approx(1)


# ---- models ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("router", ROUTERS)
@pytest.mark.parametrize("codec", ["int8", "fp16"])
def test_posting_products_belong_to_their_tokens(
    router: str, codec: str, tiny_model: ModelFolder, tmp_path: Path
) -> None:
    """Each product is that of the vectors of the named query and document token."""
    searcher = build(tmp_path / "index", model=tiny_model(router), codec=codec)
    encoder = Encoder(tiny_model(router))
    for query in QUERIES:
        hits = searcher.search(query)
        assert len(hits) >= 2
        for hit in hits:
            explanation = searcher.explain(query, hit.id)
            assert explanation.score == hit.score
            check_products(encoder, explanation, query)


def check_products(encoder: Encoder, explanation: Explanation, query: str) -> None:
    query_rows, document_rows = (
        encoder.encode_query(query),
        encoder.encode_documents([f"{explanation.title} {explanation.text}".strip()])[0],
    )
    [text] = encoder.tokenizer.documents([f"{explanation.title} {explanation.text}".strip()])
    [encoded_query] = encoder.tokenizer.queries([query])
    if query_rows.vectors is None or document_rows.vectors is None:
        return
    assert query_rows.tokens is not None and document_rows.tokens is not None
    query_positions = np.flatnonzero(encoded_query.routed)[query_rows.tokens]
    document_positions = np.flatnonzero(text.routed)[document_rows.tokens]
    for match in explanation.matches:
        [row] = np.flatnonzero((query_positions == match.query_tokens[0]) & (query_rows.keys == match.key))
        for posting in match.postings:
            [position] = posting.document_tokens
            [column] = np.flatnonzero((document_positions == position) & (document_rows.keys == match.key))
            product = (
                query_rows.weights[row]
                * query_rows.vectors[row]
                @ (document_rows.weights[column] * document_rows.vectors[column])
            )
            assert posting.product == pytest.approx(product, rel=0.05, abs=0.02)
            assert (
                document_rows.weights[column] - 1e-6 <= posting.weight <= document_rows.weights[column] + 0.02
            )


def test_offsets_of_document_and_special_tokens(tiny_model: ModelFolder, tmp_path: Path) -> None:
    """With all_to_all every token matches, so all of them are named."""
    explanation = build(tmp_path / "index", model=tiny_model("all_to_all")).explain("relativity", "d2")
    names = [(token.token, token.field, token.start, token.end) for token in explanation.document_tokens]
    assert names == [
        ("darwin", "text", 2, 8),
        ("proposed", "text", 9, 17),
        ("evolution", "text", 18, 27),
        ("[SEP]", None, None, None),
    ]
    assert {match.name for match in explanation.matches} == {"any"}


def test_tokens_name_title_or_text(tiny_model: ModelFolder, tmp_path: Path) -> None:
    explanation = build(tmp_path / "index", model=tiny_model("static")).explain("relativity", "d1")
    [match] = [match for match in explanation.matches if match.name == "relativity"]
    positions = sorted(position for posting in match.postings for position in posting.document_tokens)
    tokens = {token.position: token for token in explanation.document_tokens}
    assert [(tokens[position].field, tokens[position].start) for position in positions] == [
        ("title", 0),
        ("text", 18),
    ]


def test_tokens_are_unnamed_if_the_model_routes_differently(
    tiny_model: ModelFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on another machine: a different number of postings leaves tokens unnamed, not the score."""
    searcher = build(tmp_path / "index", model=tiny_model("static"))
    before = searcher.explain("proposed relativity", "d1")
    route_documents = Encoder.route_documents
    monkeypatch.setattr(
        Encoder,
        "route_documents",
        lambda self, texts: [_without_first_row(one) for one in route_documents(self, texts)],
    )
    after = searcher.explain("proposed relativity", "d1")
    assert [match.gain for match in after.matches] == [match.gain for match in before.matches]
    assert after.score == before.score
    named = {match.name: [posting.document_tokens for posting in match.postings] for match in after.matches}
    assert named["relativity"] == [(), ()]  # one of two rows was dropped
    assert len(named["proposed"][0]) == 1


def _without_first_row(routed: RoutedTokens) -> RoutedTokens:
    kept = np.arange(len(routed)) > 0
    assert routed.tokens is not None and routed.vectors is not None
    return RoutedTokens(
        routed.keys[kept], routed.weights[kept], routed.vectors[kept], routed.semantic, routed.tokens[kept]
    )


def test_cut_is_set_for_long_documents(tiny_model: ModelFolder, tmp_path: Path) -> None:
    searcher = build(tmp_path / "index", model=tiny_model("static"), long="cut")
    assert searcher.explain("who", "d4").cut and not searcher.explain("who", "d1").cut


def test_alternatives_are_the_next_best_keys(tiny_model: ModelFolder, tmp_path: Path) -> None:
    """Used and unused keys of a token are the model's best L, each with its own product."""
    searcher = build(tmp_path / "index", model=tiny_model(), tau=0.0)
    encoder = Encoder(tiny_model())
    explanation = searcher.explain(QUERIES[0], "d1")
    [text] = encoder.tokenizer.queries([QUERIES[0]])
    [wide] = encoder.route([text], encoder.config.document_keys, 0.0)
    assert wide.tokens is not None and wide.vectors is not None
    positions = np.flatnonzero(text.routed)[wide.tokens]
    for token in explanation.query_tokens:
        rows = np.flatnonzero(positions == token.position)
        used = [match.key for match in explanation.matches if match.query_tokens == (token.position,)]
        assert [*used, *(one.key for one in token.alternatives)] == wide.keys[rows].tolist()
        for row, one in zip(rows[1:], token.alternatives, strict=True):
            alone = searcher.explain_vectors("d1", [one.key], [one.weight], wide.vectors[row : row + 1])
            [match] = alone.matches
            assert one.product == (match.postings[0].product if match.postings else None)
    assert any(one.product is not None for token in explanation.query_tokens for one in token.alternatives)


def test_raised_tau_keeps_a_subset_of_postings(tiny_model: ModelFolder, tmp_path: Path) -> None:
    searcher = build(tmp_path / "index", model=tiny_model(), tau=0.0)
    low, high = (searcher.explain(QUERIES[0], "d1", tau=tau) for tau in (None, 1.5))
    for before, after in zip(low.matches, high.matches, strict=True):
        assert set(after.postings) <= set(before.postings)
    count = [sum(len(match.postings) for match in explanation.matches) for explanation in (low, high)]
    assert count[0] > count[1] > 0


# ---- query vectors -----------------------------------------------------------------------------------------


def test_vector_query_has_keys_without_names(tmp_path: Path) -> None:
    index = citadel.Index.create(Quick(tmp_path / "index"), fields={"lexical": 2}, fingerprint="by hand")
    document = {
        "id": "d1",
        "text": "a b",
        "keys": [7, 7, 9],
        "weights": [1, 2, 1],
        "vectors": [[1, 0], [1, 0], [0, 1]],
    }
    index.add_vectors([document])
    explanation = (
        index.commit().searcher().explain_vectors("d1", [9, 7, 3], [1, 1, 1], [[0, -1], [3, 0], [1, 1]])
    )
    assert [token.position for token in explanation.query_tokens] == [0, 1, 2]
    assert [(match.key, match.name, match.query_tokens) for match in explanation.matches] == [
        (9, None, (0,)),
        (7, None, (1,)),
        (3, None, (2,)),
    ]
    negative, matched, unmatched = explanation.matches
    assert negative.gain == 0 and negative.postings[0].product == pytest.approx(-1, rel=0.01)
    assert [posting.product for posting in matched.postings] == pytest.approx([6, 3], rel=0.01)
    assert (
        not unmatched.is_matched and explanation.document_tokens == () and explanation.score == matched.gain
    )


# ---- invalid input -----------------------------------------------------------------------------------------


def test_invalid_arguments_are_rejected(tmp_path: Path) -> None:
    searcher = build(tmp_path / "index")
    with pytest.raises(citadel.InputError, match="no document 'd9'"):
        searcher.explain("who", "d9")
    with pytest.raises(citadel.InputError, match="no document"):
        searcher.explain("who", "\udcff")
    with pytest.raises(citadel.UsageError, match="a query must be a string"):
        searcher.explain(7, "d1")  # type: ignore[arg-type]
    with pytest.raises(citadel.UsageError, match="id must be a string"):
        searcher.explain("who", 7)  # type: ignore[arg-type]
    with pytest.raises(citadel.UsageError, match="dynamic"):
        searcher.explain("who", "d1", tau=0.5)
    with pytest.raises(citadel.UsageError, match="text query"):
        searcher.explain_vectors("d1", [1], [1], [[1]])


def test_text_needs_a_model(tmp_path: Path) -> None:
    index = citadel.Index.create(Quick(tmp_path / "index"), fields={"semantic": 2}, fingerprint="by hand")
    index.add_vectors([{"id": "d1", "semantic": [1, 0]}])
    searcher = index.commit().searcher()
    for explain in (lambda: searcher.explain("who", "d1"), lambda: searcher.explain_text("who")):
        with pytest.raises(citadel.UsageError, match="built from vectors"):
            explain()


def test_deleted_document_is_unknown(tmp_path: Path) -> None:
    index = citadel.Index.create(Quick(tmp_path / "index"))
    index.add(DOCUMENTS)
    index.commit().delete(["d1"])
    with pytest.raises(citadel.InputError, match="no document 'd1'"):
        index.commit().searcher().explain("relativity", "d1")
