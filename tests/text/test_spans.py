"""Snippets by gain, and merged spans."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from citadel import explain
from citadel.text.snippet import Snippet, Span, merge_spans, snippet

TEXT = "the fox sat " * 10 + "on a relativity paper"


def test_largest_gain_wins() -> None:
    at = TEXT.index("relativity")
    result = snippet(
        TEXT, [Span(4, 7, 1.0, (0,)), Span(16, 19, 1.0, (0,)), Span(at, at + 10, 5.0, (1,))], width=40
    )
    assert "relativity" in result.text
    assert [result.text[span.start : span.end] for span in result.spans] == ["relativity"]


def test_sum_of_gains_decides() -> None:
    at = TEXT.index("relativity")
    result = snippet(
        TEXT, [Span(4, 7, 1.0, (0,)), Span(16, 19, 1.0, (0,)), Span(at, at + 10, 1.5, (1,))], width=40
    )
    assert result.start == 0 and len(result.spans) == 2


def test_negative_gains_do_not_count() -> None:
    result = snippet(TEXT, [Span(4, 7, 1.0, (0,)), Span(16, 19, -5.0, (1,))], width=40)
    assert result.start == 0 and [span.gain for span in result.spans] == [1.0, -5.0]


def test_without_spans_the_beginning_is_shown() -> None:
    result = snippet(TEXT, [], width=20)
    assert (result.start, result.text, result.spans) == (0, "the fox sat the fox", ())


def test_equal_ranges_are_merged() -> None:
    assert merge_spans([Span(4, 7, 1.0, (2,)), Span(0, 3, 1.0, (0,)), Span(4, 7, 4.0, (1,))]) == (
        Span(0, 3, 1.0, (0,)),
        Span(4, 7, 5.0, (1, 2)),
    )


@given(
    st.text(max_size=80),
    st.lists(st.tuples(st.integers(0, 80), st.integers(1, 9), st.floats(-2, 2))),
    st.data(),
)
def test_spans_lie_inside_the_snippet(
    text: str, drawn: list[tuple[int, int, float]], data: st.DataObject
) -> None:
    spans = merge_spans([Span(a, min(a + n, len(text)), gain, (0,)) for a, n, gain in drawn if a < len(text)])
    result = snippet(text, spans, data.draw(st.integers(1, 60)))
    assert result.text == text[result.start : result.end]
    for span in result.spans:
        assert 0 <= span.start < span.end <= len(result.text)


def test_explain_uses_these_snippets() -> None:
    assert (explain.snippet, explain.Snippet, explain.Span) == (snippet, Snippet, Span)
