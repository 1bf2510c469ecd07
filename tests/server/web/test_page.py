"""The page in a real browser on a real server, by mouse and by keyboard."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import citadel
from tests.server.web.conftest import Serve
from tests.support.models import ROUTERS, ModelFolder

DOCUMENTS: list[dict[str, Any]] = [
    {"id": "d1", "title": "Relativity", "text": "Einstein proposed relativity in physics.", "year": 1905},
    {"id": "d2", "text": "Darwin proposed evolution. 😀 𝔘nicode before a gorilla."},
    {
        "id": "d3",
        "title": "<img src=x onerror=alert(1)>",
        "text": "<script>alert(2)</script> newton & gravity",
    },
]
FAR = " ".join(["ordinary"] * 200)
MATCHING = {
    "bm25": "BM25",
    "dynamic": "keys chosen by a model",
    "static": "same words",
    "all_to_all": "every word with every word",
    "centroid": "every word with the nearest words",
    "sparse": "weighted keys",
    "none": "overall meaning",
}


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("page") / "index"
    with citadel.Index.create(folder) as index:
        index.add([*DOCUMENTS, {"id": "d4", "text": f"{FAR} einstein {FAR}"}])
        index.commit()
    return folder


@pytest.fixture(scope="module")
def url(index: Path, serve: Serve) -> Iterator[str]:
    with serve(index) as served:
        yield served.url


@contextmanager
def opened(browser: Any, url: str, **options: Any) -> Iterator[Any]:
    """Open a page and fail on script errors, warnings and violations of its policy."""
    context = browser.new_context(**({"viewport": {"width": 1200, "height": 800}} | options))
    page, problems = context.new_page(), list[str]()
    page.set_default_timeout(60_000)  # a busy machine is not a failure
    page.on(
        "console",
        lambda message: problems.append(message.text) if message.type in ("error", "warning") else None,
    )
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("dialog", lambda dialog: problems.append("a document opened a dialog"))
    page.goto(url)
    yield page
    context.close()
    assert problems == []


@pytest.fixture
def page(browser: Any, url: str) -> Iterator[Any]:
    with opened(browser, url) as page:
        yield page


def wait_for_text(page: Any, selector: str, text: str) -> None:
    """Wait without `wait_for_function`, whose eval the page's policy forbids."""
    page.locator(selector).filter(has_text=text).wait_for()


def search_for(page: Any, query: str) -> None:
    """Type a query and wait until its hits are explained."""
    page.locator("#query").press_sequentially(query)
    page.wait_for_selector("#legend li")


# ---- search ------------------------------------------------------------------------------------------------


def test_empty_state_explains_the_page(page: Any) -> None:
    wait_for_text(page, "#intro-keys", "Every word is its own key")
    assert page.locator("#hits li").count() == 0
    assert page.evaluate("document.activeElement.id") == "query"
    wait_for_text(page, "#about", "4 documents · BM25")


def test_search_as_you_type(page: Any) -> None:
    search_for(page, "relativity proposed")
    first = page.locator("#hits li").first
    first.locator(".bar i").first.wait_for()
    assert [mark.inner_text() for mark in first.locator("mark").all()] == [
        "Relativity",
        "proposed",
        "relativity",
    ]
    assert first.locator(".bar i").count() == 2
    assert page.locator("#status").inner_text().startswith("The best 2 of 4 documents in ")
    assert page.url.endswith("#q=relativity+proposed")


def test_bars_leave_out_the_score_that_all_hits_share(page: Any) -> None:
    """Scores 31 and 30.5 with meaning 30 and 30.25: the bars show 1 and 0.5 above 30."""
    scores = {"d1": (31.0, 30.0), "d2": (30.5, 30.25)}

    def search(route: Any) -> None:
        answer = route.fetch().json()
        answer["hits"] = [hit | {"score": scores[hit["id"]][0]} for hit in answer["hits"]]
        route.fulfill(json=answer)

    def explain(route: Any) -> None:
        answer = route.fetch().json()
        score, meaning = scores[answer["explanation"]["id"]]
        answer["explanation"] |= {"score": score, "semantic": {"gain": meaning, "share": meaning / score}}
        route.fulfill(json=answer)

    page.route("**/v1/search", search)
    page.route("**/v1/explain", explain)
    search_for(page, "relativity proposed")
    wait_for_text(page, "#legend", "overall meaning, above the 30.00 that all these hits share")
    bars = page.locator("#hits .bar").all()
    assert [bar.evaluate("bar => bar.style.getPropertyValue('--w')") for bar in bars] == ["1", "0.5"]
    assert [bar.locator("i.meaning").count() for bar in bars] == [0, 1]
    page.locator("#hits .title").nth(1).click()
    wait_for_text(
        page, "#why", "30.25 from the overall meaning of both texts"
    )  # the panel shows the whole sum
    wait_for_text(page, "#why", "0.25 from words and 0.25 from meaning")


