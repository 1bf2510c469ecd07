"""Snippets by score, and merged spans."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from citadel import explain
from citadel.text.snippet import Snippet, Span, merge_spans, snippet

TEXT = "the fox sat " * 10 + "on a relativity paper"


def test_the_largest_share_wins() -> None:
    at = TEXT.index("relativity")
    found = snippet(TEXT, [Span(4, 7, 1.0, (0,)), Span(16, 19, 1.0, (0,)), Span(at, at + 10, 5.0, (1,))], width=40)
    assert "relativity" in found.text
    assert [found.text[span.start : span.end] for span in found.spans] == ["relativity"]


def test_two_small_ones_beat_a_larger_one() -> None:
    at = TEXT.index("relativity")
    found = snippet(TEXT, [Span(4, 7, 1.0, (0,)), Span(16, 19, 1.0, (0,)), Span(at, at + 10, 1.5, (1,))], width=40)
    assert found.start == 0 and len(found.spans) == 2


def test_what_takes_away_is_not_sought() -> None:
    found = snippet(TEXT, [Span(4, 7, 1.0, (0,)), Span(16, 19, -5.0, (1,))], width=40)
    assert found.start == 0 and [span.gain for span in found.spans] == [1.0, -5.0]


def test_nothing_matched() -> None:
    found = snippet(TEXT, [], width=20)
    assert (found.start, found.text, found.spans) == (0, "the fox sat the fox", ())


def test_one_place_twice() -> None:
    assert merge_spans([Span(4, 7, 1.0, (2,)), Span(0, 3, 1.0, (0,)), Span(4, 7, 4.0, (1,))]) == (
        Span(0, 3, 1.0, (0,)),
        Span(4, 7, 5.0, (1, 2)),
    )


@given(st.text(max_size=80), st.lists(st.tuples(st.integers(0, 80), st.integers(1, 9), st.floats(-2, 2))), st.data())
def test_spans_are_parts_of_the_snippet(text: str, drawn: list[tuple[int, int, float]], data: st.DataObject) -> None:
    spans = merge_spans([Span(a, min(a + n, len(text)), gain, (0,)) for a, n, gain in drawn if a < len(text)])
    found = snippet(text, spans, data.draw(st.integers(1, 60)))
    assert found.text == text[found.start : found.end]
    for span in found.spans:
        assert 0 <= span.start < span.end <= len(found.text)


def test_explanations_use_this_highlighter() -> None:
    assert (explain.snippet, explain.Snippet, explain.Span) == (snippet, Snippet, Span)
