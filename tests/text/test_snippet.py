"""Choice of the snippet window, and the spans of its matches."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from citadel.errors import Cancelled
from citadel.text.analyser import Analyser, get_analyser
from citadel.text.snippet import (
    MAX_ANALYSED,
    Snippet,
    Span,
    best_part,
    best_piece,
    part_around,
    term_snippet,
)
from citadel.types import Tokens

ENGLISH = get_analyser("english")


def find(text: str, query: str, width: int) -> Snippet:
    return term_snippet(text, ENGLISH.terms(query), ENGLISH, width)


def marked(result: Snippet) -> list[str]:
    return [result.text[span.start : span.end] for span in result.spans]


def test_short_text_is_shown_whole() -> None:
    result = find("A fox ran. Foxes run.", "foxes", 100)
    assert (result.text, result.start, marked(result)) == ("A fox ran. Foxes run.", 0, ["fox", "Foxes"])


def test_without_a_match_the_beginning_is_shown() -> None:
    assert find("one two three four", "absent", 10) == Snippet(0, 7, "one two", ())


def test_distinct_terms_beat_repeated_terms() -> None:
    result = find("fox fox fox one two three four five six a fox hunting hounds", "fox hound", 24)
    assert (result.text, marked(result)) == ("six a fox hunting hounds", ["fox", "hounds"])


def test_first_of_equal_windows_is_shown() -> None:
    assert find("the fox " + "and so on " * 30 + "the fox", "fox", 20).start == 0


def test_word_longer_than_the_window_is_cut() -> None:
    assert find("x" * 50, "x" * 50, 10) == Snippet(0, 10, "x" * 10, (Span(0, 10, 1.0, (0,)),))


def test_empty_text_has_an_empty_snippet() -> None:
    assert find("", "fox", 10) == Snippet(0, 0, "", ())


@given(
    text=st.text(st.sampled_from("ab '.\n東é\u0301"), max_size=120),
    query=st.text("ab é"),
    width=st.integers(1, 40),
)
def test_snippet_is_part_of_the_text_and_marks_matches(text: str, query: str, width: int) -> None:
    result = find(text, query, width)
    assert text[result.start : result.end] == result.text
    assert len(result.text) <= width
    assert all(0 <= span.start < span.end <= len(result.text) for span in result.spans)
    wanted = set(ENGLISH.terms(query))
    assert bool(result.spans) == bool(wanted & set(ENGLISH.terms(text)))


# Long texts

FILLER = "lorem ipsum dolor sit amet consectetur "


class Counting(Analyser):
    """An analyser that counts the characters it analyses."""

    def __init__(self) -> None:
        self.name, self.read, self.largest = "english", 0, 0

    def terms(self, text: str) -> list[str]:
        self._count(text)
        return ENGLISH.terms(text)

    def tokens(self, text: str) -> Tokens:
        self._count(text)
        return ENGLISH.tokens(text)

    def _count(self, text: str) -> None:
        self.read, self.largest = self.read + len(text), max(self.largest, len(text))


def test_only_part_of_a_long_text_is_analysed() -> None:
    """Sixty million characters, with the only matches at the end."""
    analyser, text = Counting(), FILLER * 1_540_000 + "A quick fox and its hounds."
    result = term_snippet(text, ENGLISH.terms("foxes hounds"), analyser, 40)
    assert marked(result) == ["fox", "hounds"] and text[result.start : result.end] == result.text
    assert analyser.read <= 2 * MAX_ANALYSED and analyser.largest <= MAX_ANALYSED


def test_common_prefixes_do_not_exceed_the_limit() -> None:
    analyser = Counting()
    words = " ".join(f"consecrated{n}" for n in range(1_200_000))  # all different
    result = term_snippet(words, ["consecut", "zebra"], analyser, 40)
    assert result.start == 0 and not result.spans and analyser.read <= (8 << 20) + 2 * MAX_ANALYSED


def test_best_part_has_the_most_distinct_terms() -> None:
    text = "fox " + FILLER * 20_000 + "fox hound " + FILLER * 20_000 + "hound"
    assert marked(find(text, "fox hound", 40)) == ["fox", "hound"]
    assert find(text, "absent", 11) == Snippet(0, 9, "fox lorem", ())
    words = "जल " + "हिन्दी " * 40_000 + "में जलवायु जल हिन्दी, नदी"
    assert marked(term_snippet(words, ENGLISH.terms("नदी जल"), ENGLISH, 30)) == ["जल", "नदी"]
    words = "Ｆｏｘ naïve " + "λόγος " * 40_000 + "an ﬁne fox"
    assert marked(find(words, "fine fox", 30)) == ["ﬁne", "fox"]


def test_best_part_cuts_no_words() -> None:
    text = FILLER * 20_000
    for limit in (1000, 1001, 1002, 1003):
        start, end = best_part(text, ["dolor"], ENGLISH, limit)
        assert set(text[start:end].split()) <= set(FILLER.split()) and end - start <= limit
    assert best_part("x" * 5000, ["x" * 255], ENGLISH, 1000)[1] <= 1000


def test_best_part_can_be_cancelled() -> None:
    calls = 0

    def stop() -> None:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise Cancelled("enough")

    with pytest.raises(Cancelled):
        best_part(FILLER * 100_000, ["absent"], ENGLISH, check=stop)
    assert calls == 3
    best_part(FILLER * 100_000, [], ENGLISH, check=stop)  # without terms there is nothing to search
    assert calls == 3


@given(st.text("ab \n", min_size=61, max_size=400), st.integers(1, 60), st.integers(1, 80))
def test_text_in_pieces_has_the_same_part(text: str, limit: int, size: int) -> None:
    """Of a text that is not in memory, a window around the best piece gives the part of the whole."""
    pieces = [text[start : start + size] for start in range(0, len(text), size)]
    at = best_piece(pieces, ["aa", "b"], ENGLISH, limit)
    offset = max(0, at - limit)
    part = part_around(at, text[offset : at + limit + 1], offset, len(text), limit)
    assert part == best_part(text, ["aa", "b"], ENGLISH, limit)
