"""Listing the live documents of a generation: ids, documents, counts and facets, all with a filter."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from citadel.filter.columns import common_kind, ranked
from citadel.filter.fields import describe_fields
from citadel.filter.tree import Filter, Scalar
from citadel.index.snapshot import Snapshot
from citadel.types import Document

if TYPE_CHECKING:
    from citadel._native import Cancel


def count_documents(snapshot: Snapshot, filter: Filter | None = None) -> int:
    """The number of live documents that match a filter."""
    if filter is None:
        return len(snapshot)
    with snapshot.whole():
        return sum(int(mask.sum()) for _, _, mask in snapshot.live_allowed(filter))


def list_ids(snapshot: Snapshot, filter: Filter | None = None, batch: int = 1000) -> Iterator[str]:
    """The ids of live documents in the order they were added."""
    for segment, _, mask in snapshot.live_allowed(filter):
        numbers = np.flatnonzero(mask)
        for start in range(0, len(numbers), batch):
            with snapshot.whole():
                ids = segment.ids(numbers[start : start + batch].tolist())
            yield from ids


def list_documents(
    snapshot: Snapshot, filter: Filter | None = None, batch: int = 100
) -> Iterator[list[Document]]:
    """Live documents in the order they were added, up to `batch` at a time."""
    for segment, _, mask in snapshot.live_allowed(filter):
        numbers = np.flatnonzero(mask).tolist()
        for start in range(0, len(numbers), batch):
            yield segment.store.get(numbers[start : start + batch])


def list_numbers(
    snapshot: Snapshot,
    filter: Filter | None = None,
    start: int = 0,
    count: int | None = None,
    cancel: Cancel | None = None,
) -> NDArray[np.int64]:
    """Up to `count` index-wide numbers of live documents from `start` on, ascending: the commit order."""
    parts: list[NDArray[np.int64]] = [np.zeros(0, np.int64)]
    missing = len(snapshot) if count is None else count
    with snapshot.whole():
        for _, base, mask in snapshot.live_allowed(filter, cancel):
            numbers = np.flatnonzero(mask[max(start - base, 0) :])[:missing] + max(base, start)
            parts.append(numbers)
            missing -= len(numbers)
    return np.concatenate(parts)


def count_values(
    snapshot: Snapshot, field: str, filter: Filter | None = None, limit: int | None = None
) -> list[tuple[Scalar, int]]:
    """The values of a field among matching documents with their counts, most frequent first."""
    return count_fields(snapshot, [field], filter, limit)[field]


def count_fields(
    snapshot: Snapshot,
    fields: Sequence[str],
    filter: Filter | None = None,
    limit: int | None = None,
    cancel: Cancel | None = None,
) -> dict[str, list[tuple[Scalar, int]]]:
    """`count_values` of several fields; the filter is evaluated once."""
    for field in fields:
        common_kind(field, [segment.columns.until(cancel) for segment in snapshot.segments])
    with snapshot.whole():
        parts = [(segment.columns, mask) for segment, _, mask in snapshot.live_allowed(filter, cancel)]
        facets = {}
        for field in fields:
            counts: Counter[Scalar] = Counter()
            for columns, mask in parts:
                counts.update(dict(columns.facet(field, mask, cancel)))
            facets[field] = ranked(counts)[:limit]
    return facets


def unknown_fields(snapshot: Snapshot, names: Iterable[str], cancel: Cancel | None = None) -> list[str]:
    """Those of some metadata fields that no document has, such as misspelt ones."""
    with snapshot.whole():
        columns = [segment.columns.until(cancel) for segment in snapshot.segments]
        return [name for name in dict.fromkeys(names) if all(part.column(name) is None for part in columns)]


def list_fields(snapshot: Snapshot, cancel: Cancel | None = None) -> dict[str, str]:
    """The metadata fields of all segments with what they hold; deleted documents count until a merge."""
    with snapshot.whole():
        return describe_fields([segment.columns.kinds(cancel) for segment in snapshot.segments])
