"""Tokenised texts in flat arrays, for encoders that take thousands of texts at a time."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class TokenTable:
    """Token ids of texts, special tokens included.

    >>> table = TokenTable.of([[7], [8, 9]], np.array([False, True]), before=(101,), after=(102,))
    >>> table.ids.tolist(), table.lengths.tolist(), table.rows(np.array([1])).ids.tolist()
    ([101, 7, 102, 101, 8, 9, 102], [3, 4], [101, 8, 9, 102])
    """

    ids: NDArray[np.int32]  # [N]
    offsets: NDArray[np.int64]  # [n + 1]
    cut: NDArray[np.bool_]  # [n], whether the text was longer than the model reads
    blank: NDArray[np.bool_]  # [n], whether it has only special tokens

    def __len__(self) -> int:
        return len(self.cut)

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Tokens per text."""
        return np.diff(self.offsets)

    @classmethod
    def of(
        cls,
        texts: Sequence[Sequence[int]],
        cut: NDArray[np.bool_],
        before: tuple[int, ...],
        after: tuple[int, ...],
    ) -> TokenTable:
        """Put special tokens around the ids of each text."""
        sizes = np.fromiter(map(len, texts), np.int64, len(texts))
        around = len(before) + len(after)
        offsets = np.concatenate([[0], np.cumsum(sizes + around)]).astype(np.int64)
        ids = np.empty(int(offsets[-1]), np.int32)
        own = np.ones(len(ids), np.bool_)
        for number, id in enumerate(before):
            ids[offsets[:-1] + number] = id
            own[offsets[:-1] + number] = False
        for number, id in enumerate(reversed(after), start=1):
            ids[offsets[1:] - number] = id
            own[offsets[1:] - number] = False
        ids[own] = np.fromiter(itertools.chain.from_iterable(texts), np.int32, int(sizes.sum()))
        return cls(ids, offsets, cut, sizes == 0)

    @classmethod
    def joined(cls, tables: Sequence[TokenTable]) -> TokenTable:
        """Concatenate."""
        if len(tables) == 1:
            return tables[0]
        lengths = np.concatenate([np.zeros(1, np.int64), *(table.lengths for table in tables)])
        return cls(
            np.concatenate([table.ids for table in tables]),
            np.cumsum(lengths),
            np.concatenate([table.cut for table in tables]),
            np.concatenate([table.blank for table in tables]),
        )

    def rows(self, chosen: NDArray[np.int64]) -> TokenTable:
        """Select texts, in this order."""
        lengths = self.lengths[chosen]
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        source = np.arange(int(offsets[-1])) + np.repeat(self.offsets[chosen] - offsets[:-1], lengths)
        return TokenTable(self.ids[source], offsets, self.cut[chosen], self.blank[chosen])
