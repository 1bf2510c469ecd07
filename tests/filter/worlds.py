"""Random metadata and random filters that fit each other often enough."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from unittest import mock

import numpy as np
from hypothesis import strategies as st

BIG = 1 << 53
HUGE = (1 << 1024) - 1  # beyond every float
INTS = (0, 1, 2, -7, BIG, BIG + 1, BIG + 3, -BIG - 3, -BIG - 1, (1 << 63) - 1, -(1 << 63))
FLOATS = (0.0, -0.0, 0.5, 1.0, 2.5, -7.0, float(BIG), float(BIG + 4), 1e300, -1e-300, 9.3e18)
WORDS = ("", "a", "b", "ab", "é", "\0", "🦊", "zebra")
DATES = (
    "2024-05-17",
    "2024-05-17T12:00:00Z",
    "2024-05-17T12:00+02:00",
    "1969-12-31",
    "0001-01-01T00:00+01:00",
)
FIELDS = ("f", "g", "h.i")

ints, floats, words, dates = (st.sampled_from(values) for values in (INTS, FLOATS, WORDS, DATES))
lists = st.lists(words, max_size=3)
others = st.sampled_from(([1], ["a", 1], {"a": 1}, 1 << 63, [[]]))
anything = st.one_of(ints, floats, words, dates, lists, others, st.booleans())
kinds = st.sampled_from(
    (ints, floats, st.one_of(st.sampled_from(INTS[:4]), floats), words, dates, lists, st.booleans())
)
column_values = st.one_of(kinds, kinds, kinds, st.just(others), st.just(anything))


@st.composite
def documents(draw: st.DrawFn) -> list[dict[str, Any]]:
    """The metadata of some rows; most fields hold one kind of value."""
    rows = draw(st.integers(1, 20))
    values = {name: st.one_of(st.none(), draw(column_values)) for name in FIELDS}
    density = draw(st.sampled_from((1, 2, 8)))
    made: list[dict[str, Any]] = []
    for _ in range(rows):
        chosen = [name for name in FIELDS if draw(st.integers(1, density)) == 1]
        made.append({name: draw(values[name]) for name in chosen})
    return made


scalars = st.one_of(ints, floats, words, dates, st.booleans(), st.just(1 << 70), st.just(HUGE))
bounds = st.one_of(ints, floats, dates, st.none(), st.sampled_from((1 << 70, -(1 << 70), HUGE, 1.5)))
members = st.one_of(st.lists(scalars, max_size=4), st.lists(scalars, min_size=9, max_size=30))
conditions = st.one_of(
    st.one_of(scalars, st.none(), lists),
    st.builds(
        lambda name, value: {name: value}, st.sampled_from(("$eq", "$ne")), st.one_of(scalars, st.none())
    ),
    st.builds(lambda name, value: {name: value}, st.sampled_from(("$gt", "$gte", "$lt", "$lte")), bounds),
    st.builds(lambda name, value: {name: value}, st.sampled_from(("$in", "$nin")), members),
    st.builds(lambda name, value: {name: value}, st.sampled_from(("$contains", "$not_contains")), words),
    st.builds(lambda value: {"$exists": value}, st.booleans()),
)
leaves = st.builds(lambda name, value: {name: value}, st.sampled_from((*FIELDS, "missing")), conditions)
filters = st.recursive(
    st.one_of(leaves, st.just({})),
    lambda inner: st.one_of(
        st.builds(lambda part: {"$not": part}, inner),
        st.builds(lambda parts: {"$and": parts}, st.lists(inner, min_size=1, max_size=3)),
        st.builds(lambda parts: {"$or": parts}, st.lists(inner, min_size=1, max_size=3)),
        st.builds(lambda leaf, part: leaf | {"$not": part}, leaves, inner),
    ),
    max_leaves=5,
)


def reader(rows: Sequence[Mapping[str, Any]]) -> Callable[[np.ndarray], Iterable[Mapping[str, Any]]]:
    """What `mask` asks for the metadata of stored documents."""
    return lambda numbers: (rows[number] for number in numbers)


@contextmanager
def small_dictionaries(entries: int, bits: int = 64):
    """Columns with more distinct strings than this are hashed, with so few bits that hashes collide."""
    from citadel.filter import column, dictionary, tokens

    def hash_of(text: str) -> int:
        return dictionary.hash_of(text) & ((1 << bits) - 1)

    with (
        mock.patch.object(tokens, "MAX_ENTRIES", entries),
        mock.patch.object(tokens, "hash_of", hash_of),
        mock.patch.object(column, "hash_of", hash_of),
    ):
        yield
