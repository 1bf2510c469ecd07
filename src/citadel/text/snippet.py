"""Snippets: the window of a text that best shows why it matched.

`snippet` takes spans with their share of the score, as in an explanation; `term_snippet` first finds the
terms of a query in a text. `best_part` bounds the work on long texts.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from citadel.text.analyser import Analyser, fold

MAX_ANALYSED = 100_000  # characters; of a longer text only the best part is analysed
_PIECE = 1 << 14  # characters searched at a time
_MAX_SEARCHED = 8 << 20  # characters analysed to find the best part
_MAX_TERMS = 64  # terms searched for; the longest are the rarest
_LONG_WORD = 256  # characters; only a longer word is cut at the edge of a part
Range = tuple[int, int]  # characters start … end − 1


@dataclass(frozen=True, slots=True)
class Span:
    """Characters start … end − 1 of a text, their share of the score, and its matches, largest first.

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
    """Number of distinct terms, then number of spans."""

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
    """The first window of up to `width` characters whose spans have the largest sum of gains.

    >>> snippet("One day the quick foxes ran home.", [Span(18, 23, 2.0, (0,))], width=20)
    Snippet(start=12, end=27, text='quick foxes ran', spans=(Span(start=6, end=11, gain=2.0, matches=(0,)),))
    """
    return _snippet(text, spans, width, _GainTally())


def term_snippet(text: str, terms: Sequence[str], analyser: Analyser, width: int = 200) -> Snippet:
    """The first window of up to `width` characters with the most distinct terms, then the most matches.

    `terms` are those of the query, from the same analyser; the matches of a span are positions in `terms`. Of
    a text longer than `MAX_ANALYSED` characters only the `best_part` is analysed.

    >>> from citadel.text.analyser import get_analyser
    >>> english = get_analyser("english")
    >>> best = term_snippet("One day the quick foxes ran home.", english.terms("fox runs"), english, width=20)
    >>> best.text, best.start, [best.text[span.start : span.end] for span in best.spans]
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
    """The spans [first, last) that fit into one window and have the highest value; (0, 0) if none do."""
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
    """The part of up to `limit` characters around the piece with the most distinct terms.

    A shorter text is returned whole. `check` is called once per piece and may raise to stop the search.

    >>> from citadel.text.analyser import get_analyser
    >>> english = get_analyser("english")
    >>> text = "a word " * 10_000 + "the quick foxes " + "and more " * 10_000
    >>> start, end = best_part(text, ["fox"], english, limit=1000)
    >>> "quick foxes" in text[start:end], end - start <= 1000
    (True, True)
    """
    if len(text) <= limit:
        return 0, len(text)
    at = best_piece([text], terms, analyser, limit, check)
    return part_around(at, text, 0, len(text), limit)


def part_around(at: int, text: str, offset: int, length: int, limit: int = MAX_ANALYSED) -> Range:
    """The part of at most `limit` characters around the piece at `at` that avoids cutting words.

    `text` may be characters offset … of a text of `length` characters: those from `at` − `limit` up to and
    with `at` + `limit` suffice.
    """
    start = max(0, min(at - (limit - min(_PIECE, limit)) // 2, length - limit)) - offset
    end = start + limit
    first = _next_word(text, start, min(start + _LONG_WORD, end))
    return first + offset, _last_space(text, max(end - _LONG_WORD, start), end) + offset


def best_piece(
    text: Iterable[str],
    terms: Collection[str],
    analyser: Analyser,
    limit: int = MAX_ANALYSED,
    check: Callable[[], None] = lambda: None,
) -> int:
    """Start of the first piece with the most distinct terms; the text itself may come in other pieces.

    Only words with the prefix of a term are analysed, and only in pieces that contain more prefixes than the
    best piece has terms, so that most of a long text costs only a search for a few strings.
    """
    length = min(_PIECE, limit)
    wanted = set(sorted(terms, key=len, reverse=True)[:_MAX_TERMS])
    if not wanted:
        return 0
    prefixes = sorted({_prefix(term) for term in wanted})
    words = re.compile(rf"(?<!\w)(?:{'|'.join(map(re.escape, prefixes))})\S*")
    best, at, searched = 0, 0, 0
    for number, piece in enumerate(_cut_into(text, length)):
        check()
        folded = fold(piece)
        if sum(prefix in folded for prefix in prefixes) <= best:
            continue
        likely = " ".join(set(words.findall(folded)))
        searched += len(likely)
        if (count := len(wanted.intersection(analyser.terms(likely)))) > best:
            best, at = count, number * length
        if best == len(wanted) or searched > _MAX_SEARCHED:
            break
    return at


def _cut_into(text: Iterable[str], length: int) -> Iterator[str]:
    """Cut a text that comes in pieces into pieces of `length` characters.

    >>> list(_cut_into(["a", "bcd", "", "e"], 2))
    ['ab', 'cd', 'e']
    """
    rest = ""
    for piece in text:
        rest = rest + piece if rest else piece
        whole = len(rest) - len(rest) % length
        yield from (rest[start : start + length] for start in range(0, whole, length))
        rest = rest[whole:]
    if rest:
        yield rest


def _prefix(term: str) -> str:
    """A prefix shared by all words with this stem: the stem of "theory" is "theori".

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
    """Start of the first word at or after `start`, or `limit` if there is none before it."""
    if start == 0 or text[start - 1].isspace():
        return start
    return next((at + 1 for at in range(start, limit) if text[at].isspace()), limit)


def _last_space(text: str, limit: int, end: int) -> int:
    """End of the last word up to `end`, not before `limit`; `end` itself if a word must be cut."""
    if end == len(text) or text[end].isspace():
        return end
    return next((at for at in range(end - 1, limit, -1) if text[at].isspace()), limit or end)
