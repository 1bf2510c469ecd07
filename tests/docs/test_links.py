"""Links in Markdown resolve, and source files mention only existing pages."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.pages import ROOT, all_pages, anchors, links, user_pages

PAGES = all_pages()
SOURCES = [
    path
    for folder in ("src", "tests", "scripts", "benchmarks", "examples", "native", "configs")
    for path in sorted((ROOT / folder).rglob("*"))
    if path.suffix in {".py", ".pyi", ".js", ".html", ".cpp", ".hpp", ".toml"} and path != Path(__file__)
] + [ROOT / "pyproject.toml", ROOT / "Makefile"]
MENTION = re.compile(r"(?<![\w/])(?:docs|benchmarks|native|configs)/[\w/-]+\.md\b")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_resolve(page: Path) -> None:
    broken = []
    for target in links(page.read_text(encoding="utf-8")):
        path, _, anchor = target.partition("#")
        if target.startswith(("http://", "https://", "mailto:")):
            continue
        file = (page.parent / path).resolve() if path else page
        if not file.exists() or (anchor and anchor not in anchors(file.read_text(encoding="utf-8"))):
            broken.append(target)
    assert broken == []


def test_mentioned_pages_exist() -> None:
    broken = [
        f"{path.relative_to(ROOT)}: {mention}"
        for path in [*SOURCES, *PAGES]
        for mention in MENTION.findall(path.read_text(encoding="utf-8", errors="replace"))
        if not (ROOT / mention).is_file()
    ]
    assert broken == []


def test_every_page_is_linked_from_the_contents() -> None:
    contents = ROOT / "docs" / "README.md"
    linked = {(contents.parent / target).resolve() for target in links(contents.read_text(encoding="utf-8"))}
    pages = {page for page in user_pages() if page.parent != ROOT and page != contents}
    assert len(pages) > 10
    assert sorted(str(page.relative_to(ROOT)) for page in pages - linked) == []
