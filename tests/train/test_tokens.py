"""Texts to ids for training: the same ids that search sees."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("tokenizers", reason="tokenizers is not installed: `pip install citadel-ir[train]`")

from citadel.encode.tokenizer import Tokenizer
from citadel.train.tokens import load_tokenizer, tokenize
from tests.support.models import VOCABULARY, tiny_config, tiny_tokenizer

TEXTS = ["Newton gravity.", "", "a the of rome", "[SEP]"]


def test_training_and_search_read_the_same_tokens(tmp_path: Path) -> None:
    """Also where the tokenizer's file says nothing of [CLS] and [SEP], as the tiny one's does not."""
    tiny_tokenizer().save(str(tmp_path / "tokenizer.json"))
    library = load_tokenizer(tmp_path)
    assert library.post_processor is None
    found = tokenize(TEXTS, library, length=5)
    expected = Tokenizer(tmp_path, tiny_config(document_length=5)).documents(TEXTS)
    assert [found[row].tolist() for row in range(len(TEXTS))] == [text.ids.tolist() for text in expected]
    assert [VOCABULARY[id] for id in found[2].tolist()] == ["[CLS]", "a", "the", "of", "[SEP]"]
