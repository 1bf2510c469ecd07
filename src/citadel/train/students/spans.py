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
_SENTENCE = 6  # tokens of a sentence at least


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

    The tables hold whole texts, [CLS] … [SEP]. Here they follow each other without these, so that a span may
    run on into the next passage. `begins_word` marks the tokens that begin a word, `ends_sentence` those
    after which a sentence may begin.
    """

    def __init__(
        self,
        data: Data,
        extra: Ragged,
        begins_word: NDArray[np.bool_],
        ends_sentence: NDArray[np.bool_],
        device: torch.device,
    ) -> None:
        values, spans, start = [], [], 0
        for table in (data.passages, data.queries, extra):
            inner, sizes = _without_ends(table)
            values.append(inner)
            spans.append(Spans(start + np.cumsum(sizes) - sizes, sizes))
            start += len(inner)
        self.passages, self.queries, self.extra = spans
        self.special: Special = data.special
        self._text_ends = self.passages.begins + self.passages.sizes
        flat = np.concatenate(values)
        self.word_starts = np.flatnonzero(begins_word[values[0]]).astype(np.int32)
        self.sentences = self._sentences(values[0], begins_word, ends_sentence)
        self._ids = torch.from_numpy(flat).to(device)

    @property
    def passages_end(self) -> int:
        """Number of tokens of all passages, which come first."""
        return int(self._text_ends[-1]) if len(self._text_ends) else 0

    def within_text(self, begins: Rows, sizes: Rows) -> Rows:
        """Sizes of spans that begin inside passages, cut at the end of their passage."""
        ends = self._text_ends[np.searchsorted(self._text_ends, begins, side="right")]
        return np.asarray(np.minimum(sizes, ends - begins), np.int64)

    def _sentences(
        self, passages: NDArray[np.int32], begins_word: NDArray[np.bool_], ends_sentence: NDArray[np.bool_]
    ) -> Spans:
        """The sentences of the passages, by their punctuation; fragments are left out."""
        starts = np.zeros(len(passages), bool)
        starts[1:] = ends_sentence[passages[:-1]]
        starts[self.passages.begins[self.passages.sizes > 0]] = True
        bounds = np.append(np.flatnonzero(starts), len(passages))
        spans = Spans(bounds[:-1], np.diff(bounds))
        return spans.some((spans.sizes >= _SENTENCE) & begins_word[passages[spans.begins]])

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


def _without_ends(table: Ragged) -> tuple[NDArray[np.int32], Rows]:
    """The token ids of all texts without [CLS] and [SEP], and their number per text."""
    values = np.asarray(table.values[:]).astype(np.int32)
    inner = np.ones(len(values), bool)
    filled = np.flatnonzero(table.lengths > 0)
    inner[table.offsets[filled]] = inner[table.offsets[filled + 1] - 1] = False
    return values[inner], np.maximum(table.lengths - 2, 0)