def test_clearing_the_query_restores_the_empty_state(page: Any) -> None:
    search_for(page, "relativity")
    page.fill("#query", "")
    page.wait_for_selector("#intro:not([hidden])")
    assert page.locator("#hits li").count() == 0 and page.locator("#legend li").count() == 0


def test_no_hits(page: Any) -> None:
    page.fill("#query", "zebra")
    wait_for_text(page, "#status", "No document matches this query")


def test_deep_link_runs_its_query(browser: Any, url: str) -> None:
    with opened(browser, f"{url}/#q=relativity") as page:
        page.wait_for_selector("#hits li mark")
        assert page.input_value("#query") == "relativity"


def test_offsets_count_code_points(page: Any) -> None:
    search_for(page, "gorilla")
    page.wait_for_selector("#hits mark")
    assert page.locator("#hits mark").inner_text() == "gorilla"


def test_markup_stays_text(page: Any) -> None:
    search_for(page, "newton script")
    page.locator("#hits .title").first.click()
    page.wait_for_selector("#why svg")
    assert page.locator("#why h2").inner_text() == "<img src=x onerror=alert(1)>"
    assert page.locator("main img, main script").count() == 0
    assert [mark.inner_text() for mark in page.locator("#why .body mark").all()] == [
        "script",
        "script",
        "newton",
    ]


def test_snippet_shows_the_match(page: Any) -> None:
    search_for(page, "einstein")
    long = page.locator('#hits li[data-id="d4"]')
    long.locator("mark").wait_for()
    assert "einstein" in long.locator(".snippet").inner_text()


# ---- why ---------------------------------------------------------------------------------------------------


def test_explanation_panel(page: Any) -> None:
    search_for(page, "who proposed relativity")
    page.locator("#hits .title").first.click()
    page.wait_for_selector("#why svg")
    sentence = page.locator("#why p").first.inner_text()
    assert re.fullmatch(r"Score (\d+\.\d\d) = \1 from 2 of 3 words of the query\.", sentence)
    # "proposed" once, "relativity" in the title and in the text
    assert page.locator("#why path.link").count() == 3
    assert page.locator("#why .word.none").count() == 1
    page.get_by_text("The same as a table").click()
    shares = [float(cell.inner_text().split()[0]) for cell in page.locator("#why td:last-child").all()]
    assert sum(shares) == pytest.approx(100, abs=0.2)
    assert page.locator("#why .plain dd").all_inner_texts() == ["d1", "1905"]


def test_search_by_keyboard(page: Any) -> None:
    page.click("#tab-index")
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.id") == "query"
    page.keyboard.type("proposed")
    page.wait_for_selector("#legend li")
    for key in ("ArrowDown", "ArrowDown", "Enter"):
        page.keyboard.press(key)
    page.wait_for_selector("#why svg")
    assert page.evaluate("document.activeElement.id") == "why"
    page.keyboard.press("Escape")
    assert not page.is_visible("#why")
    assert page.evaluate("document.activeElement.closest('li').dataset.id") == page.locator("#hits li").nth(
        1
    ).get_attribute("data-id")
    page.keyboard.press("ArrowUp")
    page.keyboard.press("ArrowUp")
    assert page.evaluate("document.activeElement.id") == "query"


def test_tabs_by_keyboard(page: Any) -> None:
    page.focus("#tab-search")
    page.keyboard.press("ArrowLeft")
    assert page.is_visible("#view-index") and not page.is_visible("#view-search")
    assert page.evaluate("document.activeElement.id") == "tab-index"
    page.go_back()
    page.wait_for_selector("#view-search:not([hidden])")


# ---- regressions -------------------------------------------------------------------------------------------


def explained(page: Any, change: Callable[[dict[str, Any]], None]) -> None:
    """Modify every explanation before the page receives it."""

    def explain(route: Any) -> None:
        answer = route.fetch().json()
        change(answer["explanation"])
        route.fulfill(json=answer)

    page.route("**/v1/explain", explain)


def test_panel_does_not_print_null(page: Any) -> None:
    search_for(page, "evolution")
    page.locator("#hits .title").first.click()
    page.wait_for_selector("#why svg")
    assert "null" not in page.locator("#why").inner_text()


