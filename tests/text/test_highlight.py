"""Which window is shown, and where the matches stand in it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from citadel.text.analyser import get_analyser
from citadel.text.highlight import Snippet, snippet

ENGLISH = get_analyser("english")


def find(text: str, query: str, width: int) -> Snippet:
    return snippet(text, ENGLISH.terms(query), ENGLISH, width)


def marked(found: Snippet) -> list[str]:
    return [found.text[start:end] for start, end in found.spans]


def test_a_short_text_is_shown_whole() -> None:
    found = find("A fox ran. Foxes run.", "foxes", 100)
    assert (found.text, found.start, marked(found)) == ("A fox ran. Foxes run.", 0, ["fox", "Foxes"])


def test_no_match_shows_the_beginning_up_to_a_word() -> None:
    assert find("one two three four", "absent", 10) == Snippet("one two", 0, ())


def test_two_different_terms_beat_the_same_one_twice() -> None:
    found = find("fox fox fox one two three four five six a fox hunting hounds", "fox hound", 24)
    assert (found.text, marked(found)) == ("six a fox hunting hounds", ["fox", "hounds"])


def test_of_equal_windows_the_first_is_shown() -> None:
    assert find("the fox " + "and so on " * 30 + "the fox", "fox", 20).start == 0


def test_a_word_longer_than_the_window_is_cut_with_its_mark() -> None:
    assert find("x" * 50, "x" * 50, 10) == Snippet("x" * 10, 0, ((0, 10),))


def test_an_empty_text_has_an_empty_snippet() -> None:
    assert find("", "fox", 10) == Snippet("", 0, ())


@given(text=st.text(st.sampled_from("ab '.\n東é\u0301"), max_size=120), query=st.text("ab é"), width=st.integers(1, 40))
def test_a_snippet_is_a_part_of_the_text_and_marks_what_matches(text: str, query: str, width: int) -> None:
    found = find(text, query, width)
    assert text[found.start : found.end] == found.text
    assert len(found.text) <= width
    assert all(0 <= start < end <= len(found.text) for start, end in found.spans)
    wanted = set(ENGLISH.terms(query))
    assert bool(found.spans) == bool(wanted & set(ENGLISH.terms(text)))
