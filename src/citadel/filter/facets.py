"""How often each value of a field occurs among the rows that a filter allows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import numpy as np

from citadel.filter.column import Column, ListColumn, NumberColumn, StringColumn
from citadel.filter.evaluate import Stored
from citadel.filter.kinds import BOOL, require_one_kind
from citadel.filter.presence import Mask
from citadel.filter.tree import Scalar


def facet(column: Column, mask: Mask, stored: Stored) -> list[tuple[Scalar, int]]:
    """The values of allowed rows with the number of rows that have each; most frequent first, ties by value.

    A row counts once for each distinct member of its list. `stored` reads hashed strings.

    >>> from citadel.filter.build import build_column
    >>> column = build_column("lang", [{"lang": "en"}, {"lang": "de"}, {"lang": "en"}, {}])
    >>> facet(column, np.ones(4, bool), stored=lambda rows: [])
    [('en', 2), ('de', 1)]
    """
    require_one_kind(column.name, column.kinds or (column.kind,), column.is_exact)
    try:
        counts = _counts(column, mask, stored)
    finally:
        column.require_whole()
    return ranked(counts)


def ranked(counts: Mapping[Scalar, int]) -> list[tuple[Scalar, int]]:
    """Values by falling count, ties by value; also for counts that were added over segments.

    >>> ranked({"a": 1, "c": 2, "b": 2})
    [('b', 2), ('c', 2), ('a', 1)]
    """
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))


def _counts(column: Column, mask: Mask, stored: Stored) -> Mapping[Scalar, int]:
    if column.is_hashed:
        return _stored_counts(column, mask, stored)
    allowed = column.presence.gather(mask)
    if isinstance(column, NumberColumn):
        values, counts = np.unique(column.values[allowed], return_counts=True)
        found = values.astype(bool) if column.kind == BOOL else values
        return dict(zip(found.tolist(), counts.tolist(), strict=True))
    assert isinstance(column, StringColumn | ListColumn) and column.dictionary is not None
    if isinstance(column, StringColumn):
        occurrences = np.bincount(column.tokens[allowed])
    else:
        assert column.postings is not None
        occurrences = column.postings.counts(allowed)
    codes = np.flatnonzero(occurrences)
    names = map(column.dictionary.__getitem__, codes.tolist())
    return dict(zip(names, occurrences[codes].tolist(), strict=True))


def _stored_counts(column: Column, mask: Mask, stored: Stored) -> Counter[Scalar]:
    counts: Counter[Scalar] = Counter()
    for metadata in stored(np.flatnonzero(mask & column.presence.mask())):
        value = metadata.get(column.name, ())
        counts.update([value] if isinstance(value, str) else set(value))
    return counts