def test_segments_fill_the_bar_where_gains_sum_to_less_than_1(page: Any) -> None:
    def shrink(explanation: dict[str, Any]) -> None:
        for match in explanation["matches"]:
            match["gain"] = 0.1

    explained(page, shrink)
    search_for(page, "relativity proposed")
    bar = page.locator("#hits li").first.locator(".bar")
    bar.locator("i").nth(1).wait_for()
    widths = [part.bounding_box()["width"] for part in bar.locator("i").all()]
    assert sum(widths) == pytest.approx(bar.bounding_box()["width"], abs=1)
    assert widths[0] == pytest.approx(widths[1], abs=1)


def test_deep_link_shows_the_number_of_documents(browser: Any, url: str) -> None:
    """Even while the statistics have not arrived."""
    with opened(browser, "about:blank") as page:
        held: list[Any] = []

        def hold(route: Any) -> None:
            held.append(route)

        page.route("**/v1/stats", hold)
        page.goto(f"{url}/#q=relativity")
        wait_for_text(page, "#status", "The best 1 of 4 documents in")
        assert page.locator("#about").inner_text() == ""
        held[0].continue_()
        wait_for_text(page, "#about", "4 documents")
        wait_for_text(page, "#status", "The best 1 of 4 documents in")


LINE_LENGTHS = """paragraph => {
    const lines = new Map(), range = document.createRange();
    for (const node of paragraph.childNodes) {
        const text = node.nodeType === Node.TEXT_NODE ? node : node.firstChild;
        for (let i = 0; i < text.length; i++) {
            range.setStart(text, i);
            range.setEnd(text, i + 1);
            const top = Math.round(range.getBoundingClientRect().top);
            lines.set(top, (lines.get(top) ?? 0) + 1);
        }
    }
    return [...lines.values()];
}"""


def test_lines_have_about_70_characters(browser: Any, url: str) -> None:
    with opened(browser, url, viewport={"width": 1600, "height": 900}) as page:
        search_for(page, "einstein")
        snippet = page.locator('#hits li[data-id="d4"] .snippet')
        snippet.locator("mark").wait_for()
        assert 50 <= max(snippet.evaluate(LINE_LENGTHS)) <= 75


