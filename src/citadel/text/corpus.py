"""Stream documents from JSONL, TSV, a BEIR folder or standard input."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Literal, NamedTuple, Self

from citadel.errors import InputError, UsageError
from citadel.text.files import STDIN, Lines, LineTooLongError, open_lines, uncompressed_name
from citadel.text.new_ids import content_id
from citadel.text.parse import decode, make_document, parse_object
from citadel.types import Document

FORMATS = ("jsonl", "tsv")
KEPT_REASONS = 10
_SUFFIXES = {".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl", ".tsv": "tsv", ".tab": "tsv"}
COMPRESSIONS = ("", ".gz", ".xz", ".zst")
_ID_IN_HEAD = re.compile(rb'^\s*\{.*?"_?id"\s*:\s*"([^"\\]+)"|^([^\t{]+)\t', re.DOTALL)  # JSONL or TSV

OnError = Literal["fail", "skip"]
Skipped = Callable[[InputError], None] | None


class Position(NamedTuple):
    """Where a document ends in the decompressed stream."""

    line: int
    offset: int  # of the next byte
    crc: int  # zlib.crc32 of all bytes up to the offset


class Corpus:
    """Iterator over (Document, Position), made by `read_corpus`.

    `documents` and `skipped` are counts; `reasons` has the errors of the first few skipped lines.
    """

    def __init__(
        self, lines: Lines, parse: Callable[[str], Document], on_error: OnError, skipped: Skipped
    ) -> None:
        self.lines = lines
        self.documents = 0
        self.skipped = 0
        self.reasons: list[InputError] = []
        self._parse = parse
        self._on_error = on_error
        self._on_skip = skipped

    @property
    def source(self) -> str:
        return self.lines.source

    @property
    def position(self) -> Position:
        """Current position in the source, after blank and skipped lines."""
        return Position(self.lines.number, self.lines.position, self.lines.crc)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> tuple[Document, Position]:
        while True:
            try:
                document = self._next_document()
            except InputError as error:
                self._skip_or_fail(error)
                continue
            if document is not None:
                self.documents += 1
                return document, self.position

    def _next_document(self) -> Document | None:
        try:
            number, _, line = next(self.lines)
        except LineTooLongError as error:
            raise _BadLineError(_with_id(error), self.source, error.line) from None
        try:
            text = decode(line, number)
            return self._parse(text) if text.strip() else None
        except InputError as error:
            raise _BadLineError(error.reason, self.source, number) from None

    def _skip_or_fail(self, error: InputError) -> None:
        if self._on_error == "fail" or not isinstance(error, _BadLineError):
            self.close()
            raise InputError(error.reason, error.source, error.line) from None
        self.skipped += 1
        if len(self.reasons) < KEPT_REASONS:
            self.reasons.append(InputError(error.reason, error.source, error.line))
        if self._on_skip is not None:
            self._on_skip(error)

    def refuse(self, error: InputError) -> None:
        """Skip the last document, which an index rejected, or raise an error with its line."""
        self._skip_or_fail(_BadLineError(error.reason, self.source, self.lines.number))

    def close(self) -> None:
        """Close the source; it closes itself at the end and on an error."""
        self.lines.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _BadLineError(InputError):
    """A line that is not a document; other errors mean that the source cannot be read further."""


def _with_id(error: LineTooLongError) -> str:
    """The reason of an error, with the document's id if the beginning of the line has it."""
    match = _ID_IN_HEAD.match(error.head)
    id = (match[1] or match[2]).decode(errors="replace") if match else ""
    return f"document {id!r}: {error.reason}" if id else error.reason


def read_corpus(
    path: str | os.PathLike[str],
    *,
    format: str | None = None,
    on_error: OnError = "fail",
    start: int = 0,
    skipped: Skipped = None,
    max_line: int | None = None,
    generate_ids: bool = False,
) -> Corpus:
    """Stream the documents of a JSONL or TSV file, a BEIR folder or "-" (standard input, JSONL by default).

    A bad line raises InputError with file and line; with `on_error="skip"` it is counted, its error is passed
    to `skipped`, and reading continues. A line of more than `max_line` bytes (default 64 MiB) is a bad line.
    Blank lines are ignored. Ids may repeat; the index keeps the last document of an id. A TSV line is id,
    text or id, title, text, without quoting. `start` is the offset of an earlier Position. `generate_ids`
    derives the id of a JSONL document without one from its line, so equal lines have equal ids.

    >>> import pathlib, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "corpus.tsv")
    ...     size = path.write_text("d1" + chr(9) + "E = mc²", encoding="utf-8")
    ...     for document, position in read_corpus(path):
    ...         print(document.id, document.text, position.offset)
    d1 E = mc² 11
    """
    if on_error not in ("fail", "skip"):
        raise UsageError(f"on_error is 'fail' or 'skip', not {on_error!r}")
    file = find_file(path, "corpus.jsonl")
    parse = _parse_tsv if find_format(file, format) == "tsv" else _parse_jsonl
    if generate_ids:
        if parse is _parse_tsv:
            raise UsageError("ids are generated for JSONL only: a line of TSV begins with its id")
        parse = _parse_jsonl_without_id
    return Corpus(open_lines(file, start, max_line), parse, on_error, skipped)


def find_file(path: str | os.PathLike[str], name: str) -> str:
    """The path itself, or in a BEIR folder the file `name`, compressed or not.

    >>> find_file("corpus.tsv", "corpus.jsonl")
    'corpus.tsv'
    """
    given = os.fspath(path)
    if given == STDIN or not _is_folder(given):
        return given
    for suffix in COMPRESSIONS:
        if (candidate := Path(given, name + suffix)).is_file():
            return str(candidate)
    raise InputError(f"no {name} (or .gz, .xz, .zst) in this folder: give a BEIR folder or a file", given)


def find_format(file: str, format: str | None) -> str:
    """The format `jsonl` or `tsv`, as given or by the suffix of the file.

    >>> find_format("corpus.tsv.gz", None)
    'tsv'
    """
    if format is not None and format not in FORMATS:
        raise UsageError(f"unknown format {format!r}: choose one of {', '.join(FORMATS)}")
    if format is not None or file == STDIN:
        return format or "jsonl"
    suffix = os.path.splitext(uncompressed_name(file))[1].lower()
    if suffix not in _SUFFIXES:
        if not os.path.exists(file):
            raise InputError("there is no such file: check the path", file)
        raise InputError(
            "the name does not tell the format: end it in .jsonl or .tsv, or give --format", file
        )
    return _SUFFIXES[suffix]


def _is_folder(path: str) -> bool:
    try:
        return os.path.isdir(path)
    except ValueError:  # a NUL in the name; opening it raises the error
        return False


def _parse_jsonl(line: str) -> Document:
    return make_document(parse_object(line), _refuse_without_id)


def _refuse_without_id() -> str:
    raise InputError("no id: give `id` or `_id`, or --generate-ids")


def _parse_jsonl_without_id(line: str) -> Document:
    return make_document(parse_object(line), lambda: content_id(line.strip()))


def _parse_tsv(line: str) -> Document:
    columns = line.split("\t")
    if len(columns) not in (2, 3):
        raise InputError(f"{len(columns)} tab-separated columns: write id, text or id, title, text")
    return make_document(
        {"id": columns[0], "title": columns[1] if len(columns) == 3 else "", "text": columns[-1]}
    )
