"""Hits of long documents with the passage that matched best."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import citadel
from tests.server.web.conftest import Serve
from tests.server.web.test_page import opened, wait_for_text

FILLER = "ordinary words without a match, " * 40
TEXT = f"relativity at the start. {FILLER}😀 relativity in the passage. {FILLER}"
START = TEXT.index("😀")


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory, serve: Serve) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("passage") / "index"
    with citadel.Index.create(folder) as index:
        index.add([{"id": "d1", "text": TEXT}])
        index.commit()
    with serve(folder) as served:
        yield served.url


@pytest.mark.parametrize("is_explained", [False, True])
def test_snippet_comes_from_the_passage(browser: Any, url: str, is_explained: bool) -> None:
    def search(route: Any) -> None:
        answer = route.fetch().json()
        for hit in answer["hits"]:
            hit["passage"] = {"start": START, "end": START + 300}
        route.fulfill(json=answer)

    with opened(browser, "about:blank") as page:
        page.route("**/v1/search", search)
        if not is_explained:
            page.route("**/v1/explain", lambda route: None)  # never answered
        page.goto(f"{url}/#q=relativity")
        wait_for_text(page, ".passage", f"passage at character {START:,} of the document")
        if is_explained:
            page.locator("#hits mark").first.wait_for()
            assert page.locator("#hits mark").all_inner_texts() == ["relativity"]
        snippet = page.locator("#hits .snippet").inner_text()
        assert snippet.startswith("… 😀 relativity in the passage.") and snippet.endswith(" …")
        assert "at the start" not in snippet


def test_hit_without_a_passage(browser: Any, url: str) -> None:
    with opened(browser, f"{url}/#q=relativity") as page:
        page.locator("#hits mark").first.wait_for()
        assert page.locator(".passage").count() == 0


def test_passage_beyond_the_returned_text(browser: Any, url: str) -> None:
    """The server cuts very long texts; the beginning is shown until the explanation has arrived."""

    def search(route: Any) -> None:
        answer = route.fetch().json()
        for hit in answer["hits"]:
            hit |= {"passage": {"start": START, "end": START + 300}, "text": hit["text"][:100]}
        route.fulfill(json=answer)

    with opened(browser, "about:blank") as page:
        page.route("**/v1/search", search)
        page.goto(f"{url}/#q=relativity")
        page.locator("#hits mark").first.wait_for()
        assert "relativity in the passage" in page.locator("#hits .snippet").inner_text()
