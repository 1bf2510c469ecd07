"""Accepted and rejected corpus lines. A case is one line of a JSONL or TSV file and its error message."""

from __future__ import annotations

import io
import json
import os
import sys
import unicodedata
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from citadel.errors import InputError
from citadel.text.analyser import get_analyser
from citadel.text.corpus import read_corpus
from citadel.text.parse import MAX_DEPTH, MAX_ID, make_document
from citadel.types import Document

NIGHT = os.environ.get("CITADEL_NIGHT") == "1"
GENERATED = settings(max_examples=3_000 if NIGHT else 500, suppress_health_check=list(HealthCheck))

REFUSED: dict[bytes, str] = {
    # JSON
    b"{": "not valid JSON",
    b'{"id": "1", "text": "a"': "not valid JSON",
    b'{"id": "1", "text": "a"} x': "not valid JSON: Extra data",
    b'{"id": "1", "text": "a"}{"id": "2", "text": "b"}': "not valid JSON: Extra data",
    b"{'id': '1', 'text': 'a'}": "not valid JSON",
    b'{"id": "1", "text": "a",}': "not valid JSON",
    b'{"id": "1", "text": "tab\there"}': "not valid JSON: Invalid control character",
    b'{"id": "1", "text": "\\x41"}': "not valid JSON",
    b'{"id": "1", "text": "\\u12"}': "not valid JSON",
    b'{id: "1", "text": "a"}': "not valid JSON",
    b'{"id": "1", "text": "a", "n": 01}': "not valid JSON",
    b'{"id": "1", "text": "a", "n": +1}': "not valid JSON",
    b"plain words": "not valid JSON",
    b"[": "not valid JSON",
    b"[" * 100_000: "nested deeper",
    b'{"a":' * 100_000: "nested deeper",
    b'{"id": "1", "text": "a", "m": ' + b"[" * 70 + b"]" * 70 + b"}": "nested deeper than 64 levels",
    b'{"id": "1", "text": "a", "m": ' + b"9" * 5000 + b"}": "a number is too long",
    b'{"id": "1", "text": "a", "m": ' + b"9" * 400 + b"}": "more than 1024 bits",
    b'{"id": "1", "text": "a", "m": NaN}': "NaN is not a JSON number",
    b'{"id": "1", "text": "a", "m": Infinity}': "Infinity is not a JSON number",
    b'{"id": "1", "text": "a", "m": [-Infinity]}': "-Infinity is not a JSON number",
    b'{"id": "1", "text": "a", "m": 1e999}': "1e999 is too large",
    b'{"id": "1", "text": "a", "id": "2"}': "the key 'id' occurs twice",
    b'{"id": "1", "text": "a", "m": {"x": 1, "x": 1}}': "the key 'x' occurs twice",
    # not an object
    b'["1", "a"]': "not a JSON object but a list",
    b'"text"': "not a JSON object but a string",
    b"7": "not a JSON object but an integer",
    b"7.5": "not a JSON object but a number with a fraction",
    b"null": "not a JSON object but null",
    b"true": "not a JSON object but true or false",
    # bytes
    b'{"id": "1", "text": "\xff"}': "not UTF-8 at byte 22",
    b'{"id": "1", "text": "\xc3"}': "not UTF-8",
    b'{"id": "1", "text": "\xed\xa0\x80"}': "not UTF-8",
    b'{"id": "1", "text": "\xc0\xaf"}': "not UTF-8",
    '{"id": "1", "text": "a"}'.encode("utf-16"): "not UTF-8 at byte 1",
    b"\0": "not valid JSON",
    # id
    b"{}": "no id",
    b'{"text": "a"}': "no id",
    b'{"ID": "1", "text": "a"}': "no id",
    b'{"id": "", "text": "a"}': "the id is empty",
    b'{"id": null, "text": "a"}': "the id must be a string or an integer, not null",
    b'{"id": true, "text": "a"}': "the id must be a string or an integer, not true or false",
    b'{"id": 1.0, "text": "a"}': "the id must be a string or an integer, not a number with a fraction",
    b'{"id": ["1"], "text": "a"}': "the id must be a string or an integer, not a list",
    b'{"id": {}, "text": "a"}': "the id must be a string or an integer, not an object",
    b'{"id": "a\\u0000b", "text": "a"}': "the id holds a control character",
    b'{"id": "a\\nb", "text": "a"}': "the id holds a control character",
    b'{"id": "a\\tb", "text": "a"}': "the id holds a control character",
    b'{"id": "a\\u0085b", "text": "a"}': "the id holds a control character",
    b'{"id": "a\\u2028b", "text": "a"}': "the id holds a control character or line end",
    b'{"id": "\\ud800", "text": "a"}': r"the id holds half a surrogate pair \(\\ud800\)",
    b'{"id": "' + b"x" * 513 + b'", "text": "a"}': "the id is longer than 512 bytes: 'xxxx",
    b'{"id": "' + "é".encode() * 257 + b'", "text": "a"}': "the id is longer than 512 bytes",
    b'{"id": ' + b"9" * 600 + b', "text": "a"}': "the id is longer than 512 bytes",
    b'{"id": "1", "_id": "2", "text": "a"}': "`id` and `_id` differ",
    # title and text
    b'{"id": "1"}': "neither text nor title",
    b'{"id": "1", "text": null}': "neither text nor title",
    b'{"id": "1", "text": 7}': "text must be a string, not an integer",
    b'{"id": "1", "text": ["a", "b"]}': "text must be a string, not a list",
    b'{"id": "1", "text": "a", "title": {}}': "title must be a string, not an object",
    b'{"id": "1", "text": "a \\udfff"}': r"text holds half a surrogate pair \(\\udfff\)",
    b'{"id": "1", "title": "\\ud83e"}': "title holds half a surrogate pair",
    # metadata
    b'{"id": "1", "text": "a", "m": "\\ud800"}': "metadata 'm' holds half a surrogate pair",
    b'{"id": "1", "text": "a", "m": [{"n": "\\ud800"}]}': "metadata 'm' holds half a surrogate pair",
    b'{"id": "1", "text": "a", "m": {"\\ud800": 1}}': "a name inside metadata 'm' holds half a surrogate",
    b'{"id": "1", "text": "a", "\\ud800": 1}': "a metadata name holds half a surrogate pair",
    b'{"id": "1", "text": "a", "x": 1, "metadata": {"x": 2}}': "'x' occurs both beside and inside `metadata`",
}

