"""Snippets: the window of a text that shows best why it matched.

`snippet` takes spans with their share of the score, as an explanation has them; `term_snippet` finds the terms of a
query in a text first. Both bound the work on long texts by `best_part`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from citadel.text.analyser import Analyser, fold

MAX_ANALYSED = 100_000  # characters of a text that are analysed; of a longer one, the best part
_PIECE = 1 << 14  # characters searched at a time
_MAX_SEARCHED = 8 << 20  # characters analysed to find the best part
_MAX_TERMS = 64  # terms searched for; the longest are the rarest
_LONG_WORD = 256  # characters; only a longer word is cut at the edge of a part
Range = tuple[int, int]  # characters start … end − 1


@dataclass(frozen=True, slots=True)
class Span:
    """Characters start … end − 1 of a text, their share of the score, and the matches behind it, largest first.

    >>> Span(0, 8, 2.5, (0,)).gain
    2.5
    """

    start: int
    end: int
    gain: float
    matches: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Snippet:
    """Characters start … end − 1 of a text; the spans are offsets into the snippet's own `text`.

    >>> Snippet(10, 15, "a fox", (Span(2, 5, 1.0, (0,)),)).spans[0].start
    2
    """

    start: int
    end: int
    text: str
    spans: tuple[Span, ...]


class _Tally(Protocol):
    """The value of the spans in a window; it starts at zero and must be comparable."""

    def add(self, span: Span) -> None: ...
    def remove(self, span: Span) -> None: ...
    @property
    def value(self) -> Any: ...


class _GainTally:
    """Sum of the positive gains."""

    def __init__(self) -> None:
        self.value = 0.0

    def add(self, span: Span) -> None:
        self.value += max(span.gain, 0.0)

    def remove(self, span: Span) -> None:
        self.value -= max(span.gain, 0.0)


class _TermTally:
    """Number of different terms, then number of spans."""

    def __init__(self) -> None:
        self._terms: Counter[tuple[int, ...]] = Counter()

    def add(self, span: Span) -> None:
        self._terms[span.matches] += 1

    def remove(self, span: Span) -> None:
        self._terms[span.matches] -= 1
        if not self._terms[span.matches]:
            del self._terms[span.matches]

    @property
    def value(self) -> tuple[int, int]:
        return len(self._terms), self._terms.total()


def snippet(text: str, spans: Sequence[Span], width: int = 240) -> Snippet:
    """The first window of at most `width` characters whose spans, given in order, add most to the score.

    >>> snippet("One day the quick foxes ran home.", [Span(18, 23, 2.0, (0,))], width=20)
    Snippet(start=12, end=27, text='quick foxes ran', spans=(Span(start=6, end=11, gain=2.0, matches=(0,)),))
    """
    return _snippet(text, spans, width, _GainTally())


def term_snippet(text: str, terms: Sequence[str], analyser: Analyser, width: int = 200) -> Snippet:
    """The window of at most `width` characters with most different terms, then most matches, then the first.

    `terms` are the query's, from the same analyser; the matches of a span are positions in `terms`. Of a text longer
    than `MAX_ANALYSED` characters only its `best_part` is analysed.

    >>> from citadel.text.analyser import get_analyser
    >>> english = get_analyser("english")
    >>> found = term_snippet("One day the quick foxes ran home.", english.terms("fox runs"), english, width=20)
    >>> found.text, found.start, [found.text[span.start : span.end] for span in found.spans]
    ('quick foxes ran', 12, ['foxes'])
    """
    before, stop = best_part(text, terms, analyser)
    part = text[before:stop]
    tokens = analyser.tokens(part)
    positions = {term: position for position, term in enumerate(terms)}
    spans = [
        Span(start, end, 1.0, (positions[term],))
        for term, (start, end) in zip(tokens.texts, tokens.offsets, strict=True)
        if term in positions
    ]
    cut = _snippet(part, spans, width, _TermTally())
    return replace(cut, start=before + cut.start, end=before + cut.end)


def _snippet(text: str, spans: Sequence[Span], width: int, tally: _Tally) -> Snippet:
    first, last = _best_run(spans, width, tally)
    start, end = window(text, [(span.start, span.end) for span in spans[first:last]], width)
    inside = (
        replace(span, start=max(span.start, start) - start, end=min(span.end, end) - start)
        for span in spans
        if span.start < end and span.end > start
    )
    return Snippet(start, end, text[start:end], tuple(inside))


def _best_run(spans: Sequence[Span], width: int, tally: _Tally) -> Range:
    """The spans [first, last) that fit into one window and have the highest value; (0, 0) for none."""
    best, run, first = tally.value, (0, 0), 0
    for last, span in enumerate(spans):
        tally.add(span)
        while first < last and span.end - spans[first].start > width:
            tally.remove(spans[first])
            first += 1
        if tally.value > best:
            best, run = tally.value, (first, last + 1)
    return run


def merge_spans(spans: Iterable[Span]) -> tuple[Span, ...]:
    """Sort spans by position; equal ranges become one span with the sum of their gains.

    >>> merge_spans([Span(4, 9, 1.0, (0,)), Span(4, 9, 2.0, (3,))])
    (Span(start=4, end=9, gain=3.0, matches=(3, 0)),)
    """
    by_range: dict[Range, list[Span]] = {}
    for span in spans:
        by_range.setdefault((span.start, span.end), []).append(span)
    merged = []
    for start, end in sorted(by_range):
        largest = sorted(by_range[start, end], key=lambda span: -span.gain)
        matches = tuple(match for span in largest for match in span.matches)
        merged.append(Span(start, end, sum(span.gain for span in largest), matches))
    return tuple(merged)


def best_part(
    text: str,
    terms: Collection[str],
    analyser: Analyser,
    limit: int = MAX_ANALYSED,
    check: Callable[[], None] = lambda: None,
) -> Range:
    """The part of at most `limit` characters around the piece with most different terms.

    A shorter text is returned whole. `check` is called once per piece, and stops the search by raising.

    >>> from citadel.text.analyser import get_analyser
    >>> english = get_analyser("english")
    >>> text = "a word " * 10_000 + "the quick foxes " + "and more " * 10_000
    >>> start, end = best_part(text, ["fox"], english, limit=1000)
    >>> "quick foxes" in text[start:end], end - start <= 1000
    (True, True)
    """
    if len(text) <= limit:
        return 0, len(text)
    at = _best_piece(text, terms, analyser, min(_PIECE, limit), check)
    start = max(0, min(at - (limit - min(_PIECE, limit)) // 2, len(text) - limit))
    end = start + limit
    first = _next_word(text, start, min(start + _LONG_WORD, end))
    return first, _last_space(text, max(end - _LONG_WORD, start), end)


def _best_piece(text: str, terms: Collection[str], analyser: Analyser, length: int, check: Callable[[], None]) -> int:
    """The start of the first piece with most different terms.

    Only words with the prefix of a term are analysed, and only in pieces that contain more prefixes than the best
    piece has terms: most of a long text costs a search for a few strings.
    """
    wanted = set(sorted(terms, key=len, reverse=True)[:_MAX_TERMS])
    if not wanted:
        return 0
    prefixes = sorted({_prefix(term) for term in wanted})
    words = re.compile(rf"(?<!\w)(?:{'|'.join(map(re.escape, prefixes))})\S*")
    best, at, searched = 0, 0, 0
    for start in range(0, len(text), length):
        check()
        folded = fold(text[start : start + length])
        if sum(prefix in folded for prefix in prefixes) <= best:
            continue
        likely = " ".join(set(words.findall(folded)))
        searched += len(likely)
        if (count := len(wanted.intersection(analyser.terms(likely)))) > best:
            best, at = count, start
        if best == len(wanted) or searched > _MAX_SEARCHED:
            break
    return at


def _prefix(term: str) -> str:
    """A prefix of all words with this stem: the stem of theory is theori, that of sensibility sensibl.

    >>> _prefix("theori"), _prefix("run")
    ('theor', 'run')
    """
    return term[:-1] if len(term) > 3 or term.endswith("i") else term


def window(text: str, ranges: Sequence[Range], width: int) -> Range:
    """A window of up to `width` characters around the ranges that avoids cutting words."""
    if not ranges:
        return 0, _last_space(text, 0, min(width, len(text)))
    spare = max(0, width - (ranges[-1][1] - ranges[0][0]))
    start = max(0, min(ranges[0][0] - spare // 2, len(text) - width))
    end = min(len(text), start + width)
    return _next_word(text, start, ranges[0][0]), _last_space(text, min(ranges[-1][1], end), end)


def _next_word(text: str, start: int, limit: int) -> int:
    """The first start of a word at or after `start`; `limit` if there is none before it."""
    if start == 0 or text[start - 1].isspace():
        return start
    return next((at + 1 for at in range(start, limit) if text[at].isspace()), limit)


def _last_space(text: str, limit: int, end: int) -> int:
    """The last end of a word up to `end`, not before `limit`; `end` itself if it cuts no word or must."""
    if end == len(text) or text[end].isspace():
        return end
    return next((at for at in range(end - 1, limit, -1) if text[at].isspace()), limit or end)
