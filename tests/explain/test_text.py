"""Explanations of a text: its tokens, their keys, and which of them τ keeps."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import citadel
from citadel.encode.encoder import Encoder
from citadel.explain import explain_text
from tests.index.quick import Quick
from tests.support.models import ROUTERS, ModelFolder

TEXT = "einstein proposed, in Rome"


@pytest.mark.parametrize("tau", [0.0, 1.0, 1.3, 99.0])
def test_kept_keys_are_those_an_index_stores(tau: float, tiny_model: ModelFolder) -> None:
    explanation = explain_text(Encoder(tiny_model()), TEXT, tau=tau)
    [routed] = Encoder(tiny_model(), tau=tau).encode_documents([TEXT])
    kept = [(key.key, key.weight) for token in explanation.tokens for key in token.keys if key.kept]
    assert kept == list(zip(routed.keys.tolist(), routed.weights.tolist(), strict=True))
    assert all(
        key.kept == (np.float32(key.weight) > np.float32(tau))
        for token in explanation.tokens
        for key in token.keys
    )
    assert explanation.tau == tau


def test_tokens_in_order_with_all_their_keys(tiny_model: ModelFolder) -> None:
    explanation = explain_text(Encoder(tiny_model()), TEXT)
    shown = [
        TEXT[token.start : token.end] if token.start is not None else token.token
        for token in explanation.tokens
    ]
    assert shown == ["[CLS]", "einstein", "proposed", ",", "in", "Rome", "[SEP]"]
    assert [token.routed for token in explanation.tokens] == [False, *[True] * 6]
    assert explanation.tokens[0].pruned and not explanation.tokens[0].keys
    assert explanation.tau == 1.0  # the model's own
    assert {len(token.keys) for token in explanation.tokens[1:]} == {5}  # all L, kept or not


def test_high_tau_prunes_all_tokens(tiny_model: ModelFolder) -> None:
    explanation = explain_text(Encoder(tiny_model()), TEXT, tau=99.0)
    assert all(token.pruned for token in explanation.tokens)


def test_query_keeps_its_best_keys(tiny_model: ModelFolder) -> None:
    encoder = Encoder(tiny_model())
    explanation, routed = explain_text(encoder, TEXT, side="query"), encoder.encode_query(TEXT)
    assert [key.key for token in explanation.tokens for key in token.keys if key.kept] == routed.keys.tolist()
    assert max(len(token.keys) for token in explanation.tokens) > 1


@pytest.mark.parametrize("router", ROUTERS)
def test_keys_of_every_router(router: str, tiny_model: ModelFolder) -> None:
    explanation = explain_text(Encoder(tiny_model(router)), TEXT)
    keys = {key.name for token in explanation.tokens for key in token.keys}
    expected: dict[str, Any] = {
        "none": set(),
        "all_to_all": {"any"},
        "static": {"einstein", "proposed", ",", "in", "rome", "[SEP]"},
    }
    assert keys == expected.get(router, keys)
    assert (len(explanation.keys) > 0) == (router == "sparse")
    assert json.loads(json.dumps(explanation.to_json()))["router"] == router


def test_terms_have_the_idf_of_the_index(tmp_path: Path) -> None:
    index = citadel.Index.create(Quick(tmp_path / "index"))
    index.add([{"id": "d1", "text": "fox fox"}, {"id": "d2", "text": "fox dog"}])
    explanation = index.commit().searcher().explain_text("The fox, a dog")
    weights = {token.token: token.keys[0].weight for token in explanation.tokens}
    assert weights == {
        "fox": pytest.approx(np.log(1 + 0.5 / 2.5), rel=1e-6),
        "dog": pytest.approx(np.log(1 + 1.5 / 1.5), rel=1e-6),
    }
    assert [(token.start, token.end) for token in explanation.tokens] == [(4, 7), (11, 14)]


def test_invalid_arguments_are_rejected(tiny_model: ModelFolder, tmp_path: Path) -> None:
    encoder = Encoder(tiny_model())
    for bad in (-1.0, float("nan"), float("inf"), "0.9"):
        with pytest.raises(citadel.UsageError, match="τ must be a finite number"):
            explain_text(encoder, TEXT, tau=bad)  # type: ignore[arg-type]
    with pytest.raises(citadel.UsageError, match="unknown side 'both'"):
        explain_text(encoder, TEXT, side="both")
    with pytest.raises(citadel.UsageError, match="this is a query of dynamic"):
        explain_text(encoder, TEXT, side="query", tau=0.9)
    with pytest.raises(citadel.UsageError, match="must be a str, not int"):
        explain_text(encoder, 7)  # type: ignore[arg-type]
    with pytest.raises(citadel.UsageError, match="bm25 has none"):
        citadel.Index.create(Quick(tmp_path / "index")).searcher().explain_text("fox", tau=0.9)