def split_tokens(tokens: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each token as two word pieces, numbered 2n and 2n + 1."""
    pieces = []
    for token in tokens:
        number, start, end, name = 2 * token["position"], token["start"], token["end"], token["token"]
        middle = start + 3
        pieces.append(token | {"position": number, "token": name[:3], "end": middle})
        pieces.append(token | {"position": number + 1, "token": f"##{name[3:]}", "start": middle, "end": end})
    return pieces


def split_explanation(explanation: dict[str, Any]) -> None:
    """Turn the explanation of a one-word query into that of a model with word pieces."""
    matches, spans = [], []
    [match] = explanation["matches"]
    for half, name in enumerate((match["name"][:3], f"##{match['name'][3:]}")):
        postings = [
            posting | {"document_tokens": [2 * token + half for token in posting["document_tokens"]]}
            for posting in match["postings"]
        ]
        halved = {"gain": match["gain"] / 2, "share": match["share"] / 2, "name": name, "postings": postings}
        matches.append(
            match | halved | {"query_tokens": [2 * token + half for token in match["query_tokens"]]}
        )
    for span in explanation["text_spans"]:
        middle, gain = span["start"] + 3, span["gain"] / 2
        spans += [
            span | {"end": middle, "gain": gain},
            span | {"start": middle, "gain": gain, "matches": [1]},
        ]
    shift = explanation["snippet"]["start"]
    explanation["snippet"]["spans"] = [
        span | {"start": span["start"] - shift, "end": span["end"] - shift} for span in spans
    ]
    explanation |= {
        "query_tokens": split_tokens(explanation["query_tokens"]),
        "document_tokens": split_tokens(explanation["document_tokens"]),
        "matches": matches,
        "text_spans": spans,
    }


def test_word_pieces_are_joined(page: Any) -> None:
    explained(page, split_explanation)
    search_for(page, "gorilla")
    hit = page.locator("#hits li").first
    hit.locator("mark").first.wait_for()
    assert hit.locator("mark").all_inner_texts() == ["gorilla"]
    assert page.locator("#legend li").all_inner_texts() == ["query word → key", "gorilla"]
    hit.locator(".title").click()
    page.wait_for_selector("#why svg")
    words = [
        text.split("\n")[0] for text in page.locator("#why svg .word text:first-of-type").all_text_contents()
    ]
    assert words == ["gorilla", "gorilla"]  # of the query and of the document
    assert "from 1 of 1 words of the query" in page.locator("#why p").first.inner_text()
    assert page.locator("#why .text mark").all_inner_texts() == ["gorilla"]
    page.get_by_text("The same as a table").click()
    assert "##" not in page.locator("#why").inner_text()


def test_word_pieces_of_a_text_are_joined(page: Any) -> None:
    def explain(route: Any) -> None:
        answer = route.fetch().json()
        answer["explanation"]["tokens"] = split_tokens(answer["explanation"]["tokens"])
        route.fulfill(json=answer)

    page.route("**/v1/explain/text", explain)
    page.click("#tab-text")
    page.fill("#text-input", "hypersonic relativity")
    wait_for_text(page, "#text-status", "2 words.")
    assert page.locator("#tokens .word").all_inner_texts() == ["hypersonic", "relativity"]


def test_empty_state_offers_example_queries(page: Any) -> None:
    page.locator("#examples button").first.wait_for()
    assert page.locator("#examples button").first.inner_text() == "Relativity"
    page.locator("#examples button").first.click()
    page.wait_for_selector("#hits li")
    assert page.input_value("#query") == "Relativity" and page.url.endswith("#q=Relativity")
    page.go_back()
    page.wait_for_selector("#intro:not([hidden])")


def test_id_and_metadata_are_shown_with_labels(page: Any) -> None:
    search_for(page, "relativity")
    first = page.locator("#hits li").first
    assert first.locator(".facts dt").all_inner_texts() == ["id", "year"]
    assert first.locator(".facts dd").all_inner_texts() == ["d1", "1905"]
    first.locator(".title").click()
    page.wait_for_selector("#why svg")
    assert page.locator("#why .plain dt").all_inner_texts() == ["id", "year"]
    assert page.locator("#why .plain dd").last.is_visible()


def test_missing_and_list_values_of_metadata(page: Any) -> None:
    def search(route: Any) -> None:
        answer = route.fetch().json()
        for hit in answer["hits"]:  # none for the first letters of the word
            hit["metadata"] = {"author": None, "tags": ["physics", None]}
        route.fulfill(json=answer)

    page.route("**/v1/search", search)
    search_for(page, "relativity")
    assert page.locator("#hits .facts dd").all_inner_texts() == ["d1", "–", "physics, –"]


def test_legend_names_a_repeated_word_once(page: Any) -> None:
    search_for(page, "relativity relativity proposed")
    page.locator("#legend li").nth(1).wait_for()
    words = page.locator("#legend li").all_inner_texts()
    assert len(words) == len(set(words)) == 3  # the caption and two words


def test_technical_terms_are_explained(
    browser: Any, serve: Serve, tiny_model: ModelFolder, tmp_path: Path
) -> None:
    with citadel.Index.create(tmp_path / "index", model=tiny_model()) as index:
        index.add([{"id": "d1", "text": "einstein proposed relativity"}])
        index.commit()
    model = str(tiny_model())
    with (
        serve(tmp_path / "index", CITADEL_MODEL=model) as served,
        opened(browser, f"{served.url}/#index") as page,
    ):
        wait_for_text(page, "#about", "1 document · keys chosen by a model")
        wait_for_text(page, "#stats", "smallest weight kept (τ)")
        text = page.locator("#stats").inner_text()
        for words in (
            "Keys with less weight were left out.",
            "A model files every word",
            "used to compare vectors",
        ):
            assert words in text
        assert "avx512vnni" not in text and "router\n" not in text


def test_cut_query_is_reported(browser: Any, serve: Serve, tiny_model: ModelFolder, tmp_path: Path) -> None:
    with citadel.Index.create(tmp_path / "index", model=tiny_model()) as index:
        index.add([{"id": "d1", "text": "einstein proposed relativity"}])
        index.commit()
    model = str(tiny_model())
    with serve(tmp_path / "index", CITADEL_MODEL=model) as served, opened(browser, served.url) as page:
        page.fill("#query", "relativity " * 70)
        wait_for_text(page, "#query-cut", "longer than the model reads")
        page.fill("#query", "relativity")
        page.wait_for_selector("#query-cut", state="hidden")


# ---- text, index -------------------------------------------------------------------------------------------


def test_slider_sends_no_request(browser: Any, serve: Serve, tiny_model: ModelFolder, tmp_path: Path) -> None:
    with citadel.Index.create(tmp_path / "index", model=tiny_model()) as index:
        index.add([{"id": "d1", "text": "einstein proposed relativity"}])
        index.commit()
    model = str(tiny_model())
    with (
        serve(tmp_path / "index", CITADEL_MODEL=model) as served,
        opened(browser, f"{served.url}/#text") as page,
    ):
        page.fill("#text-input", "einstein proposed")
        wait_for_text(page, "#text-status", "of 2 words")
        assert page.input_value("#tau") == "1"  # the index's own
        requests: list[str] = []
        page.on("request", lambda request: requests.append(request.url))
        page.evaluate("tau.value = 0; tau.dispatchEvent(new Event('input'))")
        assert page.locator("#tokens .pruned").count() == 1  # [CLS]
        page.evaluate("tau.value = tau.max; tau.dispatchEvent(new Event('input'))")
        assert page.locator("#tokens .pruned").count() == 4 and requests == []
        page.get_by_label("as a query").check()
        page.wait_for_selector("#tau-control", state="hidden")


@pytest.mark.parametrize("router", ROUTERS)
def test_every_router(
    router: str, browser: Any, serve: Serve, tiny_model: ModelFolder, tmp_path: Path
) -> None:
    """Explanations of every router are shown without script errors."""
    with citadel.Index.create(tmp_path / "index", model=tiny_model(router)) as index:
        index.add(
            [
                {"id": "d1", "title": "physics", "text": "einstein proposed relativity"},
                {"id": "d2", "text": "rome"},
            ]
        )
        index.commit()
    model = str(tiny_model(router))
    with serve(tmp_path / "index", CITADEL_MODEL=model) as served, opened(browser, served.url) as page:
        page.fill("#query", "relativity in physics")
        page.locator("#hits .title").first.click()
        page.wait_for_selector("#why svg")
        assert page.locator("#why p").first.inner_text().startswith("Score ")
        page.click("#tab-text")
        page.wait_for_selector("#tokens .token")
        page.click("#tab-index")
        wait_for_text(page, "#stats", MATCHING[router])


def test_index_view(page: Any) -> None:
    page.click("#tab-index")
    page.wait_for_selector("#chart-sizes svg")
    assert "Search for something first" in page.locator("#chart-latency").inner_text()
    assert "propos" in page.locator("#chart-keys").inner_text()
    page.click("#tab-search")
    search_for(page, "relativity")
    page.click("#tab-index")
    wait_for_text(page, "#chart-latency", "in the server in total")


# ---- narrow windows, and servers that refuse ---------------------------------------------------------------


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_narrow_page_does_not_scroll_sideways(scheme: str, browser: Any, url: str) -> None:
    with opened(browser, url, viewport={"width": 340, "height": 640}, color_scheme=scheme) as page:
        bright = page.evaluate("getComputedStyle(document.body).backgroundColor.match(/\\d+/)[0] > 128")
        assert bright == (scheme == "light")
        search_for(page, "einstein proposed relativity in physics")
        page.locator("#hits .title").first.click()
        page.wait_for_selector("#why svg")
        views = [None, *(f"#tab-{view}" for view in ("text", "index"))]
        for view in views:
            if view is not None:
                page.keyboard.press("Escape")
                page.click(view)
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), view


def test_stopped_server_is_reported(browser: Any, index: Path, serve: Serve) -> None:
    context = browser.new_context()
    page = context.new_page()
    with serve(index) as served:
        page.goto(served.url)
        search_for(page, "relativity")
    page.fill("#query", "evolution")
    page.wait_for_selector("#problem:not([hidden])")
    assert (
        page.locator("#problem").inner_text() == "The server does not respond. Is it still running? Try again"
    )
    assert "stale" in (page.locator("#hits").get_attribute("class") or "")
    context.close()


def test_token_form(browser: Any, index: Path, serve: Serve) -> None:
    context = browser.new_context()
    page = context.new_page()
    with serve(index, CITADEL_READ_TOKEN="a token for reading") as served:
        page.goto(f"{served.url}/#q=relativity")
        page.wait_for_selector("#access:not([hidden])")
        page.fill("#token", "a token for reading")
        page.keyboard.press("Enter")
        page.wait_for_selector("#hits li mark")
        assert not page.is_visible("#access") and not page.is_visible("#problem")
    context.close()


def test_index_of_given_vectors(browser: Any, serve: Serve, tmp_path: Path) -> None:
    with citadel.Index.create(tmp_path / "index", fields={"lexical": 2}, fingerprint="by hand") as index:
        index.add_vectors([{"id": "d1", "keys": [7], "weights": [1], "vectors": [[1, 0]]}])
        index.commit()
    with serve(tmp_path / "index") as served, opened(browser, served.url) as page:
        page.wait_for_selector("#query:disabled")
        page.click("#tab-index")
        page.wait_for_selector("#chart-keys dt")
        assert page.locator("#chart-keys dt").inner_text() == "key 7"
