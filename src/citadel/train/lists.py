"""Reads what `citadel mine` and `citadel score` wrote: for each pair its hard negatives, and a teacher's scores."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citadel.errors import InputError
from citadel.text.parse import find_id, parse_object
from citadel.train.ragged import Growing, Ragged, Rows
from citadel.train.source import Place, Source, numbered_lines
from citadel.train.texts import ABSENT, Ids, rows_or_fail


@dataclass(frozen=True, slots=True)
class PairIndex:
    """Finds a pair by its query's text and its positive's row; equal pairs are one."""

    keys: Rows  # [pairs] sorted: query row · passages + positive row
    row: Rows  # [E]: which of them a pair of the source is
    queries: Ids
    passages: int

    @classmethod
    def of(cls, source: Source) -> PairIndex:
        both = source.query * len(source.passages) + source.positive
        keys, row = np.unique(both, return_inverse=True)
        return cls(keys, row, Ids(source.queries), len(source.passages))

    def find(self, query: str, positive: int) -> int:
        """The pair's number; ABSENT where the data has no such pair."""
        number = int(self.queries.rows([query.strip()])[0])
        if number == ABSENT:
            return ABSENT
        key = number * self.passages + positive
        place = int(np.searchsorted(self.keys, key))
        return place if place < len(self.keys) and self.keys[place] == key else ABSENT


@dataclass(frozen=True, slots=True)
class Mined:
    """Hard negatives by pair, and the passages that look too good to be negatives."""

    negatives: Ragged
    dropped: Ragged


@dataclass(frozen=True, slots=True)
class Scored:
    """A teacher's scores by pair: passages with the positive first, and a score for each."""

    passages: Ragged
    scores: Ragged


class _Lists:
    """Lists by pair, in the order of a file, each pair once; on disk, for a pair may have a hundred numbers."""

    def __init__(self, pairs: int, dtype: Any) -> None:
        self._place, self._dtype = np.full(pairs, ABSENT), dtype
        self._listed, self._count = Growing(dtype), 0

    def set(self, pair: int, values: NDArray[Any]) -> None:
        self._place[pair] = self._count
        self._listed.add(values)
        self._count += 1

    def done(self) -> Ragged:
        """The table by pair."""
        listed, sorted_ = self._listed.done(), Growing(self._dtype)
        empty = np.empty(0, self._dtype)
        for place in self._place.tolist():
            sorted_.add(listed[place] if place != ABSENT else empty)
        return sorted_.done()


def read_mined(file: str, source: Source, index: PairIndex, margin: float) -> Mined:
    """The lists of a mined file; what scores above the positive − margin is dropped as a false negative."""
    negatives, dropped = (_Lists(len(index.keys), np.int32) for _ in range(2))
    for number, pair, fields in _lines(file, source, index):
        rows, scores = _ranked(fields, "negatives", source, file, number)
        good = scores <= _bar(fields, margin, file, number)
        listed = _dropped(fields, file, number)
        others = rows_or_fail(source.passages.ids, listed, [number] * len(listed), file)
        negatives.set(pair, rows[good])
        dropped.set(pair, np.concatenate([rows[~good], others]))
    return Mined(negatives.done(), dropped.done())


def read_scored(file: str, source: Source, index: PairIndex) -> Scored:
    """The lists of a scored file; the positive must stand first."""
    passages, scores = _Lists(len(index.keys), np.int32), _Lists(len(index.keys), np.float32)
    for number, pair, fields in _lines(file, source, index):
        rows, values = _ranked(fields, "passages", source, file, number)
        if not len(rows) or rows[0] != index.keys[pair] % index.passages:
            raise InputError("the positive does not stand first among the passages: score again", file, number)
        passages.set(pair, rows)
        scores.set(pair, values)
    return Scored(passages.done(), scores.done())


def _lines(file: str, source: Source, index: PairIndex) -> Iterator[tuple[int, int, dict[str, Any]]]:
    """(line, pair, fields) of the lines whose pair is in the data; a file of other data is refused."""
    place, found = Place(file), 0
    for number, line in numbered_lines(file):
        with place.at(number):
            fields = parse_object(line)
            if not isinstance(fields.get("query"), str) or "positive" not in fields:
                raise InputError("there is no query and positive: name a file of `citadel mine` or `citadel score`")
            positive = find_id({"id": fields["positive"]})
        row = int(rows_or_fail(source.passages.ids, [positive], [number], file)[0])
        if (pair := index.find(fields["query"], row)) != ABSENT:
            found += 1
            yield number, pair, fields
    if not found:
        raise InputError("no line belongs to a pair of the data: was this made from other data?", file)


def _bar(fields: dict[str, Any], margin: float, file: str, line: int) -> float:
    """The score above which a passage is taken for a false negative; null says that the positive was not found."""
    if margin == -math.inf:
        return math.inf
    positive = fields.get("positive_score", "absent")
    if positive is not None and not isinstance(positive, int | float):
        raise InputError("there is no positive_score, which data.margin needs: mine again", file, line)
    return -math.inf if positive is None else positive - margin


def _dropped(fields: dict[str, Any], file: str, line: int) -> list[str]:
    listed = fields.get("dropped", [])
    if not isinstance(listed, list):
        raise InputError("dropped is not a list of passage ids: mine again", file, line)
    with Place(file).at(line):
        return [find_id({"id": id}) for id in listed]


def _ranked(fields: dict[str, Any], key: str, source: Source, file: str, line: int) -> tuple[Rows, NDArray[np.float32]]:
    ids, scores = fields.get(key), fields.get("scores")
    if not isinstance(ids, list) or (scores is not None and (not isinstance(scores, list) or len(scores) != len(ids))):
        raise InputError(f"{key} and scores are not two lists of one length: make the file again", file, line)
    rows = rows_or_fail(source.passages.ids, [str(id) for id in ids], [line] * len(ids), file)
    try:
        values = np.asarray(scores if scores is not None else np.zeros(len(ids)), np.float32)
    except (TypeError, ValueError):
        raise InputError("a score is not a number: make the file again", file, line) from None
    return rows, values
