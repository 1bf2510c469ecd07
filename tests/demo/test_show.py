"""What the demonstration prints, in colour and without."""

from __future__ import annotations

import io
import re
from typing import Literal

import pytest
from rich.console import Console

from citadel.demo import show
from citadel.types import Document, Hit

DEQUE = Document(
    "collections.deque", "A list-like sequence optimized for data accesses near its endpoints.", "collections.deque"
)


class OneHit:
    def search(self, query: str, k: int) -> list[Hit]:
        return [Hit(DEQUE.id, 7.25, 1, lambda rank: DEQUE)][:k]


def printed(width: int, colour: bool) -> str:
    out = io.StringIO()
    system: Literal["standard"] | None = "standard" if colour else None
    console = Console(file=out, width=width, force_terminal=colour, color_system=system, highlight=False)
    show.answer(OneHit(), "fast list", console)
    return out.getvalue()


def test_a_hit_shows_title_score_and_marked_words():
    lines = printed(width=80, colour=False).splitlines()
    assert lines[1].startswith("? fast list   ")
    assert lines[1].endswith(" ms")
    assert lines[2] == "1.  7.25  collections.deque"
    assert lines[3].startswith("   A *list*-like sequence")


def test_a_long_text_is_cut_around_the_match_and_says_so():
    text = "word " * 100 + "needle" + " word" * 100
    shown = show.excerpt(text, "needle", colour=False).plain
    assert shown.startswith("… word")
    assert shown.endswith("word …")
    assert "*needle*" in shown


def test_without_colour_there_is_no_escape_code_and_no_wide_line():
    text = printed(width=80, colour=False)
    assert "\x1b" not in text
    assert max(map(len, text.splitlines())) <= 80


def test_in_colour_the_matched_word_is_coloured():
    assert "\x1b[1;33mlist\x1b[0m" in printed(width=80, colour=True)


def test_markup_in_a_document_is_shown_as_it_is():
    assert show.highlighted("a[0] is [bold]", [(8, 14)], colour=False).plain == "a[0] is *[bold]*"


@pytest.mark.parametrize("colour", [True, False])
def test_no_match_leaves_the_text_alone(colour):
    assert show.highlighted("nothing", [], colour).plain == "nothing"


def test_the_whole_demonstration_answers_three_questions(tmp_path):
    out = io.StringIO()
    show.run_demo(tmp_path / "index", Console(file=out, width=80, highlight=False))
    text = out.getvalue()
    assert re.match(r"\d,\d{3} passages of Python's own documentation indexed in ", text)
    assert [line[2:].split("   ")[0] for line in text.splitlines() if line.startswith("? ")] == list(show.QUERIES)
    assert text.count("\n1. ") == text.count("\n3. ") == 3
    assert "subprocess.run(" in text
    assert "shutil.copytree(" in text
    assert max(map(len, text.splitlines())) <= 80
