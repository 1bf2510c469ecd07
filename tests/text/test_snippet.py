"""Which window a snippet shows, and the spans of its matches."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from citadel.errors import Cancelled
from citadel.text.analyser import Analyser, get_analyser
from citadel.text.snippet import MAX_ANALYSED, Snippet, Span, best_part, term_snippet
from citadel.types import Tokens

ENGLISH = get_analyser("english")


def find(text: str, query: str, width: int) -> Snippet:
    return term_snippet(text, ENGLISH.terms(query), ENGLISH, width)


def marked(found: Snippet) -> list[str]:
    return [found.text[span.start : span.end] for span in found.spans]


def test_a_short_text_is_shown_whole() -> None:
    found = find("A fox ran. Foxes run.", "foxes", 100)
    assert (found.text, found.start, marked(found)) == ("A fox ran. Foxes run.", 0, ["fox", "Foxes"])


def test_no_match_shows_the_beginning_up_to_a_word() -> None:
    assert find("one two three four", "absent", 10) == Snippet(0, 7, "one two", ())


def test_two_different_terms_beat_the_same_one_twice() -> None:
    found = find("fox fox fox one two three four five six a fox hunting hounds", "fox hound", 24)
    assert (found.text, marked(found)) == ("six a fox hunting hounds", ["fox", "hounds"])


def test_of_equal_windows_the_first_is_shown() -> None:
    assert find("the fox " + "and so on " * 30 + "the fox", "fox", 20).start == 0


def test_a_word_longer_than_the_window_is_cut_with_its_mark() -> None:
    assert find("x" * 50, "x" * 50, 10) == Snippet(0, 10, "x" * 10, (Span(0, 10, 1.0, (0,)),))


def test_an_empty_text_has_an_empty_snippet() -> None:
    assert find("", "fox", 10) == Snippet(0, 0, "", ())


@given(text=st.text(st.sampled_from("ab '.\n東é\u0301"), max_size=120), query=st.text("ab é"), width=st.integers(1, 40))
def test_a_snippet_is_a_part_of_the_text_and_marks_what_matches(text: str, query: str, width: int) -> None:
    found = find(text, query, width)
    assert text[found.start : found.end] == found.text
    assert len(found.text) <= width
    assert all(0 <= span.start < span.end <= len(found.text) for span in found.spans)
    wanted = set(ENGLISH.terms(query))
    assert bool(found.spans) == bool(wanted & set(ENGLISH.terms(text)))


# ---- long texts ------------------------------------------------------------------------------------------------------

FILLER = "lorem ipsum dolor sit amet consectetur "


class Counting(Analyser):
    """An analyser that counts the characters it has read."""

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


def test_of_a_long_text_only_a_part_is_analysed() -> None:
    """Sixty million characters, with the only matches at the end."""
    analyser, text = Counting(), FILLER * 1_540_000 + "A quick fox and its hounds."
    found = term_snippet(text, ENGLISH.terms("foxes hounds"), analyser, 40)
    assert marked(found) == ["fox", "hounds"] and text[found.start : found.end] == found.text
    assert analyser.read <= 2 * MAX_ANALYSED and analyser.largest <= MAX_ANALYSED


def test_terms_that_begin_like_many_words_cost_no_more_than_the_limit() -> None:
    analyser = Counting()
    words = " ".join(f"consecrated{n}" for n in range(1_200_000))  # all different
    found = term_snippet(words, ["consecut", "zebra"], analyser, 40)
    assert found.start == 0 and not found.spans and analyser.read <= (8 << 20) + 2 * MAX_ANALYSED


def test_the_part_with_most_different_terms() -> None:
    text = "fox " + FILLER * 20_000 + "fox hound " + FILLER * 20_000 + "hound"
    assert marked(find(text, "fox hound", 40)) == ["fox", "hound"]
    assert find(text, "absent", 11) == Snippet(0, 9, "fox lorem", ())
    words = "जल " + "हिन्दी " * 40_000 + "में जलवायु जल हिन्दी, नदी"
    assert marked(term_snippet(words, ENGLISH.terms("नदी जल"), ENGLISH, 30)) == ["जल", "नदी"]
    words = "Ｆｏｘ naïve " + "λόγος " * 40_000 + "an ﬁne fox"
    assert marked(find(words, "fine fox", 30)) == ["ﬁne", "fox"]


def test_a_part_cuts_no_word() -> None:
    text = FILLER * 20_000
    for limit in (1000, 1001, 1002, 1003):
        start, end = best_part(text, ["dolor"], ENGLISH, limit)
        assert set(text[start:end].split()) <= set(FILLER.split()) and end - start <= limit
    assert best_part("x" * 5000, ["x" * 255], ENGLISH, 1000)[1] <= 1000


def test_looking_for_a_part_can_be_stopped() -> None:
    looked = 0

    def stop() -> None:
        nonlocal looked
        looked += 1
        if looked == 3:
            raise Cancelled("enough")

    with pytest.raises(Cancelled):
        best_part(FILLER * 100_000, ["absent"], ENGLISH, check=stop)
    assert looked == 3
    best_part(FILLER * 100_000, [], ENGLISH, check=stop)  # a query without terms: nothing to look for
    assert looked == 3
