"""Field names and values that try to be more than text: markup, bidi marks, prototypes, great length."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import citadel
from tests.server.web.conftest import Serve
from tests.server.web.test_page import opened, search_for, wait_for_text

MARKUP = "<img src=x onerror=alert(1)><script>alert(2)</script>"
BIDI = "\u202egnp.exe\u2066"
LONG = "x" * 10_000
METADATA: dict[str, Any] = {
    MARKUP: MARKUP,
    BIDI: BIDI,
    "y" * 900: LONG,
    "__proto__": "polluted",
    "constructor": ["a", "toString"],
    "$or": "an operator",
    "big": 9007199254740993,
    "blank": "",
}


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory, serve: Serve) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("hostile") / "index"
    with citadel.Index.create(folder) as index:
        index.add({"id": id, "text": "relativity"} | METADATA for id in ("d1", "d2"))
        index.add([{"id": "d3", "text": "relativity"}])
        index.commit()
    with serve(folder) as served:
        yield served.url


@pytest.fixture(params=[1200, 390], ids=["wide", "narrow"])
def page(request: pytest.FixtureRequest, browser: Any, url: str) -> Iterator[Any]:
    """A search with the panel open."""
    with opened(browser, url, viewport={"width": request.param, "height": 800}) as page:
        search_for(page, "relativity")
        page.evaluate("document.getElementById('side').open = true")
        page.locator(".facet").first.wait_for()
        yield page


def test_facets_are_text(page: Any) -> None:
    names = page.locator(".facet legend").all_inner_texts()
    assert names == [MARKUP, BIDI, "y" * 59 + "…", "__proto__", "constructor", "blank"]
    assert page.locator("main img, main script").count() == 0
    values = [value for value in page.locator(".facet bdi").all_inner_texts() if value]
    assert values == [MARKUP, BIDI, "x" * 59 + "…", "polluted", "a", "toString", "(empty)"]


def test_nothing_scrolls_sideways(page: Any) -> None:
    page.locator("#hits .quiet").first.click()  # all fields
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    page.locator("#hits .title").first.click()
    page.wait_for_selector("#why .plain")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_every_value_can_be_ticked(page: Any) -> None:
    for number in range(page.locator(".facet input").count()):
        page.locator(".facet input").nth(number).click()
        wait_for_text(page, "#status", "The best 2 of 2 documents that match the filter")
        page.locator(".facet input:checked").first.wait_for()
        page.get_by_role("button", name="Clear").click()
        wait_for_text(page, "#status", "The best 3 of 3 documents in")
        page.locator(".facet:not(:has([checked]))").first.wait_for()
    assert page.evaluate("({}).polluted === undefined && Object.prototype.polluted === undefined")


def test_link_with_a_long_value(page: Any, browser: Any) -> None:
    page.locator(".facet").nth(2).locator("input").click()
    wait_for_text(page, "#status", "The best 2 of 2 documents that match the filter")
    with opened(browser, page.url) as again:
        wait_for_text(again, "#status", "The best 2 of 2 documents that match the filter")


def test_policy_forbids_inline_code(browser: Any, url: str) -> None:
    """The content security policy is in force in the page itself."""
    context = browser.new_context()
    page = context.new_page()
    page.goto(url)
    page.evaluate(
        """() => {
            const script = document.createElement("script");
            script.textContent = "window.injected = true";
            document.body.append(script);
        }"""
    )
    assert page.evaluate("window.injected") is None
    context.close()
