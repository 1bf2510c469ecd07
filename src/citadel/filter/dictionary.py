"""The distinct strings of a column, sorted, as one block of UTF-8; and hashes where there are too many."""

from __future__ import annotations

import bisect
import hashlib
import itertools
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

MAX_ENTRIES = 1 << 16  # so that a code has two bytes
MAX_BYTES = 4 << 20


class Dictionary:
    """Strings by code; codes rise in the order of the strings.

    >>> dictionary = Dictionary.of(["de", "en"])
    >>> len(dictionary), dictionary.code("en"), dictionary.code("fr"), dictionary[0]
    (2, 1, None, 'de')
    """

    def __init__(self, offsets: NDArray[np.uint32], octets: NDArray[np.uint8]) -> None:
        self.offsets, self.octets = offsets, octets
        self._bytes = octets.tobytes()

    @classmethod
    def of(cls, strings: Iterable[str]) -> Dictionary:
        """A dictionary of strings that are distinct and sorted."""
        encoded = [text.encode() for text in strings]
        offsets = np.zeros(len(encoded) + 1, np.uint32)
        np.cumsum([len(text) for text in encoded], out=offsets[1:])
        return cls(offsets, np.frombuffer(b"".join(encoded), np.uint8))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, code: int) -> str:
        return self._entry(code).decode()

    def _entry(self, code: int) -> bytes:
        return self._bytes[self.offsets[code] : self.offsets[code + 1]]

    def code(self, text: str) -> int | None:
        """The code of a string; None where no row has it."""
        wanted = text.encode()
        code = bisect.bisect_left(range(len(self)), wanted, key=self._entry)
        return code if code < len(self) and self._entry(code) == wanted else None

    def problem(self) -> str | None:
        """What is wrong with a dictionary that was read from a file, if anything."""
        if not 0 < len(self.offsets) <= MAX_ENTRIES + 1 or len(self._bytes) > MAX_BYTES:
            return "its dictionary has no offsets or is too large"
        if self.offsets[0] != 0 or self.offsets[-1] != len(self._bytes):
            return "its dictionary does not fit its strings"
        if (self.offsets[1:] < self.offsets[:-1]).any():
            return "the offsets of its dictionary fall"
        entries = [self._bytes[start:stop] for start, stop in itertools.pairwise(self.offsets.tolist())]
        if any(second <= first for first, second in itertools.pairwise(entries)):
            return "its dictionary is not sorted"
        return None if self._is_text() else "its dictionary is not UTF-8"

    def _is_text(self) -> bool:
        """Whether each entry is UTF-8: all bytes together are, and no entry begins inside a character."""
        starts = self.offsets[:-1][self.offsets[:-1] < len(self._bytes)]
        if (self.octets[starts] & 0xC0 == 0x80).any():
            return False
        try:
            self._bytes.decode()
        except UnicodeDecodeError:
            return False
        return True


def hash_of(text: str) -> int:
    """The 64-bit hash that replaces a string in a column with too many distinct ones.

    >>> hash_of("en") < 1 << 64
    True
    """
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")
