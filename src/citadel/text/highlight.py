"""The part of a document that shows best why it was found."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass

from citadel.text.analyser import Analyser

Span = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Snippet:
    """A window of a text: where it stands there, and which parts of it matched, as offsets into `text`.

    >>> Snippet("a fox", 10, ((2, 5),)).end
    15
    """

    text: str
    start: int
    spans: tuple[Span, ...]

    @property
    def end(self) -> int:
        return self.start + len(self.text)


def snippet(text: str, terms: Collection[str], analyser: Analyser, width: int = 200) -> Snippet:
    """The window of at most `width` characters with most different terms, then most matches, then nearest the start.

    `terms` are the query's, as the same analyser gives them.

    >>> from citadel.text.analyser import get_analyser
    >>> english = get_analyser("english")
    >>> snippet("One day the quick foxes ran home.", english.terms("fox runs"), english, width=20)
    Snippet(text='quick foxes ran', start=12, spans=((6, 11),))
    """
    tokens = analyser.tokens(text)
    wanted = set(terms)
    matches = [(term, span) for term, span in zip(tokens.texts, tokens.offsets, strict=True) if term in wanted]
    first, last = _best_run(matches, width)
    start, end = window(text, [span for _, span in matches[first:last]], width)
    spans = ((max(a, start) - start, min(b, end) - start) for _, (a, b) in matches if a < end and b > start)
    return Snippet(text[start:end], start, tuple(spans))


def _best_run(matches: list[tuple[str, Span]], width: int) -> tuple[int, int]:
    """The matches [first, last) that fit in one window and are best; (0, 0) where there are none."""
    inside: Counter[str] = Counter()
    best, run, first = (0, 0), (0, 0), 0
    for last, (term, (_, end)) in enumerate(matches):
        inside[term] += 1
        while first < last and end - matches[first][1][0] > width:
            _take_out(inside, matches[first][0])
            first += 1
        if (value := (len(inside), last + 1 - first)) > best:
            best, run = value, (first, last + 1)
    return run


def _take_out(inside: Counter[str], term: str) -> None:
    inside[term] -= 1
    if not inside[term]:
        del inside[term]


def window(text: str, spans: list[Span], width: int) -> Span:
    """A window around the spans, as wide as allowed, that cuts no word where white space is near."""
    if not spans:
        return 0, _back_to_space(text, 0, min(width, len(text)))
    spare = max(0, width - (spans[-1][1] - spans[0][0]))
    start = max(0, min(spans[0][0] - spare // 2, len(text) - width))
    end = min(len(text), start + width)
    return _on_to_word(text, start, spans[0][0]), _back_to_space(text, min(spans[-1][1], end), end)


def _on_to_word(text: str, start: int, limit: int) -> int:
    """The first start of a word from `start` on; `limit` where there is none before it."""
    if start == 0 or text[start - 1].isspace():
        return start
    return next((at + 1 for at in range(start, limit) if text[at].isspace()), limit)


def _back_to_space(text: str, limit: int, end: int) -> int:
    """The last end of a word up to `end`, not before `limit`; `end` itself cuts a word only where it must."""
    if end == len(text) or text[end].isspace():
        return end
    return next((at for at in range(end - 1, limit, -1) if text[at].isspace()), limit or end)
