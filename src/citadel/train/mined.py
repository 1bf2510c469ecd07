"""Read the files of `citadel mine` and `citadel score`: hard negatives and teacher scores by pair."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from citadel.errors import InputError
from citadel.text.parse import find_id, parse_object
from citadel.train.ragged import PART, Ragged, RaggedBuilder, Rows
from citadel.train.source import ErrorLocation, SourceData, numbered_lines
from citadel.train.texts import ABSENT, IdIndex, rows_or_fail


@dataclass(frozen=True, slots=True)
class PairIndex:
    """Finds a pair by its query's text and its positive's row; equal pairs are one."""

    keys: Rows  # [pairs] sorted: query row · passages + positive row
    row: Rows  # [E]: which of them a pair of the source is
    queries: IdIndex
    passages: int

    @classmethod
    def of(cls, source: SourceData) -> PairIndex:
        both = source.query * len(source.passages) + source.positive
        keys, row = np.unique(both, return_inverse=True)
        return cls(keys, row, IdIndex(source.queries), len(source.passages))

    def find(self, queries: Sequence[str], positives: Rows) -> Rows:
        """The number of each pair; ABSENT where the data has no such pair."""
        rows = self.queries.rows([query.strip() for query in queries])
        keys = rows * self.passages + positives
        places = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
        return np.where((rows != ABSENT) & (self.keys[places] == keys), places, ABSENT)


@dataclass(frozen=True, slots=True)
class MinedLists:
    """Hard negatives by pair, and the passages that look too good to be negatives."""

    negatives: Ragged
    dropped: Ragged


@dataclass(frozen=True, slots=True)
class ScoredLists:
    """A teacher's scores by pair: passages with the positive first, and a score for each."""

    passages: Ragged
    scores: Ragged


class _PairLists:
    """Lists by pair, in the order of a file, each pair once; on disk, for a pair may have a hundred numbers."""

    def __init__(self, pairs: int, dtype: Any) -> None:
        self._place, self._dtype = np.full(pairs, ABSENT), dtype
        self._listed, self._count = RaggedBuilder(dtype), 0

    def extend(self, pairs: Rows, values: NDArray[Any], lengths: Rows) -> None:
        """The lists of some pairs, end to end; of a pair that stands twice the last one counts."""
        self._place[pairs] = np.arange(self._count, self._count + len(pairs))
        self._listed.extend(values, lengths.tolist())
        self._count += len(pairs)

    def done(self) -> Ragged:
        """The table by pair."""
        listed, sorted_ = self._listed.done(), RaggedBuilder(self._dtype)
        for start in range(0, len(self._place), PART):
            places = self._place[start : start + PART]
            sorted_.extend(*_gathered(listed, places))
        return sorted_.done()


def _gathered(listed: Ragged, places: Rows) -> tuple[NDArray[Any], list[int]]:
    """Some rows end to end, an empty one for ABSENT, and their lengths.

    >>> _gathered(Ragged.of([[1, 2], [3]]), np.array([1, ABSENT, 0]))
    (array([3, 1, 2]), [1, 0, 2])
    """
    low, high = int(places[places != ABSENT].min(initial=len(listed))), int(places.max(initial=ABSENT)) + 1
    if high - low > 8 * len(places):  # far apart: row by row
        rows = [listed[place] if place != ABSENT else listed.part(0, 0).values[:] for place in places.tolist()]
        return np.concatenate(rows), [len(row) for row in rows]
    near = listed.part(min(low, high), high)  # a file in the data's order is read once, from end to end
    mine = np.where(places != ABSENT, places - low, -1)
    lengths = np.append(near.lengths, 0)[mine]  # the last is that of an absent one
    within = np.arange(int(lengths.sum())) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    return near.values[:][np.repeat(near.offsets[mine], lengths) + within], lengths.tolist()


class _Block(NamedTuple):
    """Lines of a file that belong to pairs of the data."""

    lines: list[int]
    pairs: Rows  # [n]
    fields: list[dict[str, Any]]


class _Listed(NamedTuple):
    """The ids that a block's lines list, as rows, end to end."""

    rows: Rows  # [N]
    lengths: Rows  # [n]

    def kept(self, good: NDArray[np.bool_]) -> _Listed:
        """Some of the rows."""
        owner = np.repeat(np.arange(len(self.lengths)), self.lengths)[good]
        return _Listed(self.rows[good], np.bincount(owner, minlength=len(self.lengths)))