REFUSED_TSV: dict[bytes, str] = {
    b"d1": "1 tab-separated columns",
    b"d1\ta\tb\tc": "4 tab-separated columns",
    b"\ta": "the id is empty",
    b"d\0\ta": "the id holds a control character",
    b"d1\t\xff": "not UTF-8 at byte 4",
    b"x" * 513 + b"\ta": "the id is longer than 512 bytes",
}

ACCEPTED: dict[bytes, Document] = {
    b'{"id": "1", "text": "a"}': Document("1", "a"),
    b'\xef\xbb\xbf{"id": "1", "text": "a"}': Document("1", "a"),
    b'{"_id": "1", "text": "a"}\r': Document("1", "a"),
    b' \t{"id": "1", "text": "a"} ': Document("1", "a"),
    b'{"id": "1", "_id": "1", "text": "a"}': Document("1", "a"),
    b'{"id": 7, "_id": "7", "text": "a"}': Document("7", "a"),
    b'{"id": -7, "text": "a"}': Document("-7", "a"),
    b'{"id": 123456789012345678901234567890, "text": "a"}': Document("123456789012345678901234567890", "a"),
    '{"id": "🦊", "text": "a"}'.encode(): Document("🦊", "a"),
    b'{"id": "\\ud83e\\udd8a", "text": "a"}': Document("🦊", "a"),
    b'{"id": " a b ", "text": "a"}': Document(" a b ", "a"),
    b'{"id": "' + b"x" * 512 + b'", "text": "a"}': Document("x" * 512, "a"),
    b'{"id": "1", "text": ""}': Document("1", ""),
    b'{"id": "1", "title": "t"}': Document("1", "", "t"),
    b'{"id": "1", "title": null, "text": "a"}': Document("1", "a"),
    b'{"id": "1", "text": "a\\u0000b\\n\\ufeff"}': Document("1", "a\0b\n\ufeff"),
    b'{"id": "1", "text": "a", "year": 1905}': Document("1", "a", metadata={"year": 1905}),
    b'{"id": "1", "text": "a", "metadata": {"year": 1905}}': Document("1", "a", metadata={"year": 1905}),
    b'{"id": "1", "text": "a", "metadata": null}': Document("1", "a", metadata={"metadata": None}),
    b'{"id": "1", "text": "a", "metadata": {"id": 2}}': Document("1", "a", metadata={"id": 2}),
    b'{"id": "1", "text": "a", "m": [1, {"x": null}]}': Document("1", "a", metadata={"m": [1, {"x": None}]}),
}

ACCEPTED_TSV: dict[bytes, Document] = {
    b"d1\ta b": Document("d1", "a b"),
    b"d1\tt\ta b": Document("d1", "a b", "t"),
    b"d1\t": Document("d1", ""),
    b"d1\ta\r": Document("d1", "a"),
    b'd1\t"a\\n': Document("d1", '"a\\n'),
}


def short(line: object) -> str:
    return ascii(line)[:50] if isinstance(line, bytes) else ""


def read_line(line: bytes, format: str = "jsonl") -> list[Document]:
    """Read this line from standard input."""
    return list(read_lines(line + b"\n", format))


def read_lines(data: bytes, format: str) -> Iterator[Document]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
        yield from (document for document, _ in read_corpus("-", format=format))


def test_at_least_60_cases() -> None:
    assert len(REFUSED) + len(REFUSED_TSV) >= 60


@pytest.mark.parametrize(("line", "reason"), REFUSED.items(), ids=short)
def test_bad_json_line_error_has_file_line_and_reason(line: bytes, reason: str) -> None:
    with pytest.raises(InputError, match=r"^<stdin>:1: .*" + reason):
        read_line(line)


