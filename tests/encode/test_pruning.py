"""Limit on the postings of a document under one key."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import citadel
from citadel.encode.config import ModelConfig
from citadel.encode.encoder import Encoder
from citadel.encode.pruning import best_of_keys, taken, with_lengths, without_blanks
from citadel.encode.tokenizer import Encoding
from citadel.errors import InputError
from citadel.explain import explain_text
from citadel.types import RoutedTokens
from tests.support.models import ModelFolder

TEXT = "rome and rome and the history of rome"
ROWS = st.lists(st.tuples(st.integers(0, 4), st.sampled_from([0.5, 1.0, 1.5, 2.0])), max_size=30)


def routed(rows: list[tuple[int, float]]) -> RoutedTokens:
    keys, weights = np.array([key for key, _ in rows], np.uint32), np.array([w for _, w in rows], np.float32)
    return RoutedTokens(keys, weights, tokens=np.arange(len(rows), dtype=np.uint32))


@given(ROWS, st.integers(1, 3))
def test_best_of_keys_keeps_the_largest_weights(rows: list[tuple[int, float]], limit: int) -> None:
    kept = best_of_keys(routed(rows), limit)
    for position, (key, weight) in enumerate(rows):
        before = [
            n
            for n, (other, w) in enumerate(rows)
            if other == key and (w > weight or (w == weight and n < position))
        ]
        assert kept[position] == (len(before) < limit)


@given(ROWS, st.sampled_from([0.0, 0.7, 1.2]))
def test_pruning_commutes_with_tau(rows: list[tuple[int, float]], tau: float) -> None:
    text = routed(rows)
    first = taken(text, text.weights > tau)
    first = taken(first, best_of_keys(first, 1))
    then = taken(text, best_of_keys(text, 1))
    then = taken(then, then.weights > tau)
    for one, other in ((first.keys, then.keys), (first.tokens, then.tokens)):
        np.testing.assert_array_equal(one, other)


@pytest.fixture
def one_posting(tiny_model: ModelFolder, tmp_path: Path) -> Path:
    """The tiny model with one posting per document and key."""
    folder = Path(shutil.copytree(tiny_model(), tmp_path / "model"))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"key_postings": 1}))
    return folder


def test_only_documents_are_pruned(one_posting: Path, tiny_model: ModelFolder) -> None:
    [all_rows], [rows] = (
        Encoder(folder, tau=0.0).encode_documents([TEXT]) for folder in (tiny_model(), one_posting)
    )
    assert len(set(all_rows.keys.tolist())) < len(all_rows)
    assert sorted(rows.keys.tolist()) == sorted(set(all_rows.keys.tolist()))
    queries = [Encoder(folder).encode_query(TEXT).keys.tolist() for folder in (tiny_model(), one_posting)]
    assert queries[0] == queries[1]


def test_explanation_marks_pruned_keys(one_posting: Path) -> None:
    encoder = Encoder(one_posting)
    explanation, [rows] = (
        explain_text(encoder, TEXT, tau=0.0),
        Encoder(one_posting, tau=0.0).encode_documents([TEXT]),
    )
    keys = [key for token in explanation.tokens for key in token.keys]
    assert [key.key for key in keys if key.kept] == rows.keys.tolist()
    assert all(key.kept != key.repeated for key in keys) and any(key.repeated for key in keys)


def test_explained_score_equals_the_hit(one_posting: Path, tmp_path: Path) -> None:
    with citadel.Index.create(tmp_path / "index", model=one_posting) as index:
        index.add([{"id": "d1", "text": TEXT}])
        searcher = index.commit().searcher()
        [hit] = searcher.search("history of rome")
        assert searcher.explain("history of rome", "d1").score == hit.score


def test_key_postings_needs_the_dynamic_router() -> None:
    with pytest.raises(InputError, match="key_postings must be 0 or more"):
        ModelConfig(router="static", key_postings=1)


def test_document_without_tokens_never_matches() -> None:
    blank = Encoding(np.array([101, 102]), ((0, 0), (0, 0)), np.array([False, True]))
    text = Encoding(np.array([101, 7, 102]), ((0, 0), (0, 4), (0, 0)), np.array([False, True, True]))
    row = RoutedTokens(np.array([9], np.uint32), np.ones(1, np.float32), semantic=np.ones(4, np.float32))
    first, second = without_blanks([blank, text], [row, row])
    assert (len(first), first.semantic.tolist()) == (0, [0.0] * 4)  # type: ignore[union-attr]
    assert second is row
    assert [query.is_blank for query in with_lengths([blank, text], [row, row])] == [True, False]
