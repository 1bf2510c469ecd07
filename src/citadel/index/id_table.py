"""The ids of a segment's documents: by number, and by hash."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from citadel._native import read_ids
from citadel.index.container import CitFile
from citadel.index.packing import rises
from citadel.text.parse import MAX_ID

IDS_PER_PART = 1 << 16


def id_hashes(ids: Iterable[str]) -> NDArray[np.uint64]:
    """64-bit hashes of ids.

    >>> id_hashes(["d1"]).dtype.name
    'uint64'
    """
    digests = (hashlib.blake2b(id.encode(), digest_size=8).digest() for id in ids)
    return np.frombuffer(b"".join(digests), "<u8")


class IdTable:
    """The ids of `documents` documents, in the sections of a segment's file."""

    def __init__(self, file: CitFile, documents: int) -> None:
        self.file, self._documents = file, documents
        self._arrays: tuple[NDArray[np.uint64], NDArray[np.uint8]] | None = None

    def ids(self, numbers: Sequence[int] | NDArray[np.int64]) -> list[str]:
        """The ids of these documents."""
        offsets, octets = self._arrays or self._map()
        try:
            ids = read_ids(offsets, octets, np.asarray(numbers, np.int64))
        except (UnicodeDecodeError, IndexError) as error:
            self.file.require_whole()  # a truncated file reads as zeros
            problem = "lies outside the section" if isinstance(error, IndexError) else "is not UTF-8"
            raise self.file["ID_BYTES"].corrupt(f"an id {problem}") from None
        self.file.require_whole(exact=False)
        return ids

    def with_white_space(self) -> Iterator[tuple[int, str]]:
        """Yield number and id of each document whose id has white space."""
        # Decoding many ids as one string is over 20 times as fast as one by one.
        offsets, octets = self._arrays or self._map()
        for start in range(0, self._documents, IDS_PER_PART):
            end = min(start + IDS_PER_PART, self._documents)
            joined = str(octets[offsets[start] : offsets[end]].data, "utf-8", "replace")
            if joined.split(None, 1) != [joined]:
                numbers = range(start, end)
                ids = zip(numbers, self.ids(numbers), strict=True)
                yield from ((number, id) for number, id in ids if id.split() != [id])
        self.file.require_whole(exact=False)

    def _map(self) -> tuple[NDArray[np.uint64], NDArray[np.uint8]]:
        """Offsets and bytes of the ids."""
        offsets, octets = self.file["ID_OFFSETS"].array("<u8"), self.file["ID_BYTES"].array(np.uint8)
        if len(octets) != int(offsets[-1]) or not rises(offsets, MAX_ID):
            raise self.file["ID_OFFSETS"].corrupt("the ids do not follow each other or one is too long")
        self._arrays = offsets, octets
        return self._arrays

    def find(self, ids: Sequence[str], hashes: NDArray[np.uint64]) -> dict[str, int]:
        """The numbers of those ids that this table holds."""
        if not self._documents or not len(ids):
            return {}
        known = self.file["ID_HASHES"].array("<u8")
        numbers = self.file["ID_NUMBERS"].array("<u4")
        matches: dict[str, int] = {}
        positions = np.searchsorted(known, hashes)
        for i in np.flatnonzero(known[np.minimum(positions, len(known) - 1)] == hashes).tolist():
            position = int(positions[i])
            while position < len(known) and known[position] == hashes[i]:  # several ids may share a hash
                number = int(numbers[position])
                if number >= self._documents:
                    raise self.file["ID_NUMBERS"].corrupt(f"document {number} does not exist")
                if self.ids([number]) == [ids[i]]:
                    matches[ids[i]] = number
                position += 1
        return matches
