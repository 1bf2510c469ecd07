"""Query file formats and errors."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from citadel.errors import InputError
from citadel.text.queries import parse_query, read_queries


def write(folder: Path, name: str, data: bytes) -> Path:
    path = folder / name
    path.write_bytes(data)
    return path


def test_jsonl_queries_keep_their_order(tmp_path: Path) -> None:
    lines = b'\xef\xbb\xbf{"_id": 2, "text": "b", "metadata": {}}\r\n\n{"id": "1", "text": ""}'
    assert read_queries(write(tmp_path, "q.jsonl", lines)) == [("2", "b"), ("1", "")]


def test_tsv_queries(tmp_path: Path) -> None:
    assert read_queries(write(tmp_path, "q.tsv", b"q1\twho is it\nq2\twhy")) == [
        ("q1", "who is it"),
        ("q2", "why"),
    ]


def test_beir_folder(tmp_path: Path) -> None:
    write(tmp_path, "queries.jsonl", b'{"_id": "1", "text": "a"}')
    assert read_queries(tmp_path) == [("1", "a")]


def test_empty_file_has_no_queries(tmp_path: Path) -> None:
    assert read_queries(write(tmp_path, "q.tsv", b"")) == []


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{"id": "q1", "text": "again"}', "the query id 'q1' occurs twice"),
        (b'{"id": "q2"}', "no text: give the query as `text`"),
        (b'{"id": "q2", "text": null}', "text must be a string, not null"),
        (b'{"id": "q2", "text": 7}', "text must be a string, not an integer"),
        (b'{"id": "q2", "text": "\\ud800"}', "half a surrogate pair"),
        (b'{"text": "a"}', "no id"),
        (b'{"id": "", "text": "a"}', "the id is empty"),
        (b'{"id": "a\\nb", "text": "a"}', "the id holds a control character"),
        (b'["q2", "a"]', "not a JSON object but a list"),
        (b'{"id": "q2", "text": "\xff"}', "not UTF-8"),
        (b"[" * 100_000, "nested deeper"),
        (b"{", "not valid JSON"),
    ],
)
def test_bad_query_line_error_has_file_line_and_reason(tmp_path: Path, line: bytes, reason: str) -> None:
    path = write(tmp_path, "q.jsonl", b'{"id": "q1", "text": "a"}\n' + line)
    with pytest.raises(InputError, match=rf"q.jsonl:2: .*{reason}"):
        read_queries(path)


@pytest.mark.parametrize("line", [b"q1", b"q1\ta\tb", b"\ta"])
def test_tsv_query_needs_two_columns(tmp_path: Path, line: bytes) -> None:
    with pytest.raises(
        InputError, match=r"q.tsv:1: (\d tab-separated columns: write id, text|the id is empty)"
    ):
        read_queries(write(tmp_path, "q.tsv", line))


@given(st.text())
def test_query_parser_raises_only_input_errors(line: str) -> None:
    with pytest.raises(InputError):
        parse_query(line)
