"""More hits: appended below, kept in the deep link, and consistent when the index changes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest

import citadel
from tests.server.web.conftest import Serve
from tests.server.web.test_page import opened, search_for, wait_for_text

TOKEN = "a token for writing"
PAPERS = [
    {"id": f"d{number}", "text": "relativity " * (26 - number) + "paper " * number, "half": number % 2}
    for number in range(25)
]


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory, serve: Serve) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("paging") / "index"
    with citadel.Index.create(folder) as index:
        index.add(PAPERS)
        index.commit()
    with serve(folder) as served:
        yield served.url


@pytest.fixture
def page(browser: Any, url: str) -> Iterator[Any]:
    with opened(browser, url) as page:
        yield page


def shown_ids(page: Any) -> list[str]:
    return [str(item.get_attribute("data-id")) for item in page.locator("#hits > li").all()]


def test_more_appends_until_the_end(page: Any, url: str) -> None:
    search_for(page, "relativity")
    first = shown_ids(page)
    page.click("#more")
    wait_for_text(page, "#status", "The best 20 of 25 documents")
    assert shown_ids(page)[:10] == first
    assert page.evaluate("document.activeElement.closest('li').dataset.id") == shown_ids(page)[10]
    page.click("#more")
    wait_for_text(page, "#status", "The best 25 of 25 documents")
    assert not page.is_visible("#more")
    hits = citadel.Client(url).search("relativity", k=25)
    assert shown_ids(page) == [hit.id for hit in hits]


def test_every_page_is_explained(page: Any) -> None:
    page.fill("#query", "relativity")
    page.click("#more")  # the explanations of the first page may not have arrived
    page.locator("#hits > li").nth(19).locator(".bar i").wait_for()
    assert page.locator("#hits > li:not(:has(mark))").count() == 0


def test_more_keeps_the_filter_of_the_hits_shown(page: Any) -> None:
    """A filter that was typed but not applied does not change the next page."""
    page.fill("#query", "relativity")
    page.wait_for_selector("#more:not([hidden])")
    page.fill("#filter", '{"half": 0}')
    page.press("#filter", "Enter")
    wait_for_text(page, "#status", "The best 10 of 13 documents")
    page.fill("#filter", '{"half": 1')
    page.click("#more")
    wait_for_text(page, "#status", "The best 13 of 13 documents")
    assert not page.is_visible("#more") and not page.is_visible("#filter-problem")
    assert all(int(id[1:]) % 2 == 0 for id in shown_ids(page))
    assert parse_qs(page.evaluate("location.hash.slice(1)"))["filter"] == ['{"half": 0}']


def test_deep_link_restores_the_pages(page: Any, browser: Any) -> None:
    search_for(page, "relativity")
    page.click("#more")
    wait_for_text(page, "#status", "The best 20 of")
    assert page.url.endswith("#q=relativity&offset=10")
    with opened(browser, page.url) as again:
        wait_for_text(again, "#status", "The best 20 of 25 documents")
        assert shown_ids(again) == shown_ids(page)
        again.click("#more")
        wait_for_text(again, "#status", "The best 25 of 25 documents")


@pytest.mark.parametrize("offset", ["-10", "x", "1e9", "99999999999", "NaN", "7", ""])
def test_strange_offset_in_a_link(browser: Any, url: str, offset: str) -> None:
    with opened(browser, f"{url}/#q=relativity&offset={offset}") as page:
        wait_for_text(page, "#status", "The best 10 of 25 documents")


def test_large_offset_in_a_link_is_limited(browser: Any, url: str) -> None:
    bodies: list[Any] = []
    with opened(browser, "about:blank") as page:
        page.on(
            "request", lambda request: bodies.append(request.post_data_json) if request.post_data else None
        )
        page.goto(f"{url}/#q=relativity&offset=9000")
        wait_for_text(page, "#status", "The best 25 of 25 documents")
    assert max(body.get("k", 0) for body in bodies) == 101


def test_a_new_query_starts_at_the_top(page: Any) -> None:
    search_for(page, "relativity")
    page.click("#more")
    wait_for_text(page, "#status", "The best 20 of")
    page.fill("#query", "paper")
    wait_for_text(page, "#status", "The best 10 of 25 documents")
    assert page.url.endswith("#q=paper")


def test_index_that_changes_between_pages(browser: Any, serve: Serve, tmp_path: Path) -> None:
    """No document twice, none left out: all pages are read again from the new generation."""
    with citadel.Index.create(tmp_path / "index") as index:
        index.add(PAPERS)
        index.commit()
    with serve(tmp_path / "index", CITADEL_WRITE_TOKEN=TOKEN) as served, opened(browser, served.url) as page:
        search_for(page, "relativity")
        client = citadel.Client(served.url, token=TOKEN)
        client.add([{"id": "new", "text": "relativity " * 40}])
        client.commit()
        page.click("#more")
        wait_for_text(page, "#status", "The best 20 of")
        assert shown_ids(page) == [hit.id for hit in client.search("relativity", k=20)]


def test_failed_page_can_be_tried_again(browser: Any, url: str) -> None:
    context = browser.new_context()  # Chromium logs the failed request as an error
    page = context.new_page()
    page.goto(f"{url}/#q=relativity")
    page.wait_for_selector("#more:not([hidden])")
    page.route("**/v1/search", lambda route: route.abort())
    page.click("#more")
    wait_for_text(page, "#problem", "The server does not respond")
    page.unroute("**/v1/search")
    page.get_by_role("button", name="Try again").click()
    wait_for_text(page, "#status", "The best 20 of 25 documents")
    context.close()
