"""Corpus formats, positions, resuming and skipping."""

from __future__ import annotations

import gzip
import io
import lzma
import sys
import zlib
from pathlib import Path

import pytest
from backports import zstd

from citadel.errors import InputError, UsageError
from citadel.text import files
from citadel.text.corpus import Position, read_corpus
from citadel.types import Document

TWO = b'{"_id": "d1", "title": "t", "text": "a"}\n\n{"_id": "d2", "text": "b", "year": 1905}\n'
DOCUMENTS = [Document("d1", "a", "t"), Document("d2", "b", metadata={"year": 1905})]
ENDS = [Position(1, 41, zlib.crc32(TWO[:41])), Position(3, 83, zlib.crc32(TWO))]


def write(folder: Path, name: str, data: bytes) -> Path:
    path = folder / name
    path.write_bytes(data)
    return path


def documents(path: Path | str, **options: str) -> list[Document]:
    return [document for document, _ in read_corpus(path, **options)]  # type: ignore[arg-type]


def test_documents_have_their_end_position(tmp_path: Path) -> None:
    corpus = read_corpus(write(tmp_path, "corpus.jsonl", TWO))
    assert list(corpus) == list(zip(DOCUMENTS, ENDS, strict=True))
    assert (corpus.documents, corpus.skipped, corpus.position) == (2, 0, ENDS[1])


def test_reading_resumes_at_a_position(tmp_path: Path) -> None:
    path = write(tmp_path, "corpus.jsonl", TWO)
    with read_corpus(path, start=ENDS[0].offset) as corpus:
        assert corpus.position == ENDS[0]
        assert list(corpus) == [(DOCUMENTS[1], ENDS[1])]


def test_trailing_blank_lines_advance_the_position(tmp_path: Path) -> None:
    corpus = read_corpus(write(tmp_path, "corpus.jsonl", TWO + b"\n \n"))
    assert list(corpus)[-1][1] == ENDS[1]
    assert corpus.position == (5, 86, zlib.crc32(TWO + b"\n \n"))


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("corpus.jsonl", TWO),
        ("corpus.ndjson", TWO),
        ("corpus.JSONL.GZ", gzip.compress(TWO, mtime=0)),
        ("corpus.jsonl.xz", lzma.compress(TWO)),
        ("corpus.jsonl.zst", zstd.compress(TWO)),
    ],
)
def test_jsonl_suffixes(tmp_path: Path, name: str, data: bytes) -> None:
    assert documents(write(tmp_path, name, data)) == DOCUMENTS


@pytest.mark.parametrize("name", ["corpus.jsonl", "corpus.jsonl.gz"])
def test_beir_folder(tmp_path: Path, name: str) -> None:
    write(tmp_path, name, gzip.compress(TWO, mtime=0) if name.endswith("gz") else TWO)
    assert documents(tmp_path) == DOCUMENTS


def test_folder_without_a_corpus_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no corpus.jsonl \(or .gz, .xz, .zst\) in this folder"):
        read_corpus(tmp_path)


def test_unknown_suffix_needs_a_format(tmp_path: Path) -> None:
    path = write(tmp_path, "corpus.dat", b"d1\ta")
    with pytest.raises(InputError, match=r"corpus.dat: the name does not tell the format"):
        read_corpus(path)
    assert documents(path, format="tsv") == [Document("d1", "a")]


def test_invalid_options_are_usage_errors(tmp_path: Path) -> None:
    path = write(tmp_path, "corpus.jsonl", TWO)
    with pytest.raises(UsageError, match="unknown format 'xml': choose one of jsonl, tsv"):
        read_corpus(path, format="xml")
    with pytest.raises(UsageError, match="'fail' or 'skip'"):
        read_corpus(path, on_error="ignore")  # type: ignore[arg-type]


def test_standard_input_is_jsonl_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(TWO)))
    assert documents("-") == DOCUMENTS


def test_repeated_ids_are_all_read(tmp_path: Path) -> None:
    assert documents(write(tmp_path, "corpus.tsv", b"d1\ta\nd1\tb")) == [
        Document("d1", "a"),
        Document("d1", "b"),
    ]


def test_bad_line_raises_and_closes_the_file(tmp_path: Path) -> None:
    corpus = read_corpus(write(tmp_path, "corpus.jsonl", TWO + b"{\n" + TWO))
    assert [next(corpus)[0], next(corpus)[0]] == DOCUMENTS
    with pytest.raises(InputError, match=r"corpus.jsonl:4: not valid JSON: .* at column 2$"):
        next(corpus)
    assert list(corpus) == []


def test_skipped_lines_are_reported(tmp_path: Path) -> None:
    path = write(tmp_path, "corpus.jsonl", b"{\n" + TWO + b"7\n")
    errors: list[InputError] = []
    corpus = read_corpus(path, on_error="skip", skipped=errors.append)
    assert [document for document, _ in corpus] == DOCUMENTS
    assert [error.line for error in errors] == [1, 5]
    assert (corpus.skipped, [error.line for error in corpus.reasons]) == (2, [1, 5])
    assert corpus.position.offset == path.stat().st_size


def test_too_long_line_can_be_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MAX_LINE", 60)
    path = write(tmp_path, "corpus.jsonl", b'{"id": "' + b"x" * 90 + b'"}\n' + TWO)
    corpus = read_corpus(path, on_error="skip")
    assert [document for document, _ in corpus] == DOCUMENTS
    assert corpus.skipped == 1
    with pytest.raises(InputError, match=r"corpus.jsonl:1: the line is longer"):
        documents(path)


def test_truncated_file_fails_even_with_skip(tmp_path: Path) -> None:
    path = write(tmp_path, "corpus.jsonl.gz", gzip.compress(TWO, mtime=0)[:-6])
    with pytest.raises(InputError, match=r"corpus.jsonl.gz:\d: the compressed file is truncated"):
        documents(path, on_error="skip")


def test_corpus_can_be_closed_early(tmp_path: Path) -> None:
    with read_corpus(write(tmp_path, "corpus.jsonl", TWO)) as corpus:
        next(corpus)
    assert list(corpus) == []
