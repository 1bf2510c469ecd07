"""Split a long document into overlapping passages that end at sentence ends where possible."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from citadel.encode.tokenizer import TokenOffsets
from citadel.settings import LongDocuments

_CHARACTERS_PER_READ = 1 << 16  # tokenised at a time
_LONGEST_WORD = 1 << 10  # characters; a longer run without white space is cut anywhere
_SENTENCE_END = re.compile(r"""[.!?…]["'”’)\]]*\s+|[。！？]|\n\s*\n|\n(?=\s*[-*•#])""")

Span = tuple[int, int]


class OffsetTokenizer(Protocol):
    """Interface of `Tokenizer` as used here."""

    def offsets(self, text: str) -> TokenOffsets: ...


class PassageSplitter:
    """Splits documents that are longer than a model reads.

    The title is part of each passage, so that each says what it is about; it takes at most half of it.
    """

    def __init__(self, tokenizer: OffsetTokenizer, long: LongDocuments) -> None:
        self._tokenizer, self.tokens, self._overlap = tokenizer, long.chunk_tokens, long.chunk_overlap

    def title(self, title: str) -> str:
        """The part of a title that passages begin with."""
        limit = self.tokens // 2
        offsets = self._tokenizer.offsets(title[: limit * _LONGEST_WORD])
        return title if len(offsets.ends) <= limit else title[: offsets.ends[limit - 1]]

    def text(self, title: str, text: str, span: Span) -> str:
        """What the model reads of a passage."""
        return f"{self.title(title)} {text[slice(*span)]}".strip()

    def spans(self, title: str, text: str) -> Iterator[Span]:
        """The passages of a text in order, as first character and the one after the last."""
        used = len(self._tokenizer.offsets(self.title(title)).starts)
        room = max(self.tokens - used, 1)
        overlap = min(self._overlap, room // 2)
        return split(text, _TokenStream(self._tokenizer, text), room, overlap)


def split(text: str, tokens: _TokenStream, room: int, overlap: int) -> Iterator[Span]:
    """Passages of at most `room` tokens; consecutive ones share up to `overlap` tokens."""
    first = 0
    while tokens.fill(first + room + 1):
        window = tokens.window(first, first + room + 1)
        if len(window.starts) <= room:
            yield int(window.starts[0]), int(window.ends[-1])
            return
        cuts = _cuts(text, window)
        end = _last(cuts, room // 2, room) or _last(window.begins_word, room // 2, room) or room
        yield int(window.starts[0]), int(window.ends[end - 1])
        back = max(end - overlap, 1)
        step = _first(cuts, back, end) or _first(window.begins_word, back, end) or end
        first += step
        tokens.drop(first)


def _cuts(text: str, window: TokenOffsets) -> NDArray[np.bool_]:
    """Which tokens begin a sentence."""
    begin, stop = int(window.starts[0]), int(window.ends[-1])
    ends = [begin + match.end() for match in _SENTENCE_END.finditer(text[begin:stop])]
    is_cut = np.zeros(len(window.starts), np.bool_)
    positions = np.searchsorted(window.starts, ends)
    is_cut[positions[positions < len(is_cut)]] = True
    return is_cut


def _last(marks: NDArray[np.bool_], low: int, high: int) -> int:
    """The last marked position in low + 1 … high; 0 for none."""
    marked = np.flatnonzero(marks[low + 1 : high + 1])
    return low + 1 + int(marked[-1]) if len(marked) else 0


def _first(marks: NDArray[np.bool_], low: int, high: int) -> int:
    """The first marked position in low … high; 0 for none."""
    marked = np.flatnonzero(marks[low : high + 1])
    return low + int(marked[0]) if len(marked) else 0


class _TokenStream:
    """The tokens of a text, read some pages at a time so that a book needs little memory."""

    def __init__(self, tokenizer: OffsetTokenizer, text: str) -> None:
        self._pieces = _pieces(text)
        self._tokenizer, self._text = tokenizer, text
        self._first = 0  # number of the first token that is kept
        none = np.zeros(0, np.int64)
        self._kept = TokenOffsets(none, none, np.zeros(0, np.bool_))

    def fill(self, count: int) -> bool:
        """Read until `count` tokens are known or the text ends; whether one is left."""
        while self._first + len(self._kept.starts) < count:
            piece = next(self._pieces, None)
            if piece is None:
                break
            start, end = piece
            own = self._tokenizer.offsets(self._text[start:end])
            own = own._replace(starts=own.starts + start, ends=own.ends + start)
            self._kept = TokenOffsets(
                np.concatenate([self._kept.starts, own.starts]),
                np.concatenate([self._kept.ends, own.ends]),
                np.concatenate([self._kept.begins_word, own.begins_word]),
            )
        return len(self._kept.starts) > 0

    def window(self, first: int, stop: int) -> TokenOffsets:
        """Tokens first … stop − 1."""
        own = slice(first - self._first, stop - self._first)
        kept = self._kept
        return TokenOffsets(kept.starts[own], kept.ends[own], kept.begins_word[own])

    def drop(self, first: int) -> None:
        """Forget the tokens before `first`."""
        self._kept = self.window(first, self._first + len(self._kept.starts))
        self._first = first


def _pieces(text: str) -> Iterator[Span]:
    """Cut a text at white space, so that no word is cut in two unless it is very long."""
    start = 0
    while start < len(text):
        end = min(start + _CHARACTERS_PER_READ, len(text))
        if end < len(text):
            tail = text[end - _LONGEST_WORD : end]
            blank = max((tail.rfind(mark) for mark in " \n\t"), default=-1)
            end -= len(tail) - blank - 1 if blank >= 0 else 0
        yield start, end
        start = end