@pytest.mark.parametrize(("line", "reason"), REFUSED_TSV.items(), ids=short)
def test_bad_tsv_line_error_has_file_line_and_reason(line: bytes, reason: str) -> None:
    with pytest.raises(InputError, match=r"^<stdin>:1: .*" + reason):
        read_line(line, "tsv")


@pytest.mark.parametrize(("line", "document"), ACCEPTED.items(), ids=short)
def test_unusual_json_line_is_accepted(line: bytes, document: Document) -> None:
    assert read_line(line) == [document]


@pytest.mark.parametrize(("line", "document"), ACCEPTED_TSV.items(), ids=short)
def test_unusual_tsv_line_is_accepted(line: bytes, document: Document) -> None:
    assert read_line(line, "tsv") == [document]


@pytest.mark.parametrize("line", [b"", b"\r", b" \t", b"\xef\xbb\xbf", "\u3000\u00a0".encode()])
def test_blank_line_is_skipped(line: bytes) -> None:
    assert read_line(line) == []


def test_messages_are_short_and_on_one_line() -> None:
    for line in REFUSED:
        with pytest.raises(InputError) as caught:
            read_line(line)
        assert len(str(caught.value)) < 200
        assert str(caught.value).isprintable()


def test_skip_counts_bad_lines_and_reads_good_ones(tmp_path: Path) -> None:
    path = tmp_path / "corpus.jsonl"
    good = [line for line in ACCEPTED if not line.startswith(b"\xef")]
    path.write_bytes(
        b"\n".join(line for pair in zip(list(REFUSED)[: len(good)], good, strict=True) for line in pair)
    )
    with read_corpus(path, on_error="skip") as corpus:
        assert [document for document, _ in corpus] == [ACCEPTED[line] for line in good]
        assert (corpus.documents, corpus.skipped, len(corpus.reasons)) == (len(good), len(good), 10)
        assert str(corpus.reasons[1]).startswith(f"{path}:3: not valid JSON")


def test_line_of_50_megabytes_is_read(tmp_path: Path) -> None:
    path = tmp_path / "corpus.jsonl"
    path.write_bytes(b'{"id": "1", "text": "' + b"word " * 10_000_000 + b'"}\n{"id": "2", "text": "b"}')
    assert [(document.id, len(document.text)) for document, _ in read_corpus(path)] == [
        ("1", 50_000_000),
        ("2", 1),
    ]


def test_documents_of_zero_and_a_million_tokens() -> None:
    analyser = get_analyser("english")
    assert analyser.terms(read_line(b'{"id": "1", "text": "... ?!"}')[0].encoded_text) == []
    million = read_line(b'{"id": "1", "text": "' + b"ab " * 1_000_000 + b'"}')[0]
    assert len(analyser.terms(million.encoded_text)) == 1_000_000


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
)
FIELDS = st.dictionaries(st.sampled_from(["id", "_id", "title", "text", "metadata", "x"]), JSON)


def damaged(line: bytes, at: int, piece: bytes) -> bytes:
    return line[:at] + piece + line[at + 1 :]


LINES = st.binary(max_size=60) | st.builds(
    damaged,
    FIELDS.map(lambda fields: json.dumps(fields, ensure_ascii=False).encode(errors="surrogatepass")),
    st.integers(0, 80),
    st.binary(max_size=2) | st.sampled_from([b"", b"\\ud800", b"\0", b"[[", b"\t", b"\xff", b'"']),
)


def can_be_stored(document: Document) -> bool:
    """Whether a document survives a round trip through UTF-8 and JSON."""
    text = json.dumps([document.id, document.title, document.text, document.metadata], allow_nan=False)
    back = json.loads(text.encode())
    is_printable = not any(unicodedata.category(letter) in ("Cc", "Zl", "Zp", "Cs") for letter in document.id)
    fits = 0 < len(document.id.encode()) <= MAX_ID
    return is_printable and fits and back == [document.id, document.title, document.text, document.metadata]


@GENERATED
@given(line=LINES, format=st.sampled_from(["jsonl", "tsv"]))
def test_parser_raises_only_input_errors(line: bytes, format: str) -> None:
    try:
        documents = list(read_lines(line, format))
    except InputError as error:
        where, documents = (error.source, error.line is None), []
    else:
        where = ("<stdin>", False)
    assert where == ("<stdin>", False)
    assert all(can_be_stored(document) for document in documents)


@GENERATED
@given(fields=FIELDS)
def test_make_document_raises_only_input_errors(fields: dict[str, object]) -> None:
    try:
        document = make_document(fields)
    except InputError:
        return
    assert can_be_stored(document)


def nested(depth: int) -> bytes:
    """A line with objects and lists nested `depth` levels deep."""
    return b'{"id": "1", "text": "a", "m": ' + b"[" * (depth - 1) + b"]" * (depth - 1) + b"}"


def test_nesting_depth_is_limited() -> None:
    assert read_line(nested(MAX_DEPTH))[0].id == "1"
    for depth in (MAX_DEPTH + 1, 500, 50_000):
        with pytest.raises(InputError, match="nested deeper than 64 levels"):
            read_line(nested(depth))
