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
    """Finds a pair by query text and row of the positive; equal pairs share one row."""

    keys: Rows  # [pairs] sorted: query row · passages + positive row
    row: Rows  # [E]: index into `keys` of each pair of the source
    queries: IdIndex
    passages: int

    @classmethod
    def of(cls, source: SourceData) -> PairIndex:
        both = source.query * len(source.passages) + source.positive
        keys, row = np.unique(both, return_inverse=True)
        return cls(keys, row, IdIndex(source.queries), len(source.passages))

    def find(self, queries: Sequence[str], positives: Rows) -> Rows:
        """Return the index of each pair; ABSENT if the data has no such pair."""
        rows = self.queries.rows([query.strip() for query in queries])
        keys = rows * self.passages + positives
        indices = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
        return np.where((rows != ABSENT) & (self.keys[indices] == keys), indices, ABSENT)


@dataclass(frozen=True, slots=True)
class MinedLists:
    """Hard negatives by pair, and the passages dropped as likely false negatives."""

    negatives: Ragged
    dropped: Ragged


@dataclass(frozen=True, slots=True)
class ScoredLists:
    """Teacher scores by pair: passages, the positive first, and a score for each."""

    passages: Ragged
    scores: Ragged


class _PairLists:
    """Lists by pair, collected on disk in file order; the last list of a pair counts."""

    def __init__(self, pairs: int, dtype: Any) -> None:
        self._position, self._dtype = np.full(pairs, ABSENT), dtype
        self._lists, self._count = RaggedBuilder(dtype), 0

    def extend(self, pairs: Rows, values: NDArray[Any], lengths: Rows) -> None:
        """Append the lists of some pairs, concatenated."""
        self._position[pairs] = np.arange(self._count, self._count + len(pairs))
        self._lists.extend(values, lengths.tolist())
        self._count += len(pairs)

    def done(self) -> Ragged:
        """Return the lists in the order of the pairs; a pair without a list gets an empty one."""
        lists, by_pair = self._lists.done(), RaggedBuilder(self._dtype)
        for start in range(0, len(self._position), PART):
            by_pair.extend(*_gathered(lists, self._position[start : start + PART]))
        return by_pair.done()


def _gathered(lists: Ragged, positions: Rows) -> tuple[NDArray[Any], list[int]]:
    """Concatenate the rows at these positions, empty for ABSENT, and return their lengths.

    >>> _gathered(Ragged.of([[1, 2], [3]]), np.array([1, ABSENT, 0]))
    (array([3, 1, 2]), [1, 0, 2])
    """
    low = int(positions[positions != ABSENT].min(initial=len(lists)))
    high = int(positions.max(initial=ABSENT)) + 1
    if high - low > 8 * len(positions):  # far apart: read row by row
        empty = lists.part(0, 0).values[:]
        rows = [lists[position] if position != ABSENT else empty for position in positions.tolist()]
        return np.concatenate(rows), [len(row) for row in rows]
    near = lists.part(min(low, high), high)  # a file in the order of the data is read sequentially
    index = np.where(positions != ABSENT, positions - low, -1)
    lengths = np.append(near.lengths, 0)[index]  # -1 selects the appended 0
    within = np.arange(int(lengths.sum())) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    return near.values[:][np.repeat(near.offsets[index], lengths) + within], lengths.tolist()


class _Block(NamedTuple):
    """Lines of a file that belong to pairs of the data."""

    lines: list[int]
    pairs: Rows  # [n]
    fields: list[dict[str, Any]]


class _Listed(NamedTuple):
    """Passage rows listed by the lines of a block, concatenated."""

    rows: Rows  # [N]
    lengths: Rows  # [n]

    def kept(self, mask: NDArray[np.bool_]) -> _Listed:
        """Select rows."""
        line = np.repeat(np.arange(len(self.lengths)), self.lengths)[mask]
        return _Listed(self.rows[mask], np.bincount(line, minlength=len(self.lengths)))


def read_mined(file: str, source: SourceData, index: PairIndex, margin: float) -> MinedLists:
    """Read a mined file; passages that score above the positive − margin are dropped."""
    negatives, dropped = (_PairLists(len(index.keys), np.int32) for _ in range(2))
    for block in _blocks(file, source, index):
        listed, scores = _ranked(block, "negatives", source, file)
        lines = list(zip(block.lines, block.fields, strict=True))
        limits = np.array([_limit(fields, margin, file, line) for line, fields in lines], np.float32)
        is_negative = scores <= np.repeat(limits, listed.lengths)
        negatives.extend(block.pairs, *listed.kept(is_negative))
        others = _rows(source, [_dropped(fields, file, line) for line, fields in lines], block, file)
        dropped.extend(block.pairs, *_joined(listed.kept(~is_negative), others))
    return MinedLists(negatives.done(), dropped.done())


