"""Limits on the groups of documents that are encoded together."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from citadel.encode import batches
from citadel.encode.batches import groups
from citadel.types import Document


def sizes(texts: list[str], letters: int = 1000) -> list[int]:
    documents: Iterator[Document] = (Document(str(number), text) for number, text in enumerate(texts))
    return [len(group) for group in groups(documents, letters)]


def test_group_size_is_limited_by_documents(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "DOCUMENTS_PER_GROUP", 2)
    assert sizes(["a"] * 5) == [2, 2, 1]


def test_group_size_is_limited_by_letters() -> None:
    assert sizes(["a" * 600] * 5) == [2, 2, 1]


def test_tokenised_letters_per_group_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model reads little of a book, but all of it is tokenised first."""
    monkeypatch.setattr(batches, "_LETTERS_PER_DOCUMENT", 10)
    monkeypatch.setattr(batches, "LETTERS_TOKENISED", 500)
    assert sizes(["a" * 300] * 5) == [2, 2, 1]
