"""Output of the demo, with and without colour."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Literal

import pytest
from rich.console import Console

from citadel.demo import show
from citadel.demo.passages import MAX_PASSAGES
from citadel.encode import locate
from citadel.explain.result import Explanation, Match, Posting, Semantic, Token
from citadel.text.snippet import Span
from citadel.types import Document, Hit

DEQUE = Document(
    "collections.deque",
    "A list-like sequence optimized for data accesses near its endpoints.",
    "collections.deque",
)


class OneHit:
    """One hit, matched by its semantic vector and by "list" → "sequence"."""

    router = "dynamic"

    def search(self, query: str, k: int) -> list[Hit]:
        return [Hit(DEQUE.id, 7.25, 1, lambda rank: DEQUE)][:k]

    def explain(self, query: str, id: str) -> Explanation:
        query_tokens = (Token(1, "fast", "query", 0, 4), Token(2, "list", "query", 5, 9))
        document_tokens = (Token(5, "sequence", "text", 12, 20),)
        matches = (
            Match((1,), 8, "fast", 1.0, 0.0, 0.0, ()),
            Match((2,), 7, "list", 1.0, 2.0, 0.28, (Posting((5,), 1.5, 1, 2.0),)),
        )
        settings = (self.router, "int8", 0.9, "exact", 7.25, Semantic(5.25, 0.72), False)
        tokens = (query_tokens, document_tokens)
        return Explanation(query, id, DEQUE.title, DEQUE.text, *settings, *tokens, matches)


class ByTerms(OneHit):
    router = "bm25"


def printed(width: int, colour: bool, both: bool = False) -> str:
    out = io.StringIO()
    system: Literal["standard"] | None = "standard" if colour else None
    console = Console(file=out, width=width, force_terminal=colour, color_system=system, highlight=False)
    show.answer(
        {"default": OneHit(), "bm25": ByTerms()} if both else {"bm25": ByTerms()}, "fast list", console
    )
    return out.getvalue()


def test_hit_shows_title_score_and_marked_words():
    lines = [line.rstrip() for line in printed(width=80, colour=False).splitlines()]
    assert lines[1] == "? fast list"
    assert re.fullmatch(r"bm25   \d+\.\d ms", lines[2])
    assert lines[3] == "1.  7.25  collections.deque"
    assert lines[4].startswith("   A *list*-like sequence")


def test_model_shows_matched_words():
    lines = [line.rstrip() for line in printed(width=80, colour=False, both=True).splitlines()]
    assert "   list → sequence" in lines
    assert sum("→" in line for line in lines) == 1  # BM25's matches are marked in the text


def test_wide_console_shows_answers_side_by_side():
    narrow, wide = (printed(width, colour=False, both=True).splitlines() for width in (80, 120))
    assert not [line for line in narrow if line.count("collections.deque") == 2]
    assert len([line for line in wide if line.count("1.  7.25  collections.deque") == 2]) == 1


def test_long_text_is_cut_around_the_match():
    text = "word " * 100 + "needle" + " word" * 100
    shown = show.excerpt(text, "needle", colour=False).plain
    assert shown.startswith("… word")
    assert shown.endswith("word …")
    assert "*needle*" in shown


def test_no_escape_codes_or_wide_lines_without_colour():
    text = printed(width=80, colour=False)
    assert "\x1b" not in text
    assert max(map(len, text.splitlines())) <= 80


def test_matched_word_is_coloured():
    assert "\x1b[1;33mlist\x1b[0m" in printed(width=80, colour=True)


def test_markup_in_a_document_is_not_interpreted():
    assert (
        show.highlighted("a[0] is [bold]", [Span(8, 14, 1.0, (0,))], colour=False).plain == "a[0] is *[bold]*"
    )


@pytest.mark.parametrize("colour", [True, False])
def test_text_without_match_is_unchanged(colour):
    assert show.highlighted("nothing", [], colour).plain == "nothing"


def run_demo(folder: Path, limit: int) -> str:
    out = io.StringIO()
    show.run_demo(folder, Console(file=out, width=80, highlight=False), limit)
    return out.getvalue()


def test_demo_answers_three_questions(tmp_path, monkeypatch):
    monkeypatch.setattr(locate, "_DEFAULT_FOLDERS", ())  # without the default model, which is slower
    text = run_demo(tmp_path, MAX_PASSAGES)
    assert re.match(r"\d,\d{3} passages of Python's own documentation indexed in ", text)
    assert [line[2:] for line in text.splitlines() if line.startswith("? ")] == list(show.QUERIES)
    assert text.count("\n1. ") == text.count("\n3. ") == 3
    assert "subprocess.run(" in text
    assert max(map(len, text.splitlines())) <= 80


@pytest.mark.skipif(locate.default_model() is None, reason="this copy has no default model")
def test_demo_with_default_model_and_bm25(tmp_path):
    text = run_demo(tmp_path, 60)
    assert [line.split()[0] for line in text.splitlines() if line.endswith(" ms")] == ["citadel", "bm25"] * 3
    assert "→" in text