def read_mined(file: str, source: SourceData, index: PairIndex, margin: float) -> MinedLists:
    """The lists of a mined file; what scores above the positive − margin is dropped as a false negative."""
    negatives, dropped = (_PairLists(len(index.keys), np.int32) for _ in range(2))
    for block in _blocks(file, source, index):
        listed, scores = _ranked(block, "negatives", source, file)
        bars = [_bar(fields, margin, file, line) for line, fields in zip(block.lines, block.fields, strict=True)]
        good = scores <= np.repeat(np.array(bars, np.float32), listed.lengths)
        negatives.extend(block.pairs, *listed.kept(good))
        others = _rows(
            source, [_dropped(f, file, line) for line, f in zip(block.lines, block.fields, strict=True)], block, file
        )
        dropped.extend(block.pairs, *_beside(listed.kept(~good), others))
    return MinedLists(negatives.done(), dropped.done())


def read_scored(file: str, source: SourceData, index: PairIndex) -> ScoredLists:
    """Read a scored file; the positive must come first."""
    passages, scores = _PairLists(len(index.keys), np.int32), _PairLists(len(index.keys), np.float32)
    for block in _blocks(file, source, index):
        listed, values = _ranked(block, "passages", source, file)
        starts = np.minimum(np.cumsum(listed.lengths) - listed.lengths, max(len(listed.rows) - 1, 0))
        first = listed.rows[starts] if len(listed.rows) else starts
        right = (listed.lengths > 0) & (first == index.keys[block.pairs] % index.passages)
        for place in np.flatnonzero(~right)[:1].tolist():
            reason = "the positive is not the first passage: score again"
            raise InputError(reason, file, block.lines[place])
        passages.extend(block.pairs, *listed)
        scores.extend(block.pairs, values, listed.lengths)
    return ScoredLists(passages.done(), scores.done())


def _blocks(file: str, source: SourceData, index: PairIndex) -> Iterator[_Block]:
    """The lines whose pair is in the data, some at a time; a file of other data is refused."""
    parsed, found = _parsed(file), 0
    while some := list(islice(parsed, PART)):
        lines, positives, fields = (list(column) for column in zip(*some, strict=True))
        rows = rows_or_fail(source.passages.ids, positives, lines, file)
        pairs = index.find([each["query"] for each in fields], rows)
        live = np.flatnonzero(pairs != ABSENT).tolist()
        found += len(live)
        if live:
            yield _Block([lines[place] for place in live], pairs[live], [fields[place] for place in live])
    if not found:
        raise InputError("no line belongs to a pair of the data: was this made from other data?", file)


def _parsed(file: str) -> Iterator[tuple[int, str, dict[str, Any]]]:
    """(line, the positive's id, fields) of each line."""
    location = ErrorLocation(file)
    for number, line in numbered_lines(file):
        with location.at(number):
            fields = parse_object(line)
            if not isinstance(fields.get("query"), str) or "positive" not in fields:
                raise InputError("there is no query and positive: name a file of `citadel mine` or `citadel score`")
            yield number, find_id({"id": fields["positive"]}), fields


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
    with ErrorLocation(file).at(line):
        return [find_id({"id": id}) for id in listed]


def _rows(source: SourceData, listed: Sequence[Sequence[str]], block: _Block, file: str) -> _Listed:
    """The rows of all listed ids with one look-up."""
    lengths = np.array([len(ids) for ids in listed], np.int64)
    lines = np.repeat(np.array(block.lines, np.int64), lengths)
    ids = list(chain.from_iterable(listed))
    return _Listed(rows_or_fail(source.passages.ids, ids, lines.tolist(), file), lengths)


def _beside(one: _Listed, other: _Listed) -> _Listed:
    """For each line the rows of one, then those of the other.

    >>> _beside(_Listed(np.array([1, 2]), np.array([1, 1])), _Listed(np.array([3]), np.array([0, 1]))).rows.tolist()
    [1, 2, 3]
    """
    owners = [np.repeat(np.arange(len(part.lengths)), part.lengths) for part in (one, other)]
    order = np.argsort(np.concatenate(owners), kind="stable")
    return _Listed(np.concatenate([one.rows, other.rows])[order], one.lengths + other.lengths)


def _ranked(block: _Block, key: str, source: SourceData, file: str) -> tuple[_Listed, NDArray[np.float32]]:
    """The ids under `key` as rows, and their scores; 0 where there are none."""
    listed, scores = [], list[NDArray[np.float32]]()
    for line, fields in zip(block.lines, block.fields, strict=True):
        ids, values = fields.get(key), fields.get("scores")
        if not isinstance(ids, list) or (
            values is not None and (not isinstance(values, list) or len(values) != len(ids))
        ):
            raise InputError(f"{key} and scores are not two lists of one length: make the file again", file, line)
        listed.append([str(id) for id in ids])
        try:
            scores.append(np.asarray(values if values is not None else np.zeros(len(ids)), np.float32))
        except (TypeError, ValueError):
            raise InputError("a score is not a number: make the file again", file, line) from None
    return _rows(source, listed, block, file), np.concatenate(scores)
