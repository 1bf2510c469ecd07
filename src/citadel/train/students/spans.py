"""Token ids of all training texts in one flat array, and batches cut from it as spans."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from citadel.train.data import Data
from citadel.train.ragged import Ragged, Rows
from citadel.train.tokens import Special

_STEP = 8  # widths of batches are multiples of this, which suits tensor cores


@dataclass(frozen=True, slots=True)
class Spans:
    """Texts as parts of the flat array, without special tokens.

    >>> Spans(np.array([5, 9]), np.array([3, 0])).some(np.array([0])).lengths.tolist()
    [5]
    """

    begins: Rows  # [n]
    sizes: Rows  # [n], tokens

    def __len__(self) -> int:
        return len(self.begins)

    @property
    def lengths(self) -> Rows:
        """Tokens with [CLS] and [SEP]."""
        return self.sizes + 2

    def some(self, rows: NDArray[np.int64] | NDArray[np.bool_]) -> Spans:
        """Select by index or mask."""
        return Spans(self.begins[rows], self.sizes[rows])

    def cut(self, length: int) -> Spans:
        """Shorten to `length` tokens with [CLS] and [SEP]."""
        return Spans(self.begins, np.minimum(self.sizes, max(length - 2, 0)))

    @classmethod
    def joined(cls, parts: list[Spans]) -> Spans:
        """Concatenate."""
        return cls(
            np.concatenate([part.begins for part in parts]), np.concatenate([part.sizes for part in parts])
        )


class Corpus:
    """All token ids on one device: a batch is one gather, without work on the host.

    The tables hold whole texts, [CLS] … [SEP]; `begins_word` marks the tokens that begin a word.
    """

    def __init__(
        self,
        data: Data,
        extra: Ragged,
        begins_word: NDArray[np.bool_],
        device: torch.device,
    ) -> None:
        values, spans, start = [], [], 0
        for table in (data.passages, data.queries, extra):
            values.append(np.asarray(table.values[:]).astype(np.int32))
            spans.append(Spans(table.offsets[:-1] + 1 + start, np.maximum(table.lengths - 2, 0)))
            start += len(values[-1])
        self.passages, self.queries, self.extra = spans
        self.special: Special = data.special
        self._text_ends = self.passages.begins + self.passages.sizes
        flat = np.concatenate(values)
        self.word_starts = _word_starts(flat[: len(values[0])], begins_word, self.special)
        self._ids = torch.from_numpy(flat).to(device)

    def within_text(self, begins: Rows, sizes: Rows) -> Rows:
        """Sizes of spans that begin inside passages, cut at the end of their passage."""
        ends = self._text_ends[np.searchsorted(self._text_ends, begins)]
        return np.asarray(np.minimum(sizes, ends - begins), np.int64)

    def batch(self, spans: Spans) -> tuple[Tensor, Tensor, bool]:
        """Ids and mask [n, T], padded to a multiple of 8, and whether anything is padded."""
        device = self._ids.device
        lengths = spans.lengths
        width = -(-int(lengths.max()) // _STEP) * _STEP
        begins = torch.from_numpy(spans.begins).to(device, non_blocking=True)
        length = torch.from_numpy(lengths).to(device, non_blocking=True)[:, None]  # [n, 1]
        column = torch.arange(width, device=device)[None, :]  # [1, T]
        source = (begins[:, None] + column - 1).clamp_(0, len(self._ids) - 1)
        ids = self._ids[source].long()
        ids[:, 0] = self.special.cls
        ids = torch.where(column == length - 1, self.special.sep, ids)
        inside = column < length
        ids = torch.where(inside, ids, self.special.pad)
        return ids, inside.long(), bool(lengths.min() < width)


def _word_starts(
    values: NDArray[np.int32], begins_word: NDArray[np.bool_], special: Special
) -> NDArray[np.int32]:
    """Positions of the tokens that begin a word."""
    starts = begins_word[values] & (values != special.cls) & (values != special.sep)
    return np.flatnonzero(starts).astype(np.int32)
