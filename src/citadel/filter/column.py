"""The column of one field in one segment: its values as arrays, and what holds for them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from citadel.filter.dictionary import Dictionary, hash_of
from citadel.filter.kinds import BOOL, INT, MIXED
from citadel.filter.presence import Mask, Presence
from citadel.filter.scan import any_in_lists, codes_in, equal_lists, is_in, numbers_in, ordered
from citadel.filter.tree import ORDERING, Compare, Instant

_EXACT = 1 << 53  # every integer up to it is a float64


@dataclass(frozen=True)
class Column:
    """A field of some kind; this base has presence alone, for values that cannot be compared.

    `kinds` lists what a mixed column holds. `require_whole` raises when a mapped file was cut short.
    """

    name: str
    kind: str
    presence: Presence
    kinds: tuple[str, ...] = ()
    require_whole: Callable[[], None] = field(default=lambda: None, repr=False, compare=False, kw_only=True)

    is_date = False  # whether every string is an ISO date
    is_hashed = False  # whether equality must be confirmed against the stored documents

    @property
    def is_exact(self) -> bool:
        """Whether float64 holds every int exactly; not so where ints and floats are mixed."""
        return self.kind != MIXED

    def holds(self, part: Compare) -> Mask:
        """The rows for which a comparison without negation holds [rows]; a new array."""
        raise NotImplementedError(f"{self.kind} columns are refused before they are evaluated: {part}")

    def arrays(self) -> dict[str, NDArray[Any] | None]:
        """The arrays of the column by role, as they are written; None: not needed."""
        return {"positions": self.presence.positions, "presence": self.presence.bits}


@dataclass(frozen=True)
class NumberColumn(Column):
    """Int, float or bool values."""

    values: NDArray[Any] = field(kw_only=True)  # int64, float64 or uint8 [size]

    def holds(self, part: Compare) -> Mask:
        if part.operator in ORDERING:
            assert isinstance(part.value, int | float)
            return self.presence.spread(ordered(self.values, part.operator, part.value))
        operands = part.value if part.operator == "$in" else (part.value,)
        assert isinstance(operands, tuple)
        if self.kind == BOOL:
            wanted = {value for value in operands if isinstance(value, bool)}
            return self.presence.spread(codes_in(self.values, np.isin([False, True], list(wanted))))
        numbers = [x for x in operands if isinstance(x, int | float) and not isinstance(x, bool)]
        return self.presence.spread(numbers_in(self.values, numbers))

    @cached_property
    def is_exact(self) -> bool:
        return self.kind != INT or holds_exactly(self.values)

    def arrays(self) -> dict[str, NDArray[Any] | None]:
        return super().arrays() | {"values": self.values}


@dataclass(frozen=True)
class _TextColumn(Column):
    """Strings as tokens: codes of a dictionary, or hashes where there are too many distinct ones."""

    tokens: NDArray[Any] = field(kw_only=True)  # uint8 or uint16 codes, or uint64 hashes
    dictionary: Dictionary | None = field(kw_only=True)

    @property
    def is_hashed(self) -> bool:  # type: ignore[override]
        return self.dictionary is None

    def token(self, text: str) -> int | None:
        """The token of a string; None where no row has the string."""
        return hash_of(text) if self.dictionary is None else self.dictionary.code(text)

    def known_tokens(self, operands: Any) -> set[int]:
        """The tokens of those operands that are strings of this column."""
        tokens = (self.token(text) for text in operands if isinstance(text, str))
        return {token for token in tokens if token is not None}

    def tokens_in(self, operands: Any) -> Mask:
        """Tokens of any of the given strings; operands of other types match none."""
        tokens = self.known_tokens(operands)
        if self.dictionary is None:
            return is_in(self.tokens, np.array(sorted(tokens), np.uint64))
        wanted = np.zeros(len(self.dictionary), bool)
        wanted[list(tokens)] = True
        return codes_in(self.tokens, wanted)

    def arrays(self) -> dict[str, NDArray[Any] | None]:
        if self.dictionary is None:
            return super().arrays() | {"hashes": self.tokens}
        entries, offsets = self.dictionary.octets, self.dictionary.offsets
        return super().arrays() | {"codes": self.tokens, "entry_offsets": offsets, "entries": entries}


@dataclass(frozen=True)
class StringColumn(_TextColumn):
    """One string per row; `instants` are there when all strings are ISO dates."""

    instants: NDArray[np.int64] | None = field(kw_only=True)  # of each dictionary entry, or of each hash

    @property
    def is_date(self) -> bool:  # type: ignore[override]
        return self.instants is not None

    def holds(self, part: Compare) -> Mask:
        if part.operator in ORDERING:
            assert isinstance(part.value, Instant) and self.instants is not None
            hits = ordered(self.instants, part.operator, part.value.microseconds)
            if self.dictionary is not None:
                hits = codes_in(self.tokens, hits)
        else:
            hits = self.tokens_in(part.value if part.operator == "$in" else (part.value,))
        return self.presence.spread(hits)

    def arrays(self) -> dict[str, NDArray[Any] | None]:
        return super().arrays() | {"instants": self.instants}


class Postings(NamedTuple):
    """For each entry of a dictionary, the lists that have it, ascending.

    >>> postings = Postings.invert(np.array([1, 0, 1, 1], np.uint8), np.array([0, 2, 4]), 2)  # [1, 0], [1, 1]
    >>> postings.of(0).tolist(), postings.of(1).tolist()
    ([0], [0, 1])
    """

    starts: NDArray[np.int64]  # [entries + 1]
    lists: NDArray[np.uint32]

    @classmethod
    def invert(cls, codes: NDArray[Any], offsets: NDArray[np.int64], entries: int) -> Postings:
        """Postings of lists of codes, each list once per code."""
        order = np.argsort(codes, kind="stable")
        lists = np.repeat(np.arange(len(offsets) - 1, dtype=np.uint32), np.diff(offsets))[order]
        codes = codes[order]
        is_new = np.ones(len(codes), bool)
        is_new[1:] = (codes[1:] != codes[:-1]) | (lists[1:] != lists[:-1])
        starts = np.searchsorted(codes[is_new], np.arange(entries + 1))
        return cls(starts.astype(np.int64), lists[is_new])

    def of(self, code: int) -> NDArray[np.uint32]:
        return self.lists[self.starts[code] : self.starts[code + 1]]

    def counts(self, allowed: Mask) -> NDArray[np.int64]:
        """How many of the allowed lists have each entry."""
        sums = np.concatenate([[0], np.cumsum(allowed[self.lists])])
        return np.diff(sums[self.starts])


@dataclass(frozen=True)
class ListColumn(_TextColumn):
    """A list of strings per row."""

    offsets: NDArray[np.int64] = field(kw_only=True)  # [size + 1]
    postings: Postings | None = field(kw_only=True)  # of the dictionary's entries

    def holds(self, part: Compare) -> Mask:
        if part.operator == "$eq" and isinstance(part.value, tuple):
            return self.presence.spread(self._equal(part.value))
        operands = part.value if part.operator == "$in" else (part.value,)
        if self.postings is None:
            return self.presence.spread(any_in_lists(self.tokens_in(operands), self.offsets))
        mask = np.zeros(self.presence.size, bool)
        for code in self.known_tokens(operands):
            mask[self.postings.of(code)] = True
        return self.presence.spread(mask)

    def _equal(self, members: tuple[object, ...]) -> Mask:
        tokens = [self.token(text) if isinstance(text, str) else None for text in members]
        if None in tokens:
            return np.zeros(self.presence.size, bool)
        return equal_lists(self.tokens, self.offsets, np.array(tokens, self.tokens.dtype))

    def arrays(self) -> dict[str, NDArray[Any] | None]:
        arrays = super().arrays() | {"offsets": self.offsets}
        if self.postings is not None:
            arrays |= {"posting_starts": self.postings.starts, "posting_lists": self.postings.lists}
        return arrays


def holds_exactly(ints: NDArray[np.int64]) -> bool:
    """Whether float64 holds all of these integers exactly.

    >>> holds_exactly(np.array([1 << 60])), holds_exactly(np.array([(1 << 60) + 1]))
    (True, False)
    """
    if not len(ints) or (ints.min() >= -_EXACT and ints.max() <= _EXACT):
        return True
    magnitudes = np.abs(ints).view(np.uint64)  # of -2**63: 2**63
    magnitudes = magnitudes[magnitudes > 0]
    lowest_bits = magnitudes & (~magnitudes + np.uint64(1))
    return bool((magnitudes // lowest_bits <= _EXACT).all())
