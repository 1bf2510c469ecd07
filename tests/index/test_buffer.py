"""The write buffer, and documents that are too large for the memory bound."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import citadel
from citadel.index.buffer import Buffer
from citadel.settings import Settings
from citadel.types import Document
from tests.index.quick import Quick

BM25 = Settings(router="bm25", fingerprint="plain", analyser="plain")
MEMORY = 1 << 20  # a document may take 8 MB even under this bound


def words(count: int, first: int = 0) -> list[str]:
    return [f"w{number}" for number in range(first, first + count)]


@pytest.mark.parametrize(
    "text", ["x " * 1_200_000, " ".join(words(60_000))], ids=["a long text", "many distinct words"]
)
def test_document_larger_than_memory_bound_is_refused(text: str, tmp_path: Path) -> None:
    index = citadel.Index.create(Quick(tmp_path), analyser="plain", memory=MEMORY)
    with pytest.raises(citadel.DocumentTooLargeError, match=r"'big' of .* million characters .*--memory"):
        index.add([{"id": "a", "text": "ant"}, {"id": "big", "text": text}])
    index.add([{"id": "b", "text": "bee w1 x"}])
    assert len(index.commit()) == 2
    assert index.searcher().search("ant bee").ids == ["a", "b"]
    assert index.stats()["lists"] == 4


def test_larger_memory_bound_accepts_document(tmp_path: Path) -> None:
    index = citadel.Index.create(Quick(tmp_path), analyser="plain", memory=128 << 20)
    index.add([{"id": "big", "text": " ".join(words(60_000))}])
    assert index.commit().searcher().search("w59999").ids == ["big"]


def test_refused_document_is_not_read_to_its_end() -> None:
    read = 0

    def windows() -> Iterator[list[str]]:
        nonlocal read
        for number in range(1_000):
            read += 1
            yield words(1_000, 1_000 * number)

    buffer = Buffer(BM25, None, None, MEMORY)
    buffer.add_terms(Document("a", "ant"), [["ant"]])
    before = buffer.bytes
    with pytest.raises(citadel.DocumentTooLargeError):
        buffer.add_terms(Document("big", "w"), windows())
    assert read < 100
    assert (buffer.bytes, len(buffer), list(buffer._terms)) == (before, 1, ["ant"])


def test_long_document_shares_lists_with_short_ones(tmp_path: Path) -> None:
    text = " ".join(f"word{number % 997}" for number in range(40_000))  # analysed in windows, staged alone
    index = citadel.Index.create(Quick(tmp_path), analyser="plain")
    documents = {"a": "word5", "long": text, "b": "word5 word5"}
    index.add([{"id": id, "text": text} for id, text in documents.items()])
    segment = index.commit().searcher().snapshot.segments[0]
    rank = segment.terms.index(b"word5")
    assert segment.document_numbers(rank, rank + 1).tolist() == [0, 1, 2]
    assert segment.counts(rank, rank + 1).tolist() == [1, 41, 2]
    assert segment.lengths.tolist() == [1, 40_000, 2]


def test_buffered_metadata_are_json_only() -> None:
    buffer = Buffer(BM25, None, None)
    buffer.add_terms(Document("a", "ant", metadata={"numbers": list(range(100))}), [["ant"]])
    assert dict(buffer.documents[0].metadata) == {}
    assert next(iter(buffer.contents(None).document_rows()))[4].startswith('{"numbers": [0, 1, ')
