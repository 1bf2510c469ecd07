"""Large lists of texts and ids: bytes on disk and sorted hashes in memory."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import Self

import numpy as np
from numpy.typing import NDArray

from citadel.errors import InputError
from citadel.text.parse import shorten
from citadel.train.ragged import Ragged, Rows
from citadel.train.spill import BLOCK, Spill

ABSENT = -1


class TextStore:
    """Append-only list of texts on disk.

    >>> texts = TextStore(["one", "zwölf"])
    >>> texts[1], len(texts), texts.some([0])
    ('zwölf', 2, ['one'])
    """

    def __init__(self, texts: Iterable[str] = ()) -> None:
        self._bytes = Spill()
        self._ends = array("q", [0])
        for text in texts:
            self.append(text)

    @classmethod
    def joined(cls, table: Ragged) -> Self:
        """Build from UTF-8 bytes, as returned by `flat`.

        >>> list(TextStore.joined(Ragged(*TextStore(["zwölf", ""]).flat())))
        ['zwölf', '']
        """
        store = cls()
        for start in range(0, len(table.values), BLOCK):
            store._bytes.append(table.values[start : start + BLOCK].tobytes())
        store._ends = array("q", table.offsets.tobytes())
        return store

    def flat(self) -> tuple[NDArray[np.uint8], Rows]:
        """Return the concatenated UTF-8 bytes of all texts, in memory, and their offsets."""
        data = np.frombuffer(self._bytes.read(0, len(self._bytes)), np.uint8)
        return data, np.array(self._ends, np.int64)

    def held(self) -> TextsInMemory:
        """Load all texts into memory, for millions of look-ups."""
        data, ends = self.flat()
        return TextsInMemory(data.tobytes(), ends)

    def append(self, text: str) -> None:
        self._ends.append(self._bytes.append(text.encode("utf-8")))

    def __len__(self) -> int:
        return len(self._ends) - 1

    def __getitem__(self, row: int) -> str:
        if not 0 <= row < len(self):
            raise IndexError(row)
        return self._bytes.read(self._ends[row], self._ends[row + 1]).decode("utf-8")

    def some(self, rows: Iterable[int]) -> list[str]:
        """The texts of these rows."""
        return [self[row] for row in rows]

    def __iter__(self) -> Iterator[str]:
        return (self[row] for row in range(len(self)))

    def digest(self) -> bytes:
        """SHA-256 of all texts and their offsets."""
        digest = hashlib.sha256(self._ends.tobytes())
        for start in range(0, len(self._bytes), BLOCK):
            digest.update(self._bytes.read(start, min(start + BLOCK, len(self._bytes))))
        return digest.digest()


class TextsInMemory:
    """Texts in memory, for fast lookup.

    >>> TextStore(["one", "zwölf"]).held().some([1, 0])
    ['zwölf', 'one']
    """

    def __init__(self, joined: bytes, ends: Rows) -> None:
        self._joined, self._ends = joined, array("q", ends.tobytes())

    def __getitem__(self, row: int) -> str:
        return self._joined[self._ends[row] : self._ends[row + 1]].decode("utf-8")

    def some(self, rows: Iterable[int]) -> list[str]:
        """The texts of these rows."""
        return [self[row] for row in rows]


class UniqueTexts:
    """Distinct texts; only a hash of each is in memory.

    >>> distinct = UniqueTexts()
    >>> [distinct.add(text) for text in ("who", "why", "who")], list(distinct.texts)
    ([0, 1, 0], ['who', 'why'])
    """

    def __init__(self) -> None:
        self.texts = TextStore()
        self._rows: dict[int, int] = {}

    def add(self, text: str) -> int:
        """Return the row of a text, adding it if it is new."""
        key, new = hash(text), len(self.texts)
        while (row := self._rows.setdefault(key, new)) != new and self.texts[row] != text:
            key += 1
        if row == new:
            self.texts.append(text)
        return row


class IdIndex:
    """Index from id to row.

    >>> ids = IdIndex(TextStore(["d1", "d2"]))
    >>> ids.rows(["d2", "d9"]).tolist()
    [1, -1]
    """

    def __init__(self, texts: TextStore) -> None:
        self.texts = texts
        hashes = np.fromiter((hash(id) for id in texts), np.int64, len(texts))  # [rows]
        self._order = np.argsort(hashes, kind="stable")
        self._hashes = hashes[self._order]

    def __len__(self) -> int:
        return len(self.texts)

    def repeated(self) -> int:
        """Return the first row with a repeated id, or ABSENT."""
        indices = np.flatnonzero(self._hashes[1:] == self._hashes[:-1])
        pairs = ((int(self._order[index]), int(self._order[index + 1])) for index in indices)
        return min(
            (second for first, second in pairs if self.texts[first] == self.texts[second]), default=ABSENT
        )

    def rows(self, ids: TextStore | Sequence[str]) -> Rows:
        """Return the row of each id, ABSENT if unknown."""
        hashes = np.fromiter((hash(id) for id in ids), np.int64, len(ids))
        indices = np.minimum(np.searchsorted(self._hashes, hashes), len(self) - 1)
        # 64-bit keyed hashes: a collision among a billion ids is negligible.
        return np.where(self._hashes[indices] == hashes, self._order[indices], ABSENT)


def rows_or_fail(index: IdIndex, ids: TextStore | Sequence[str], lines: Sequence[int], source: str) -> Rows:
    """Return the row of each id; an id that is not in the collection is an InputError with its line.

    >>> rows_or_fail(IdIndex(TextStore(["d1"])), ["d9"], [4], "pairs.jsonl")
    Traceback (most recent call last):
    citadel.errors.InputError: pairs.jsonl:4: the passage id 'd9' is not in the collection: correct the id or
    ...
    """
    rows = index.rows(ids)
    for position in np.flatnonzero(rows == ABSENT)[:1].tolist():
        reason = f"the passage id {shorten(ids[position])} is not in the collection"
        raise InputError(f"{reason}: correct the id or add the passage", source, lines[position])
    return rows
