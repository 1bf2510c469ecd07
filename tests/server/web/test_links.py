"""The field `url` of a document becomes a link if it is a web address, and text otherwise."""

from __future__ import annotations

from pathlib import Path
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


@pytest.fixture(scope="module")
def hits(
    browser: Any, serve: Serve, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, tuple[str | None, str | None, str | None]]:
    """(href, rel, target) of the link in the hit of each address; the panel must show the same."""
    folder = tmp_path_factory.mktemp("links") / "index"
    addresses = [*LINKS, *TEXTS]
    with citadel.Index.create(folder) as index:
        index.add({"id": f"d{n}", "text": f"word{n}", "url": url} for n, url in enumerate(addresses))
        index.commit()
    links: dict[str, tuple[str | None, str | None, str | None]] = {}
    with serve(folder) as served, opened(browser, served.url) as page:
        for number, address in enumerate(addresses):
            page.fill("#query", "")
            page.wait_for_selector("#intro:not([hidden])")
            search_for(page, f"word{number}")
            links[address] = attributes(page.locator("#hits .facts"))
            page.locator("#hits .title").click()
            page.wait_for_selector("#why .plain")
            assert attributes(page.locator("#why .plain")) == links[address]
            page.keyboard.press("Escape")
    return links


def attributes(facts: Any) -> tuple[str | None, str | None, str | None]:
    link = facts.locator("a")
    if not link.count():
        return None, None, None
    return link.get_attribute("href"), link.get_attribute("rel"), link.get_attribute("target")


@pytest.mark.parametrize("address", LINKS)
def test_web_address(hits: dict[str, Any], address: str) -> None:
    assert hits[address] == (LINKS[address], "noopener noreferrer", "_blank")


@pytest.mark.parametrize("address", TEXTS)
def test_anything_else_stays_text(hits: dict[str, Any], address: str) -> None:
    assert hits[address] == (None, None, None)


@pytest.mark.parametrize("value", [["https://example.org"], {"a": "https://example.org"}, 7, None, True])
def test_only_strings_are_links(browser: Any, serve: Serve, tmp_path: Path, value: Any) -> None:
    with citadel.Index.create(tmp_path / "index") as index:
        index.add([{"id": "d1", "text": "relativity", "url": value, "site": "https://example.org"}])
        index.commit()
    with serve(tmp_path / "index") as served, opened(browser, served.url) as page:
        search_for(page, "relativity")
        assert page.locator("#hits a").count() == 0
