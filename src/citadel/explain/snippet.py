"""The part of a text that shows best where its score comes from."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from citadel.text.highlight import window


@dataclass(frozen=True, slots=True)
class Span:
    """Characters start … end − 1 of a text, what they added to the score, and through which matches, largest first.

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


def merged(spans: Iterable[Span]) -> tuple[Span, ...]:
    """Spans in the order of the text; those of one place become one with the sum of their gains.

    >>> merged([Span(4, 9, 1.0, (0,)), Span(4, 9, 2.0, (3,))])
    (Span(start=4, end=9, gain=3.0, matches=(3, 0)),)
    """
    places: dict[tuple[int, int], list[Span]] = {}
    for span in spans:
        places.setdefault((span.start, span.end), []).append(span)
    found = []
    for start, end in sorted(places):
        largest = sorted(places[start, end], key=lambda span: -span.gain)
        matches = tuple(match for span in largest for match in span.matches)
        found.append(Span(start, end, sum(span.gain for span in largest), matches))
    return tuple(found)


def snippet(text: str, spans: Sequence[Span], width: int = 240) -> Snippet:
    """The window of at most `width` characters whose spans, which stand in order, add most; the first of equal ones.

    >>> snippet("One day the quick foxes ran home.", [Span(18, 23, 2.0, (0,))], width=20)
    Snippet(start=12, end=27, text='quick foxes ran', spans=(Span(start=6, end=11, gain=2.0, matches=(0,)),))
    """
    first, last = _best_run(spans, width)
    start, end = window(text, [(span.start, span.end) for span in spans[first:last]], width)
    inside = (
        replace(span, start=max(span.start, start) - start, end=min(span.end, end) - start)
        for span in spans
        if span.start < end and span.end > start
    )
    return Snippet(start, end, text[start:end], tuple(inside))


def _best_run(spans: Sequence[Span], width: int) -> tuple[int, int]:
    """The spans [first, last) that fit in one window and add most; (0, 0) where there are none."""
    best, run, first, inside = 0.0, (0, 0), 0, 0.0
    for last, span in enumerate(spans):
        inside += max(span.gain, 0.0)
        while first < last and span.end - spans[first].start > width:
            inside -= max(spans[first].gain, 0.0)
            first += 1
        if inside > best:
            best, run = inside, (first, last + 1)
    return run