def read_scored(file: str, source: SourceData, index: PairIndex) -> ScoredLists:
    """Read a scored file; the positive must come first."""
    passages, scores = _PairLists(len(index.keys), np.int32), _PairLists(len(index.keys), np.float32)
    for block in _blocks(file, source, index):
        listed, values = _ranked(block, "passages", source, file)
        starts = np.minimum(np.cumsum(listed.lengths) - listed.lengths, max(len(listed.rows) - 1, 0))
        first = listed.rows[starts] if len(listed.rows) else starts
        is_valid = (listed.lengths > 0) & (first == index.keys[block.pairs] % index.passages)
        for row in np.flatnonzero(~is_valid)[:1].tolist():
            reason = "the positive is not the first passage: score again"
            raise InputError(reason, file, block.lines[row])
        passages.extend(block.pairs, *listed)
        scores.extend(block.pairs, values, listed.lengths)
    return ScoredLists(passages.done(), scores.done())


def _blocks(file: str, source: SourceData, index: PairIndex) -> Iterator[_Block]:
    """Yield the lines whose pair is in the data, in blocks; a file without any is an error."""
    parsed, count = _parsed(file), 0
    while some := list(islice(parsed, PART)):
        lines, positives, fields = (list(column) for column in zip(*some, strict=True))
        rows = rows_or_fail(source.passages.ids, positives, lines, file)
        pairs = index.find([each["query"] for each in fields], rows)
        known = np.flatnonzero(pairs != ABSENT).tolist()
        count += len(known)
        if known:
            yield _Block([lines[row] for row in known], pairs[known], [fields[row] for row in known])
    if not count:
        raise InputError("no line belongs to a pair of the data: was it made from other data?", file)


def _parsed(file: str) -> Iterator[tuple[int, str, dict[str, Any]]]:
    """Yield (line number, id of the positive, fields) for each line."""
    location = ErrorLocation(file)
    for number, line in numbered_lines(file):
        with location.at(number):
            fields = parse_object(line)
            if not isinstance(fields.get("query"), str) or "positive" not in fields:
                raise InputError(
                    "query or positive is missing: name a file of `citadel mine` or `citadel score`"
                )
            yield number, find_id({"id": fields["positive"]}), fields


def _limit(fields: dict[str, Any], margin: float, file: str, line: int) -> float:
    """Score above which a passage counts as a false negative; null: the positive was not ranked."""
    if margin == -math.inf:
        return math.inf
    positive = fields.get("positive_score", "absent")
    if positive is not None and not isinstance(positive, int | float):
        raise InputError("data.margin needs positive_score, which is missing: mine again", file, line)
    return -math.inf if positive is None else positive - margin


def _dropped(fields: dict[str, Any], file: str, line: int) -> list[str]:
    listed = fields.get("dropped", [])
    if not isinstance(listed, list):
        raise InputError("dropped is not a list of passage ids: mine again", file, line)
    with ErrorLocation(file).at(line):
        return [find_id({"id": id}) for id in listed]


def _rows(source: SourceData, listed: Sequence[Sequence[str]], block: _Block, file: str) -> _Listed:
    """Look up the rows of all listed ids at once."""
    lengths = np.array([len(ids) for ids in listed], np.int64)
    lines = np.repeat(np.array(block.lines, np.int64), lengths)
    ids = list(chain.from_iterable(listed))
    return _Listed(rows_or_fail(source.passages.ids, ids, lines.tolist(), file), lengths)


def _joined(first: _Listed, second: _Listed) -> _Listed:
    """Join two lists per line.

    >>> first, second = _Listed(np.array([1, 2]), np.array([1, 1])), _Listed(np.array([3]), np.array([1, 0]))
    >>> _joined(first, second).rows.tolist()
    [1, 3, 2]
    """
    lines = [np.repeat(np.arange(len(part.lengths)), part.lengths) for part in (first, second)]
    order = np.argsort(np.concatenate(lines), kind="stable")
    return _Listed(np.concatenate([first.rows, second.rows])[order], first.lengths + second.lengths)


def _ranked(block: _Block, key: str, source: SourceData, file: str) -> tuple[_Listed, NDArray[np.float32]]:
    """Read the ids under `key` as rows, and their scores; 0 if the line has no scores."""
    listed, scores = [], list[NDArray[np.float32]]()
    for line, fields in zip(block.lines, block.fields, strict=True):
        ids, values = fields.get(key), fields.get("scores")
        if not isinstance(ids, list) or (
            values is not None and (not isinstance(values, list) or len(values) != len(ids))
        ):
            raise InputError(
                f"{key} and scores are not lists of equal length: make the file again", file, line
            )
        listed.append([str(id) for id in ids])
        try:
            scores.append(np.asarray(values if values is not None else np.zeros(len(ids)), np.float32))
        except (TypeError, ValueError):
            raise InputError("a score is not a number: make the file again", file, line) from None
    return _rows(source, listed, block, file), np.concatenate(scores)
