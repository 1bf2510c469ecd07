"""Long texts are split at sentence ends into overlapping passages that the model can read."""

from __future__ import annotations

import itertools
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from citadel.encode import passages as module
from citadel.encode.config import load_config
from citadel.encode.passages import PassageSplitter
from citadel.encode.tokenizer import Tokenizer
from citadel.settings import LongDocuments
from tests.support.models import tiny_config, write_checkpoint

SENTENCES = ["einstein proposed gravity. ", "who? ", "the history of rome!\n\n", "in physics, ", "abc "]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder: Path = write_checkpoint(tmp_path_factory.mktemp("model"), tiny_config())
    return Tokenizer(folder, load_config(folder))


def splitter(tokenizer: Tokenizer, tokens: int = 12, overlap: int = 3) -> PassageSplitter:
    return PassageSplitter(tokenizer, LongDocuments("chunk", tokens, overlap))


@given(st.lists(st.sampled_from(SENTENCES), min_size=1, max_size=40), st.integers(8, 20), st.integers(0, 4))
def test_passages_cover_the_text_within_the_limit(
    tokenizer: Tokenizer, parts: list[str], tokens: int, overlap: int
) -> None:
    text = "".join(parts)
    spans = list(splitter(tokenizer, tokens, overlap).spans("", text))
    words = tokenizer.offsets(text)
    starts, ends = (np.array(side) for side in zip(*spans, strict=True))
    covered = [any(start <= a and b <= end for start, end in spans) for a, b in zip(*words[:2], strict=True)]
    assert all(covered)
    assert (np.diff(starts) > 0).all() and (np.diff(ends) > 0).all()
    for start, end in spans:
        assert 0 < len(tokenizer.offsets(text[start:end]).starts) <= tokens
    for (_, end), (start, _) in itertools.pairwise(spans):
        shared = tokenizer.offsets(text[start:end]).starts if start < end else ()
        assert len(shared) <= overlap


def test_passages_end_at_sentences(tokenizer: Tokenizer) -> None:
    text = "einstein proposed gravity. " * 6
    for start, end in splitter(tokenizer, 10, 4).spans("", text):
        assert text[start:].startswith("einstein") and text[:end].endswith(".")


def test_text_without_sentences_is_split_between_words(tokenizer: Tokenizer) -> None:
    text = "einstein history relativity " * 20
    for start, end in splitter(tokenizer).spans("", text):
        assert (start == 0 or text[start - 1] == " ") and text[end : end + 1] in ("", " ")


def test_one_endless_word_is_split_somewhere(tokenizer: Tokenizer) -> None:
    """A word of 90 letters is one unknown token; punctuation makes many tokens without white space."""
    text = "?!" * 200
    spans = list(splitter(tokenizer).spans("", text))
    assert len(spans) > 30 and spans[0][0] == 0 and spans[-1][1] == len(text)


def test_each_passage_begins_with_the_title(tokenizer: Tokenizer) -> None:
    split = splitter(tokenizer, 12, 0)
    text = "einstein proposed gravity. " * 6
    spans = list(split.spans("history of rome", text))
    for span in spans:
        read = split.text("history of rome", text, span)
        assert read.startswith("history of rome einstein")
        assert len(tokenizer.offsets(read).starts) <= 12
    assert len(spans) > len(list(split.spans("", text)))


def test_long_title_takes_half_of_a_passage(tokenizer: Tokenizer) -> None:
    split = splitter(tokenizer, 12, 0)
    assert split.title("the " * 100) == ("the " * 6).strip()
    assert split.title("the history") == "the history"


def test_result_does_not_depend_on_the_reads(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "".join(itertools.islice(itertools.cycle(SENTENCES), 300))
    whole = list(splitter(tokenizer).spans("", text))
    monkeypatch.setattr(module, "_CHARACTERS_PER_READ", 50)
    monkeypatch.setattr(module, "_LONGEST_WORD", 20)
    assert list(splitter(tokenizer).spans("", text)) == whole


def test_a_book_needs_little_memory(tokenizer: Tokenizer) -> None:
    text = "einstein proposed gravity. " * 150_000  # 4 MB
    tracemalloc.start()
    count = sum(1 for _ in itertools.islice(splitter(tokenizer, 20, 4).spans("", text), 20_000))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert count == 20_000 and peak < 30e6


def test_text_without_tokens_has_no_passages(tokenizer: Tokenizer) -> None:
    assert list(splitter(tokenizer).spans("history", " \n ")) == []
