"""Deletions from a bm25 segment: documents, their tokens, and document frequencies."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from citadel.errors import CorruptIndexError
from citadel.index.growable import Spool
from citadel.index.packing import WINDOW, windows
from citadel.index.segment import Segment
from citadel.index.storage import Storage
from citadel.index.tombstones import Deleted
from citadel.text.analyser import Analyser

Ranks = NDArray[np.int64]
_TERMS_PER_LOOKUP = 1 << 14


class NumberSet:
    """An immutable set of document numbers: a sorted array of 4 bytes each (a Python set takes 80).

    >>> numbers = NumberSet().union([9, 2])
    >>> 9 in numbers, 3 in numbers, numbers.values.tolist()
    (True, False, [2, 9])
    """

    def __init__(self, values: NDArray[np.uint32] | None = None) -> None:
        self.values = np.zeros(0, np.uint32) if values is None else values  # ascending

    def __len__(self) -> int:
        return len(self.values)

    def __contains__(self, number: int) -> bool:
        position = int(np.searchsorted(self.values, np.uint32(number)))
        return position < len(self.values) and int(self.values[position]) == number

    def union(self, numbers: Iterable[int]) -> NumberSet:
        """A set with these numbers added."""
        return NumberSet(union_of(self.values, np.fromiter(numbers, np.uint32)))


def union_of(left: NDArray[np.uint32], right: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """The distinct numbers of both, ascending, in a tenth of the memory of numpy's union.

    >>> union_of(np.array([2, 9], np.uint32), np.array([9, 4], np.uint32)).tolist()
    [2, 4, 9]
    """
    numbers = np.concatenate([left, right])
    numbers.sort()
    is_new = np.ones(len(numbers), np.bool_)
    np.not_equal(numbers[1:], numbers[:-1], out=is_new[1:])
    return numbers if is_new.all() else numbers[is_new]


def extend_deleted(
    storage: Storage, segment: Segment, before: Deleted, fresh: NDArray[np.uint32], analyser: Analyser
) -> Deleted:
    """Add the documents `fresh` (ascending) to the deletions of a bm25 segment."""
    documents = union_of(before.documents, fresh)
    counts = TermCounts(storage, segment.lists)
    counts.add(before.term_ranks, before.term_counts)
    for ranks in _removed_ranks(segment, fresh, analyser):
        counts.add(*np.unique(ranks, return_counts=True))
    removed = before.removed_length + int(segment.lengths[fresh].sum())
    return Deleted(documents, *counts.totals(), removed)


def _removed_ranks(segment: Segment, fresh: NDArray[np.uint32], analyser: Analyser) -> Iterator[Ranks]:
    """The ranks of each document's distinct terms, in arrays of several documents."""
    lists = _TermLists(segment)
    terms, owners = list[bytes](), list[str]()
    parts = (segment.store.rows(part.tolist()) for part in windows(fresh))
    for _, id, title, text, _, _ in itertools.chain.from_iterable(parts):
        own = set[str]().union(*analyser.windows(f"{title} {text}".strip()))
        terms += [term.encode() for term in own]
        owners += [id] * len(own)
        if len(terms) >= _TERMS_PER_LOOKUP:
            yield lists.find(terms, owners)
            terms, owners = [], []
    yield lists.find(terms, owners)


class _TermLists:
    """Term lookup in the mapped segment, without a table of all terms."""

    def __init__(self, segment: Segment) -> None:
        from citadel import _native

        self._name, self._error, meta = segment.name, _native.CorruptError, segment.meta
        sections = [(section.name, section.data, section.crcs) for section in segment.file.sections.values()]
        fields = (meta.kind, meta.dimension, meta.codec, meta.semantic_dimension, meta.semantic_codec)
        native = _native.Segment(segment.name, segment.documents, *fields, sections, None, None)
        self._native = _native.Snapshot([native], False, 0.0, 0.0)

    def find(self, terms: Sequence[bytes], owners: Sequence[str]) -> NDArray[np.int64]:
        """The list of each term [n]; `owners` has the document id of each."""
        try:
            lists: NDArray[np.int64] = self._native.find_terms(terms)[0]
        except self._error as error:
            raise CorruptIndexError(*[*str(error).split("\t"), "", ""][:3]) from error
        missing = np.flatnonzero(lists < 0)
        if len(missing):
            problem = f"it lacks a term of document {owners[int(missing[0])]!r}"
            raise CorruptIndexError(self._name, "TERM_BYTES", problem)
        return lists


class TermCounts:
    """Sum sparse counts per term, one window of terms in memory at a time."""

    def __init__(self, storage: Storage, lists: int) -> None:
        self._storage, self._lists = storage, lists
        self._ranks, self._counts, self._ends = Spool(storage, "<u4"), Spool(storage, "<u4"), [0]

    def add(self, ranks: NDArray[np.integer], counts: NDArray[np.integer]) -> None:
        """Add counts to terms, given by their ranks in ascending order."""
        self._ranks.append(ranks)
        self._counts.append(counts)
        self._ends.append(self._ends[-1] + len(ranks))

    def totals(self) -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
        """The ranks with a count, ascending, and their counts; ends the sum."""
        ranks, counts = self._ranks.values(), self._counts.values()
        runs = [(ranks[first:stop], counts[first:stop]) for first, stop in itertools.pairwise(self._ends)]
        all_ranks, all_counts = Spool(self._storage, "<u4"), Spool(self._storage, "<u4")
        for start in range(0, self._lists, WINDOW):
            total = np.zeros(min(WINDOW, self._lists - start), np.int64)
            for own, amounts in runs:
                part = slice(*np.searchsorted(own, np.array([start, start + len(total)], np.uint32)).tolist())
                total[own[part] - np.uint32(start)] += amounts[part]
            used = np.flatnonzero(total)
            all_ranks.append(start + used)
            all_counts.append(total[used])
        return all_ranks.values(), all_counts.values()
