"""Tokenising for training gives the same ids as for search."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("tokenizers", reason="tokenizers is not installed: `pip install citadel-ir[train]`")

from citadel.encode.tokenizer import Tokenizer
from citadel.train.tokens import load_tokenizer, tokenize
from tests.support.models import VOCABULARY, tiny_config, tiny_tokenizer

TEXTS = ["Newton gravity.", "", "a the of rome", "[SEP]"]


def test_training_and_search_use_the_same_tokens(tmp_path: Path) -> None:
    """The tokenizer's file has no post-processor that adds [CLS] and [SEP]."""
    tiny_tokenizer().save(str(tmp_path / "tokenizer.json"))
    library = load_tokenizer(tmp_path)
    assert library.post_processor is None
    result = tokenize(TEXTS, library, length=5)
    expected = Tokenizer(tmp_path, tiny_config(document_length=5)).documents(TEXTS)
    assert [result[row].tolist() for row in range(len(TEXTS))] == [text.ids.tolist() for text in expected]
    assert [VOCABULARY[id] for id in result[2].tolist()] == ["[CLS]", "a", "the", "of", "[SEP]"]
