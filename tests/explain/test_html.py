"""The HTML of explanations is self-contained, has no scripts, and escapes texts."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path

import citadel
from citadel.encode.encoder import Encoder
from citadel.explain import explain_text
from citadel.explain.html import match_html, text_html
from tests.index.quick import Quick
from tests.support.models import ModelFolder

MARKUP = "<script>alert(1)</script> \"quoted\" 'single' & \x1b[31m \ud800 </style>"


class Page(HTMLParser):
    """Tags, links and the visible text of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.links: list[str] = []
        self.marked: list[str] = []
        self.text, self._inside = "", False
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [
            str(value) for name, value in attrs if name in ("src", "href") or name.startswith("on")
        ]
        self._inside = tag == "mark"

    def handle_endtag(self, tag: str) -> None:
        self._inside = False

    def handle_data(self, data: str) -> None:
        self.text += data
        if self._inside:
            self.marked.append(data)


def test_match_page_escapes_the_document_and_marks_spans(tmp_path: Path) -> None:
    index = citadel.Index.create(Quick(tmp_path / "index"))
    index.add([{"id": "<d1>", "title": "A <fox>", "text": f"{MARKUP[:-9].replace(chr(0xD800), '')} the fox"}])
    page = Page(match_html(index.commit().searcher().explain("a fox & an alert", "<d1>")))
    assert "script" not in page.tags and page.links == [] and "<script>alert" in page.text
    assert page.marked == ["fox", "alert", "fox"]
    assert page.tags.count("tr") == 3


def test_match_page_escapes_the_query(tmp_path: Path) -> None:
    index = citadel.Index.create(Quick(tmp_path / "index"))
    index.add([{"id": "d1", "text": "fox"}])
    page = Page(match_html(index.commit().searcher().explain(MARKUP, "d1")))
    assert "script" not in page.tags and page.tags.count("style") == 1 and "no score" in page.text


def test_text_page_escapes_tokens_and_greys_pruned_ones(tiny_model: ModelFolder) -> None:
    encoder = Encoder(tiny_model())
    page = text_html(explain_text(encoder, "einstein <b>proposed</b>", tau=0.0))
    assert "b" not in Page(page).tags and 'class="token pruned"' in page  # [CLS]
    grey = text_html(explain_text(encoder, "einstein proposed", tau=99.0))
    assert grey.count('class="token pruned"') == 4 and 'class="token"' not in grey


def test_text_page_lists_keys_of_a_sparse_router(tiny_model: ModelFolder) -> None:
    assert "Keys of the whole text" in text_html(explain_text(Encoder(tiny_model("sparse")), "einstein"))
