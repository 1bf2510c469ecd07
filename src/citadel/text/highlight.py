"""The part of a document that shows best why it was found."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass

from citadel.text.analyser import Analyser, fold

Span = tuple[int, int]
ANALYSED = 100_000  # characters of one text that are analysed to mark matches; of a longer one, the best part
_PIECE = 1 << 14  # characters looked at together
_TRIED = 8 << 20  # characters analysed while looking for the best part
_MAX_TERMS = 64  # of a query that are looked for; the longest are the rarest
_LONG_WORD = 256  # characters; only a longer word is cut at the edge of a part


@dataclass(frozen=True, slots=True)
class Snippet:
    """A window of a text: its position, and which parts of it matched, as offsets into `text`.

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

    `terms` are the query's, as the same analyser gives them. Of a text longer than `ANALYSED` characters
    only its `best_part` is analysed.

    >>> from citadel.text.analyser import get_analyser
    >>> english = get_analyser("english")
    >>> snippet("One day the quick foxes ran home.", english.terms("fox runs"), english, width=20)
    Snippet(text='quick foxes ran', start=12, spans=((6, 11),))
    """
    before, stop = best_part(text, terms, analyser)
    part = text[before:stop]
    tokens = analyser.tokens(part)
    wanted = set(terms)
    matches = [(term, span) for term, span in zip(tokens.texts, tokens.offsets, strict=True) if term in wanted]
    first, last = _best_run(matches, width)
    start, end = window(part, [span for _, span in matches[first:last]], width)
    spans = ((max(a, start) - start, min(b, end) - start) for _, (a, b) in matches if a < end and b > start)
    return Snippet(part[start:end], before + start, tuple(spans))


def best_part(
    text: str,
    terms: Collection[str],
    analyser: Analyser,
    limit: int = ANALYSED,
    check: Callable[[], None] = lambda: None,
) -> Span:
    """The part of at most `limit` characters around the piece with most different terms.

    A text that is not longer is its own best part. `check` is called for every piece, and stops the search
    by raising.

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
    return _on_to_word(text, start, min(start + _LONG_WORD, end)), _back_to_space(
        text, max(end - _LONG_WORD, start), end
    )


def _best_piece(text: str, terms: Collection[str], analyser: Analyser, length: int, check: Callable[[], None]) -> int:
    """Where the first piece with most different terms begins.

    Of a piece that holds the beginnings of more terms than the best so far, the words with these beginnings are
    analysed: most of a long text costs no more than a search for a few strings.
    """
    wanted = set(sorted(terms, key=len, reverse=True)[:_MAX_TERMS])
    if not wanted:
        return 0
    beginnings = sorted({_beginning(term) for term in wanted})
    words = re.compile(rf"(?<!\w)(?:{'|'.join(map(re.escape, beginnings))})\S*")
    best, at, tried = 0, 0, 0
    for start in range(0, len(text), length):
        check()
        folded = fold(text[start : start + length])
        if sum(beginning in folded for beginning in beginnings) <= best:
            continue
        likely = " ".join(set(words.findall(folded)))
        tried += len(likely)
        if (count := len(wanted.intersection(analyser.terms(likely)))) > best:
            best, at = count, start
        if best == len(wanted) or tried > _TRIED:
            break
    return at


def _beginning(term: str) -> str:
    """What the words of a stem begin with: the stem of theory is theori, that of sensibility sensibl.

    >>> _beginning("theori"), _beginning("run")
    ('theor', 'run')
    """
    return term[:-1] if len(term) > 3 or term.endswith("i") else term


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
