"""Collects the strings of a column as codes, and as hashes once there are too many distinct ones."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citadel.filter.dates import microseconds
from citadel.filter.dictionary import MAX_BYTES, MAX_ENTRIES, Dictionary, hash_of

MAX_MEMORY = 256 << 20  # bytes that all dictionaries of a segment take while they grow
_ENTRY = 160  # bytes of a string, its hash table slot and its code, besides the text
_BYTE = 256  # entries whose codes fit one byte


class Budget:
    """Memory that the dictionaries of one segment share."""

    def __init__(self, limit: int = MAX_MEMORY) -> None:
        self._left = limit

    def take(self, size: int) -> bool:
        """Whether this much was left; if so it is taken."""
        if size > self._left:
            return False
        self._left -= size
        return True

    def give_back(self, size: int) -> None:
        self._left += size


class Tokens:
    """The strings of one column, in order; with their instants, if all of them are ISO dates.

    >>> tokens = Tokens(Budget())
    >>> for text in ("en", "de", "en"):
    ...     tokens.add(text)
    >>> codes, dictionary, instants = tokens.finish()
    >>> codes.tolist(), dictionary[0], instants
    ([1, 0, 1], 'de', None)
    """

    def __init__(self, budget: Budget) -> None:
        self._budget, self._taken = budget, 0
        self._known: dict[str, int] = {}
        self._bytes = 0
        self._codes = array("I")  # in order of first use
        self._hashes: array[int] | None = None  # instead of codes, once the dictionary is full
        self._instants: array[int] | None = None  # of each hash

    def __len__(self) -> int:
        return len(self._codes if self._hashes is None else self._hashes)

    def add(self, text: str) -> None:
        code = self._known.get(text)
        if code is None and self._hashes is None:
            code = self._new_code(text)
        if code is None:
            self._add_hash(text)
        else:
            self._codes.append(code)

    def _new_code(self, text: str) -> int | None:
        """The code of a string seen for the first time; None where the dictionary is full."""
        size = len(text.encode())
        is_full = len(self._known) >= MAX_ENTRIES or self._bytes + size > MAX_BYTES
        if is_full or not self._budget.take(size + _ENTRY):
            self._hash_all()
            return None
        self._bytes, self._taken = self._bytes + size, self._taken + size + _ENTRY
        self._known[text] = len(self._known)
        return len(self._known) - 1

    def _hash_all(self) -> None:
        """Replace codes by hashes and drop the dictionary."""
        hashes = np.array([hash_of(text) for text in self._known], np.uint64)
        instants = _instants(self._known)
        self._hashes = array("Q", self._per_string(hashes).tobytes())
        if instants is not None:
            self._instants = array("q", self._per_string(instants).tobytes())
        self._known, self._codes = {}, array("I")
        self._budget.give_back(self._taken)

    def _per_string(self, values: NDArray[Any]) -> NDArray[Any]:
        """A value for each string, from one for each distinct string in order of first use."""
        return values[np.frombuffer(self._codes, np.uint32)]

    def _add_hash(self, text: str) -> None:
        assert self._hashes is not None
        self._hashes.append(hash_of(text))
        if self._instants is not None:
            instant = microseconds(text)
            if instant is None:
                self._instants = None
            else:
                self._instants.append(instant)

    def finish(self) -> tuple[NDArray[Any], Dictionary | None, NDArray[np.int64] | None]:
        """Codes with a dictionary and its instants, or hashes with theirs."""
        if self._hashes is not None:
            instants = None if self._instants is None else np.frombuffer(self._instants, np.int64)
            return np.frombuffer(self._hashes, np.uint64), None, instants
        strings = sorted(self._known)
        ranks = np.empty(len(strings), np.uint8 if len(strings) <= _BYTE else np.uint16)
        for rank, text in enumerate(strings):
            ranks[self._known[text]] = rank
        return self._per_string(ranks), Dictionary.of(strings), _instants(strings)


def _instants(strings: Iterable[str]) -> NDArray[np.int64] | None:
    """The instants of some strings; None where one of them is not a date."""
    instants = array("q")
    for text in strings:
        instant = microseconds(text)
        if instant is None:
            return None
        instants.append(instant)
    return np.frombuffer(instants, np.int64)
