"""The best hit of each group: of each document with several passages, or of each value of a field.

An engine ranks passages. The first passage of a group in that ranking is the group's best, so the groups in
order of their first passages are the exact ranking of groups. Where the first k passages belong to too few
groups, the search goes on among the passages of other groups.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from citadel._native import first_of_each
from citadel.errors import FilterError, UsageError
from citadel.filter.columns import common_kind
from citadel.filter.kinds import OTHER, STRINGS
from citadel.filter.tree import Compare
from citadel.index.snapshot import Snapshot
from citadel.types import Scored

Mask = NDArray[np.bool_]
Group: TypeAlias = tuple[str, Any]  # ("document", number), ("value", value) or ("boolean", value)
SearchMore = Callable[[int, Sequence[Mask]], Scored]  # best k passages of those in the masks
_GROWTH = 4  # of k from one round to the next


class Groups(Protocol):
    """Which passages belong together."""

    def of(self, passages: NDArray[np.int64]) -> Sequence[Group]:
        """The group of each passage."""
        ...

    def others(self, groups: Iterable[Group]) -> list[Mask]:
        """Per segment, the passages of all other groups."""
        ...


class ByDocument:
    """Passages of one document belong together."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot

    def of(self, passages: NDArray[np.int64]) -> list[Group]:
        return [("document", number) for number in self._snapshot.owners(passages).tolist()]

    def others(self, groups: Iterable[Group]) -> list[Mask]:
        return _without_documents(self._snapshot, [number for _, number in groups])


class ByField:
    """Documents with the same value of a metadata field belong together; one without it is on its own."""

    def __init__(self, snapshot: Snapshot, field: str) -> None:
        if not isinstance(field, str):
            raise UsageError(f"group_by takes the name of a field, not {type(field).__name__}")
        self._snapshot, self._field = snapshot, field
        kind = common_kind(field, [segment.columns for segment in snapshot.segments])
        if kind in (STRINGS, OTHER):
            held = "lists" if kind == STRINGS else "nested values"
            raise FilterError(
                f"group_by needs a field of strings, numbers or booleans: {field!r} holds {held}"
            )

    def of(self, passages: NDArray[np.int64]) -> list[Group]:
        documents = self._snapshot.owners(passages)
        fields = self._snapshot.fields(documents, 0)
        return [
            self._group(number, metadata.get(self._field))
            for number, (_, _, _, metadata) in zip(documents.tolist(), fields, strict=True)
        ]

    def _group(self, number: int, value: Any) -> Group:
        if value is None:
            return "document", number
        return ("boolean" if isinstance(value, bool) else "value"), value  # Python calls True and 1 equal

    def others(self, groups: Iterable[Group]) -> list[Mask]:
        seen = list(groups)
        masks = _without_documents(self._snapshot, [number for kind, number in seen if kind == "document"])
        values = tuple(value for kind, value in seen if kind != "document")
        if not values:
            return masks
        other_values = self._snapshot.allowed_passages(Compare(self._field, "$nin", values))
        return [mask & own for mask, own in zip(masks, other_values, strict=True)]


def _without_documents(snapshot: Snapshot, numbers: list[int]) -> list[Mask]:
    """Per segment, the passages of all documents but these."""
    documents = np.ones(int(snapshot.bases[-1]), np.bool_)
    documents[numbers] = False
    parts = zip(snapshot.segments, snapshot.bases[:-1].tolist(), strict=True)
    return [segment.spread(documents[base : base + segment.documents]) for segment, base in parts]


class GroupRanking:
    """The best passage of each group, collected from one or more searches."""

    def __init__(self, snapshot: Snapshot, groups: Groups, drop_zero: bool) -> None:
        self._snapshot, self._groups, self._drop_zero = snapshot, groups, drop_zero
        self._best: dict[Group, tuple[float, int]] = {}
        self._dropped: list[int] = []  # passages without tokens
        self._dot_products = 0
        self._shards: tuple[int, int] | None = None  # the fewest that a search had an answer of

    def __len__(self) -> int:
        return len(self._best)

    def add(self, scored: Scored) -> None:
        """Take the passages of one search, best first."""
        self._dot_products += scored.dot_products
        if scored.shards is not None:
            self._shards = min(self._shards or scored.shards, scored.shards)
        numbers, scores = scored.numbers, scored.scores
        if self._drop_zero and not scores.all():
            self._dropped += numbers[scores == 0].tolist()
            numbers, scores = numbers[scores != 0], scores[scores != 0]
        groups = self._groups.of(numbers)
        for group, score, number in zip(groups, scores.tolist(), numbers.tolist(), strict=True):
            self._best.setdefault(group, (score, number))

    def others(self) -> list[Mask]:
        """Per segment, the passages that no search has to return again."""
        masks = self._groups.others(self._best)
        for number in self._dropped:
            part = int(np.searchsorted(self._snapshot.passage_bases, number, side="right")) - 1
            masks[part][number - self._snapshot.passage_bases[part]] = False
        return masks

    def scored(self, k: int) -> Scored:
        """The best passages of the best k groups."""
        numbers = np.array([number for _, number in self._best.values()], np.int64)
        scores = np.array([score for score, _ in self._best.values()], np.float32)
        order = np.lexsort((numbers, self._snapshot.positions(numbers), -scores))[:k]
        return Scored(numbers[order], scores[order], self._dot_products, self._shards)


def best_of_documents(snapshot: Snapshot, scored: Scored, searched_k: int, wanted: int) -> Scored | None:
    """The best passage of each of the best `wanted` documents, from a search for `searched_k` passages.

    None if these belong to fewer documents and there may be more."""
    best = first_of_each(snapshot.owners(scored.numbers), wanted)
    if len(best) < wanted and len(scored.numbers) >= searched_k:
        return None
    return scored._replace(numbers=scored.numbers[best], scores=scored.scores[best])


def best_of_groups(
    ranking: GroupRanking,
    first: Scored,
    first_k: int,
    wanted: int,
    min_score: float | None,
    search_more: SearchMore,
) -> Scored:
    """The best passage of each of the best `wanted` groups, from a search for `first_k` passages on."""
    scored, k = first, first_k
    while True:
        ranking.add(scored)
        is_last = len(scored.numbers) < k or not len(scored.numbers)
        if len(ranking) >= wanted or is_last or (min_score is not None and scored.scores[-1] < min_score):
            return ranking.scored(wanted)
        k *= _GROWTH
        scored = search_more(k, ranking.others())
