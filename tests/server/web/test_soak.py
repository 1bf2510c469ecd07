"""A long session in the page: no errors, and neither the DOM nor the heap grows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import citadel
from tests.server.web.conftest import Serve
from tests.server.web.test_page import opened

WARM_UP, ROUNDS = 10, 60
QUERIES = ("physics of number {}", "number {} again", "relativity {}")


def search_and_explain(page: Any, number: int) -> None:
    """Type a query, explain its first hit, and go back.

    Locators only: the element handles of `wait_for_selector` would keep removed nodes alive.
    """
    page.locator("#query").press_sequentially(QUERIES[number % len(QUERIES)].format(number))
    page.locator("#legend li").first.wait_for()
    page.locator("#hits .title").first.click()
    page.locator("#why svg").first.wait_for()
    page.keyboard.press("Escape")
    page.locator("#query").fill("")
    page.locator("#intro:not([hidden])").wait_for()


def usage(devtools: Any) -> dict[str, float]:
    """DOM nodes, event listeners and bytes of the heap, after a garbage collection."""
    devtools.send("HeapProfiler.collectGarbage")
    metrics = {row["name"]: row["value"] for row in devtools.send("Performance.getMetrics")["metrics"]}
    return {name: metrics[name] for name in ("Nodes", "JSEventListeners", "JSHeapUsedSize")}


@pytest.mark.night
def test_long_session_does_not_leak(browser: Any, serve: Serve, tmp_path: Path) -> None:
    with citadel.Index.create(tmp_path / "index") as index:
        index.add({"id": f"d{n}", "text": f"physics of number {n}, relativity again"} for n in range(400))
        index.commit()
    with serve(tmp_path / "index") as served, opened(browser, served.url) as page:
        devtools = page.context.new_cdp_session(page)
        devtools.send("Performance.enable")
        for number in range(WARM_UP):
            search_and_explain(page, number)
        before = usage(devtools)
        for number in range(ROUNDS):
            search_and_explain(page, number)
        after = usage(devtools)
    print(before, after)
    assert {name: after[name] for name in before if after[name] > 1.5 * before[name]} == {}
