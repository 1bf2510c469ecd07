"""The documentation site: pages are prepared correctly, the site builds offline, its links resolve."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from collections import defaultdict
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import pytest

from scripts.docs_site import api
from scripts.docs_site.__main__ import navigation
from scripts.docs_site.pages import ROOT, prepare, site_path, sources
from scripts.docs_site.versions import add, version_of
from tests.support.once import made_once, shared_folder

GUIDE = ROOT / "docs" / "guides" / "serve.md"


class Page(HTMLParser):
    """Ids, links and loaded resources of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.resources: list[str] = []
        self.images_without_text = 0
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.ids |= {values[name] for name in ("id", "name") if name in values}
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        loaded = values.get("src") or (values.get("href") if tag == "link" else None)
        if loaded and values.get("rel") not in ("canonical", "next", "prev"):
            self.resources.append(loaded)
        self.images_without_text += tag == "img" and not values.get("alt")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("see [b](../reference/http.md#x)", "see [b](../reference/http.md#x)"),
        ("see [all](../README.md)", "see [all](../index.md)"),
        ("see [b](../../benchmarks/README.md)", "see [b](../project/benchmarks.md)"),
        ("see [the makefile](../../Makefile)", "see the makefile"),
        ("see [web](https://example.org/a)", "see [web](https://example.org/a)"),
        ("`[a](b.md)` stays", "`[a](b.md)` stays"),
        ("## A `b`: c", "## A `b`: c { #a-b-c }"),
        ("## A\n\n## A", "## A { #a }\n\n## A { #a-1 }"),
        ("text:\n- one\n- two", "text:\n\n- one\n- two"),
        ("```sh\n# no heading\n[a](b)\n```\n", "```sh\n# no heading\n[a](b)\n```\n"),
        ("<!-- skip: reason -->\n```sh\nx\n```\n", "```sh\nx\n```\n"),
    ],
)
def test_pages_are_prepared(text: str, expected: str) -> None:
    assert prepare(text, GUIDE) == expected


def test_every_page_is_in_the_navigation() -> None:
    listed = set(re.findall(r'"([\w/.-]+\.md)"', json.dumps(navigation())))
    pages = {str(site_path(path)) for path in sources() if path.suffix == ".md"}
    assert pages - listed == set()
    assert {"tour.md", "api/citadel-index.md"} <= listed


def test_api_pages_have_every_method() -> None:
    pages = dict(api.pages())
    assert "{ #citadel.Index.commit }" in pages["Index"] and "```pycon\n>>> " in pages["Index"]
    assert "{ #citadel.CorruptIndexError }" in pages["Errors and warnings"]
    assert "{ #citadel.fuse }" in pages["fuse"] and "citadel.fuse(" in pages["fuse"]
    assert not [title for title, text in pages.items() if "object at 0x" in text]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site; the network is out of reach behind a proxy that does not exist."""
    if importlib.util.find_spec("zensical") is None:
        pytest.skip("zensical is not installed: the extra [docs]")
    return made_once(shared_folder(tmp_path_factory) / "docs-site", build) / "site"


def build(folder: Path) -> None:
    proxies = dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), "http://127.0.0.1:9")
    kept = {name: value for name, value in os.environ.items() if not name.startswith("CITADEL_")}
    command = [sys.executable, "-m", "scripts.docs_site", str(folder)]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**kept, **proxies},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "No issues found" in done.stdout + done.stderr


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Page]:
    found = [path for path in site.rglob("*.html") if path.name != "404.html"]
    return {path: Page(path.read_text(encoding="utf-8")) for path in found}


def test_links_and_anchors_resolve(pages: dict[Path, Page]) -> None:
    broken = defaultdict(list)
    for path, page in pages.items():
        for link in page.links:
            target, _, fragment = unquote(link).partition("#")
            if re.match(r"[a-z]+:", target):
                continue
            file = (path.parent / target).resolve() if target else path
            if file.is_dir():
                file /= "index.html"
            known = pages[file].ids if file in pages else set()
            if not file.is_file() or (fragment and fragment not in known and fragment != "__tabbed"):
                broken[str(path.name)].append(link)
    assert len(pages) > 40
    assert dict(broken) == {}


def test_nothing_is_loaded_from_elsewhere(site: Path, pages: dict[Path, Page]) -> None:
    missing = []
    for path, page in pages.items():
        for resource in page.resources:
            file = path.parent / unquote(resource).partition("?")[0]
            missing += [] if file.exists() else [f"{path.relative_to(site)}: {resource}"]
    assert missing == []
    assert sum(page.images_without_text for page in pages.values()) == 0


def test_search_finds_words_of_pages_and_docstrings(site: Path) -> None:
    index = (site / "search.js").read_text(encoding="utf-8")
    assert index.startswith("var __index = {")
    assert "TruncatedDocumentsWarning" in index and "passages" in index


def test_tour_shows_explanations(site: Path) -> None:
    for number, document in enumerate(["relativity", "heart", "bread"], 1):
        text = (site / "tour" / f"match-{number}.html").read_text(encoding="utf-8")
        assert f"<b>{document}</b>" in text and "<mark" in text
    assert (site / "tour.html").read_text(encoding="utf-8").count("<iframe") == 4


def test_versions_lie_side_by_side(tmp_path: Path) -> None:
    site, folder = tmp_path / "site", tmp_path / "versions"
    (site / "api").mkdir(parents=True)
    (site / "api" / "page.html").write_text("first")
    (site / "index.html").write_text("start")
    folder.mkdir()
    assert add(site, folder, "dev") == ["dev"]
    assert "url=dev/" in (folder / "index.html").read_text()
    add(site, folder, "v0.9.1")
    (site / "api" / "page.html").rename(site / "api" / "other.html")
    assert add(site, folder, "v0.10.0") == ["0.10", "0.9", "dev"]
    assert add(site, folder, "dev") == ["0.10", "0.9", "dev"]
    listed = json.loads((folder / "versions.json").read_text())
    assert [entry["version"] for entry in listed] == ["0.10", "0.9", "dev"]
    assert "url=0.10/" in (folder / "index.html").read_text()
    assert (folder / "0.9" / "api" / "page.html").exists()
    assert [path.name for path in (folder / "dev" / "api").iterdir()] == ["other.html"]


@pytest.mark.parametrize("name", ["", "..", "a/b", "-x"])
def test_a_version_is_a_folder_name(name: str) -> None:
    with pytest.raises(SystemExit, match="cannot be the name of a folder"):
        version_of(name)
