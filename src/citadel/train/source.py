"""Training data as read: passages, queries and pairs, as texts and row numbers."""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from citadel.errors import InputError
from citadel.text.files import open_lines
from citadel.text.parse import check_id, decode, shorten
from citadel.train.ragged import Ragged, Rows
from citadel.train.texts import ABSENT, IdIndex, TextStore, UniqueTexts, rows_or_fail

MAX_NAMES = 1 << 16  # stored as uint16


@dataclass(frozen=True, slots=True)
class Passages:
    """The collection: id, text (title and text joined) and source of each passage."""

    ids: IdIndex
    texts: TextStore
    sources: NDArray[np.uint16]  # [P]: index into source_names
    source_names: tuple[str, ...] = ("",)

    def __len__(self) -> int:
        return len(self.texts)


@dataclass(frozen=True, slots=True)
class SourceData:
    """Training data as read. Passage `positive[e]` answers query `query[e]`."""

    passages: Passages
    queries: TextStore  # distinct texts
    query: Rows  # [E]
    positive: Rows  # [E]
    kind: NDArray[np.uint16]  # [E]: index into kind_names
    kind_names: tuple[str, ...] = ("",)
    negatives: Ragged | None = None  # passage rows by pair, if the format has negatives


@dataclass(slots=True)
class NameIndex:
    """Numbers for a few names, in order of appearance.

    >>> names = NameIndex()
    >>> names("term"), names("title"), names("term"), names.all
    (0, 1, 0, ('term', 'title'))
    """

    known: dict[str, int] = field(default_factory=dict)

    def __call__(self, name: str) -> int:
        if len(self.known) >= MAX_NAMES and name not in self.known:
            raise InputError(
                f"more than {MAX_NAMES:,} kinds or sources: a kind or source is shared by many lines"
            )
        return self.known.setdefault(name, len(self.known))

    @property
    def all(self) -> tuple[str, ...]:
        return tuple(self.known) or ("",)


class PassageList:
    """Collects passages while a file is read."""

    def __init__(self) -> None:
        self.ids, self.texts = TextStore(), TextStore()
        self._sources = array("H")
        self._names = NameIndex()

    def add(self, id: str, title: str, text: str, source: str = "") -> None:
        self.ids.append(check_id(id))
        self.texts.append(f"{title} {text}".strip())
        self._sources.append(self._names(source))

    def done(self, file: str, lines: Sequence[int] | None = None) -> Passages:
        """Return the collection; a repeated id is an error."""
        ids = IdIndex(self.ids)
        if (row := ids.repeated()) != ABSENT:
            reason = f"the passage id {shorten(ids.texts[row])} is listed twice: give each passage its own"
            raise InputError(reason, file, lines[row] if lines else row + 1)
        if not len(ids):
            raise InputError("no passage in this file: name a collection", file)
        return Passages(ids, self.texts, np.array(self._sources, np.uint16), self._names.all)


@dataclass(slots=True)
class QueryList:
    """Collects distinct queries.

    >>> queries = QueryList()
    >>> queries.add("who"), queries.add("why"), queries.add(" who ")
    (0, 1, 0)
    """

    distinct: UniqueTexts = field(default_factory=UniqueTexts)

    def add(self, text: object) -> int:
        if not isinstance(text, str):
            raise InputError("the query is not a string: write it in quotes")
        if not text.strip():
            raise InputError("the query is empty: give it words or leave the line out")
        return self.distinct.add(text.strip())

    def done(self) -> TextStore:
        return self.distinct.texts


@dataclass(slots=True)
class PairList:
    """Collects pairs; passage ids are looked up at the end, all at once."""

    queries: QueryList = field(default_factory=QueryList)
    kinds: NameIndex = field(default_factory=NameIndex)
    query: array[int] = field(default_factory=lambda: array("q"))
    positive: TextStore = field(default_factory=TextStore)
    kind: array[int] = field(default_factory=lambda: array("H"))
    lines: array[int] = field(default_factory=lambda: array("q"))

    def add(self, query: object, positive: str, line: int, kind: str = "") -> None:
        self.query.append(self.queries.add(query))
        self.positive.append(positive)
        self.kind.append(self.kinds(kind))
        self.lines.append(line)

    def done(self, passages: Passages, file: str) -> SourceData:
        positive = rows_or_fail(passages.ids, self.positive, self.lines, file)
        query = np.array(self.query, np.int64)
        kind = np.array(self.kind, np.uint16)
        return SourceData(passages, self.queries.done(), query, positive, kind, self.kinds.all)


def numbered_lines(path: str | os.PathLike[str]) -> Iterator[tuple[int, str]]:
    """Yield the non-blank lines of a file with their numbers; errors name file and line."""
    with open_lines(path) as lines:
        for number, _, line in lines:
            try:
                text = decode(line, number)
            except InputError as error:
                raise InputError(error.reason, lines.source, number) from None
            if text.strip():
                yield number, text


class ErrorLocation:
    """Adds file and line to an InputError raised inside.

    >>> location = ErrorLocation("pairs.jsonl")
    >>> with location.at(7):
    ...     raise InputError("the query is empty")
    Traceback (most recent call last):
    citadel.errors.InputError: pairs.jsonl:7: the query is empty
    """

    def __init__(self, source: str) -> None:
        self._source, self._line = source, 0

    def at(self, line: int) -> ErrorLocation:
        self._line = line
        return self

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, InputError) and not error.source:
            raise InputError(error.reason, self._source, self._line) from None
