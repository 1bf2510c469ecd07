"""The field `url` of a document becomes a link if it is a web address, and text otherwise."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import citadel
from tests.server.web.conftest import Serve
from tests.server.web.test_page import opened, search_for

LINKS = {
    "https://example.org/a?b=1#c": "https://example.org/a?b=1#c",
    "http://example.org": "http://example.org/",
    "HTTPS://EXAMPLE.ORG/x": "https://example.org/x",
    "https://example.org/\u202egnp.exe": "https://example.org/%E2%80%AEgnp.exe",
    'https://example.org/"><img src=x onerror=alert(1)>': (
        "https://example.org/%22%3E%3Cimg%20src=x%20onerror=alert(1)%3E"
    ),
    "https://еxample.org/": "https://xn--xample-2of.org/",  # a Cyrillic letter
}
TEXTS = [
    "javascript:alert(1)",
    " JavaScript:alert(1)",
    "java\nscript:alert(1)",
    "data:text/html,<script>alert(1)</script>",
    "vbscript:x",
    "file:///etc/passwd",
    "blob:https://example.org/1",
    "//example.org",
    "/v1/stats",
    "example.org",
    "https://",
    "",
]


SCRIPT = """async (url) => {
    const { allFacts, facts } = await import("/facts.js");
    const hit = { id: "d1", metadata: { url } };
    const links = [facts, allFacts].map((render) => render(hit).querySelector("a"));
    return links.map((link) => link && [link.getAttribute("href"), link.rel, link.target]);
}"""


@pytest.fixture(scope="module")
def page(browser: Any, serve: Serve, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    folder = tmp_path_factory.mktemp("links") / "index"
    documents: list[dict[str, Any]] = [
        {"id": "good", "text": "relativity", "year": 1905, "site": "https://a.org", "url": "https://b.org/x"},
        {"id": "bad", "text": "relativity", "url": "javascript:alert(1)"},
    ]
    with citadel.Index.create(folder) as index:
        index.add(documents)
        index.commit()
    with serve(folder) as served, opened(browser, served.url) as page:
        yield page


@pytest.mark.parametrize("address", LINKS)
def test_web_address(page: Any, address: str) -> None:
    assert page.evaluate(SCRIPT, address) == 2 * [[LINKS[address], "noopener noreferrer", "_blank"]]


@pytest.mark.parametrize("address", TEXTS)
def test_anything_else_stays_text(page: Any, address: str) -> None:
    assert page.evaluate(SCRIPT, address) == [None, None]


@pytest.mark.parametrize("value", [["https://example.org"], {"a": "https://example.org"}, 7, None, True])
def test_only_strings_are_links(page: Any, value: Any) -> None:
    assert page.evaluate(SCRIPT, value) == [None, None]


def test_links_of_hits(page: Any) -> None:
    """Only the field `url`, labelled, in the list and in the panel; clicking it opens a tab of its own."""
    search_for(page, "relativity")
    good, bad = (page.locator(f'#hits li[data-id="{id}"]') for id in ("good", "bad"))
    assert good.locator("dt").all_inner_texts() == ["id", "url", "year", "site"]
    assert good.locator("a").all_inner_texts() == ["https://b.org/x"]
    assert bad.locator("a").count() == 0
    assert bad.locator("dd").all_inner_texts() == ["bad", "javascript:alert(1)"]
    page.context.route("https://b.org/**", lambda route: route.fulfill(body="opened"))
    with page.context.expect_page() as opening:
        good.locator("a").click()
    assert opening.value.evaluate("window.opener === null && document.referrer === ''")
    opening.value.close()
