"""The side panel of the page: facets, the filter box and their deep links, on a real server."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode

import pytest

import citadel
from tests.server.web.conftest import Serve
from tests.server.web.test_page import opened, search_for, wait_for_text

TAGS = ("light", "motion", "gravity")


def paper(number: int) -> dict[str, Any]:
    """Twelve years, two languages, one or two tags; every report is distinct."""
    return {
        "id": f"d{number}",
        "text": f"relativity paper number {number}",
        "year": 1900 + number % 12,
        "lang": "de" if number % 4 == 0 else "en",
        "tags": sorted({TAGS[number % 3], TAGS[number % 2]}),
        "reviewed": number % 2 == 0,
        "report": f"R-{number}",
        "url": "https://example.org/paper",
    }


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory, serve: Serve) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("filters") / "index"
    with citadel.Index.create(folder) as index:
        index.add(map(paper, range(36)))
        index.commit()
    with serve(folder) as served:
        yield served.url


@pytest.fixture
def page(browser: Any, url: str) -> Iterator[Any]:
    with opened(browser, url) as page:
        yield page


def facet(page: Any, field: str) -> Any:
    """The values of one field."""
    return page.locator("fieldset.facet").filter(has=page.locator("legend").get_by_text(field, exact=True))


def box(page: Any, field: str, value: str) -> Any:
    """The checkbox of one value."""
    return facet(page, field).get_by_role("checkbox", name=re.compile(f"^{re.escape(value)} "))


def tick(page: Any, field: str, value: str, status: str) -> None:
    box(page, field, value).click()
    wait_for_text(page, "#status", status)


def filter_of(page: Any) -> Any:
    text = page.input_value("#filter")
    return json.loads(text) if text else None


def apply(page: Any, text: str) -> None:
    page.fill("#filter", text)
    page.press("#filter", "Enter")


def shown_ids(page: Any) -> list[str]:
    return [str(item.get_attribute("data-id")) for item in page.locator("#hits > li").all()]


# ---- facets ------------------------------------------------------------------------------------------------


def test_facets_of_fields_whose_values_repeat(page: Any) -> None:
    search_for(page, "relativity")
    facet(page, "year").wait_for()
    assert page.locator(".facet legend").all_inner_texts() == ["year", "lang", "tags", "reviewed"]
    labels = [label.inner_text().split() for label in facet(page, "lang").locator("label").all()]
    assert labels == [["en", "27", "documents"], ["de", "9", "documents"]]


def test_no_panel_before_a_query(page: Any) -> None:
    wait_for_text(page, "#about", "36 documents")
    assert not page.is_visible("#side")


def test_one_value_then_another(page: Any) -> None:
    search_for(page, "relativity")
    tick(page, "lang", "de", "The best 9 of 9 documents that match the filter")
    assert filter_of(page) == {"lang": "de"} and box(page, "lang", "de").is_checked()
    wait_for_text(page, "#side-title", "Filter: 9 of 36")
    # the counts of the field itself leave its own condition out, so "en" can be added
    tick(page, "lang", "en", "The best 10 of 36 documents that match the filter")
    assert filter_of(page) == {"lang": {"$in": ["de", "en"]}}
    tick(page, "lang", "de", "The best 10 of 27 documents")
    tick(page, "lang", "en", "The best 10 of 36 documents in")
    assert filter_of(page) is None


def test_members_of_a_list_narrow_the_hits(page: Any) -> None:
    search_for(page, "relativity")
    tick(page, "tags", "gravity", "of 12 documents that match")
    tick(page, "tags", "light", "of 6 documents that match")
    assert filter_of(page) == {
        "tags": {"$contains": "gravity"},
        "$and": [{"tags": {"$contains": "light"}}],
    }
    tick(page, "tags", "gravity", "of 24 documents that match")
    assert filter_of(page) == {"$and": [{"tags": {"$contains": "light"}}]}
    box(page, "tags", "light").locator("xpath=self::*[@checked]").wait_for()


def test_counts_follow_the_filter(page: Any) -> None:
    search_for(page, "relativity")
    tick(page, "lang", "de", "of 9 documents")
    facet(page, "reviewed").filter(has_text="true9 documents").wait_for()
    assert facet(page, "reviewed").locator("label").count() == 1  # no German paper is unreviewed
    tick(page, "reviewed", "true", "of 9 documents")
    assert filter_of(page) == {"lang": "de", "reviewed": True}


def test_ten_values_and_more(page: Any) -> None:
    search_for(page, "relativity")
    facet(page, "year").wait_for()
    assert facet(page, "year").locator("label").count() == 10
    page.get_by_role("button", name="2 more values of year").press("Enter")
    years = [label.inner_text().split()[0] for label in facet(page, "year").locator("label").all()]
    assert years == [str(year) for year in range(1900, 1912)]
    focused = page.evaluate("document.activeElement.closest('label').innerText")
    assert focused.startswith("1910")  # the first of the further values


def test_a_facet_adds_to_a_written_filter(page: Any) -> None:
    search_for(page, "relativity")
    apply(page, '{"year": {"$gte": 1906}, "$or": [{"lang": "en"}, {"reviewed": true}]}')
    wait_for_text(page, "#status", "of 18 documents that match")
    tick(page, "year", "1908", "The best 3 of 3 documents")
    assert filter_of(page) == {
        "year": {"$gte": 1906, "$eq": 1908},
        "$or": [{"lang": "en"}, {"reviewed": True}],
    }


def test_ticked_values_without_documents_stay_listed(page: Any) -> None:
    search_for(page, "relativity")
    apply(page, '{"year": 1800}')
    wait_for_text(page, "#status", "No document matches the filter. Change it or clear it.")
    wait_for_text(page, ".facet", "1800")
    assert box(page, "year", "1800").is_checked()
    tick(page, "year", "1800", "of 36 documents in")


def test_a_query_without_hits_within_the_filter(page: Any) -> None:
    search_for(page, "relativity")
    tick(page, "lang", "de", "of 9 documents")
    page.fill("#query", "zebra")
    wait_for_text(
        page, "#status", "No document matches this query among the 9 documents that match the filter"
    )


def test_facets_by_keyboard_keep_the_focus(page: Any) -> None:
    search_for(page, "relativity")
    facet(page, "lang").wait_for()
    box(page, "lang", "de").focus()
    page.keyboard.press("Space")
    wait_for_text(page, "#status", "of 9 documents")
    facet(page, "reviewed").filter(has_text="true9 documents").wait_for()  # drawn again
    assert page.evaluate("document.activeElement.closest('label').innerText").startswith("de")
    assert page.evaluate("document.activeElement.checked")


def test_button_shows_the_other_fields(page: Any) -> None:
    search_for(page, "relativity")
    first = page.locator("#hits > li").first
    assert first.locator("dt").all_inner_texts() == ["id", "url", "year", "lang", "tags"]
    first.get_by_role("button", name="2 more fields").click()
    assert first.locator("dt").all_inner_texts() == [
        "id",
        "url",
        "year",
        "lang",
        "tags",
        "reviewed",
        "report",
    ]


# ---- the filter box ----------------------------------------------------------------------------------------


def test_filter_box(page: Any) -> None:
    search_for(page, "relativity")
    apply(page, '{"year": {"$lt": 1902}}')
    wait_for_text(page, "#status", "The best 6 of 6 documents that match the filter")
    assert set(shown_ids(page)) == {"d0", "d1", "d12", "d13", "d24", "d25"}
    page.get_by_role("button", name="Clear").click()
    wait_for_text(page, "#status", "The best 10 of 36 documents in")
    assert page.evaluate("document.activeElement.id") == "filter"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "Not valid JSON"),
        ("[1]", "A filter is a JSON object"),
        ('{"year": 1, "year": 2}', "occurs twice"),
        ('{"report": 9007199254740993}', "more digits than a browser can hold"),
    ],
)
def test_filter_that_is_not_sent(page: Any, text: str, message: str) -> None:
    search_for(page, "relativity")
    facet(page, "lang").wait_for()
    requests: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    apply(page, text)
    wait_for_text(page, "#filter-problem", message)
    assert not [address for address in requests if address.endswith("/v1/search")]
    assert page.get_attribute("#filter", "aria-invalid") == "true"
    assert "stale" in (page.get_attribute("#hits", "class") or "")
    box(page, "lang", "de").click()  # cannot be added to such a text, which is kept
    assert page.input_value("#filter") == text and not box(page, "lang", "de").is_checked()
    apply(page, "")
    wait_for_text(page, "#status", "of 36 documents in")
    assert not page.is_visible("#filter-problem")


def test_filter_that_the_server_refuses(browser: Any, url: str) -> None:
    context = browser.new_context()  # Chromium logs the status 422 as an error
    page = context.new_page()
    page.goto(f"{url}/#q=relativity")
    page.wait_for_selector("#legend li")
    apply(page, '{"year": {"$near": 1900}}')
    wait_for_text(page, "#filter-problem", 'unknown operator "$near"')
    wait_for_text(page, "#status", "The filter has an error")
    assert not page.is_visible("#problem") and not page.is_visible("#more")
    apply(page, '{"year": {"$gte": 1911}}')
    wait_for_text(page, "#status", "The best 3 of 3 documents")
    assert not page.is_visible("#filter-problem")
    assert page.get_attribute("#filter", "aria-invalid") == "false"
    context.close()


def test_box_and_its_problem_are_connected_for_screen_readers(page: Any) -> None:
    search_for(page, "relativity")
    assert page.get_by_label("Filter as JSON").get_attribute("id") == "filter"
    assert "filter-problem" in page.get_attribute("#filter", "aria-describedby")
    assert page.get_attribute("#filter-problem", "role") == "alert"
    facet(page, "lang").wait_for()
    assert page.get_by_role("group", name="lang").get_by_role("checkbox", name="de 9 documents").count() == 1


# ---- deep links --------------------------------------------------------------------------------------------


def test_deep_link_with_a_filter(browser: Any, url: str) -> None:
    filter = {"lang": "de", "tags": {"$contains": "light"}}
    with opened(browser, f"{url}/#{urlencode({'q': 'paper', 'filter': json.dumps(filter)})}") as page:
        wait_for_text(page, "#status", "of 9 documents that match the filter")
        facet(page, "lang").wait_for()
        assert filter_of(page) == filter
        assert box(page, "lang", "de").is_checked() and box(page, "tags", "light").is_checked()


def test_back_undoes_a_facet(page: Any) -> None:
    search_for(page, "relativity")
    tick(page, "lang", "de", "of 9 documents")
    link = parse_qs(page.evaluate("location.hash.slice(1)"))
    assert link["q"] == ["relativity"] and json.loads(link["filter"][0]) == {"lang": "de"}
    page.go_back()
    wait_for_text(page, "#status", "of 36 documents in")
    assert filter_of(page) is None
    page.go_forward()
    wait_for_text(page, "#status", "of 9 documents")


def test_deep_link_with_a_broken_filter(browser: Any, url: str) -> None:
    with opened(browser, f"{url}/#q=paper&filter=%7B") as page:
        wait_for_text(page, "#filter-problem", "Not valid JSON")
        assert page.input_value("#filter") == "{" and page.locator("#hits li").count() == 0
        apply(page, "")
        wait_for_text(page, "#status", "of 36 documents in")


def test_filter_without_a_query_waits(browser: Any, url: str) -> None:
    with opened(browser, f"{url}/#filter=%7B%22lang%22%3A%22de%22%7D") as page:
        assert page.is_visible("#side") and page.is_visible("#intro")
        page.fill("#query", "paper")
        wait_for_text(page, "#status", "of 9 documents that match the filter")


# ---- other indexes and windows -----------------------------------------------------------------------------


def test_index_without_metadata_has_no_panel(browser: Any, serve: Serve, tmp_path: Path) -> None:
    with citadel.Index.create(tmp_path / "index") as index:
        index.add([{"id": "d1", "text": "relativity"}])
        index.commit()
    with serve(tmp_path / "index") as served, opened(browser, served.url) as page:
        search_for(page, "relativity")
        page.wait_for_selector("#side", state="hidden")


def test_empty_index(browser: Any, serve: Serve, tmp_path: Path) -> None:
    with citadel.Index.create(tmp_path / "index") as index:
        index.commit()
    with serve(tmp_path / "index") as served, opened(browser, f"{served.url}/#q=relativity") as page:
        wait_for_text(page, "#status", "This index has no documents.")


def test_panel_folds_in_a_narrow_window(browser: Any, url: str) -> None:
    with opened(browser, f"{url}/#q=relativity", viewport={"width": 390, "height": 844}) as page:
        page.wait_for_selector("#legend li")
        assert page.is_visible("#side-title") and not page.is_visible("#filter")
        page.locator("#side-title").focus()
        page.keyboard.press("Enter")
        facet(page, "lang").wait_for()
        tick(page, "lang", "de", "of 9 documents")
        assert page.locator("#side-title").inner_text() == "Filter: 9 of 36"
        assert page.is_visible("#filter")  # stays open
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_new_generation_counts_again(browser: Any, serve: Serve, tmp_path: Path) -> None:
    token = "a token for writing"
    with citadel.Index.create(tmp_path / "index") as index:
        index.add(map(paper, range(4)))
        index.commit()
    environment = {"CITADEL_WRITE_TOKEN": token}
    with serve(tmp_path / "index", **environment) as served, opened(browser, served.url) as page:
        search_for(page, "paper")
        facet(page, "lang").filter(has_text="en3 documents").wait_for()
        client = citadel.Client(served.url, token=token)
        client.add([paper(5)])
        client.commit()
        page.fill("#query", "paper relativity")
        facet(page, "lang").filter(has_text="en4 documents").wait_for()
