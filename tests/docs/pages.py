"""Parse Markdown pages: fenced blocks, links and headings."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).parents[2]
RUN = ("sh", "python")  # languages whose blocks are run

_FENCE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```[ \t]*$", re.M | re.S)
_SKIP = re.compile(r"<!-- skip: (.+?) -->\s*\Z")
_NEEDS = re.compile(r"^<!-- needs: ([\w.]+) -->$", re.M)
_BLOCK_NEEDS = re.compile(r"<!-- block needs: ([\w.]+) -->\s*\Z")
_LINK = re.compile(r"(?<!!)\[[^\]\[]*\]\(([^)\s]+)\)")
_IMAGE = re.compile(r"!\[[^\]\[]*\]\(([^)\s]+)\)")


@dataclass(frozen=True)
class Block:
    """A fenced block; `skip` is the reason in the HTML comment before it, or a package that it lacks."""

    language: str
    text: str
    line: int
    skip: str


def user_pages() -> list[Path]:
    """README.md and every page of docs/."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def all_pages() -> list[Path]:
    """Every Markdown file of the repository, without build folders."""
    folders = ("docs", "benchmarks", "configs", "examples", "models", "native", "scripts")
    inside = [page for folder in folders for page in (ROOT / folder).rglob("*.md")]
    return sorted([*ROOT.glob("*.md"), *inside])


def blocks(page: str) -> Iterator[Block]:
    """The fenced blocks of a page, in order."""
    for match in _FENCE.finditer(page):
        line = page.count("\n", 0, match.start()) + 1
        yield Block(match.group(1), match.group(2), line, _skip(page[: match.start()]))


def _skip(before: str) -> str:
    """Why the block after a text is not run, or nothing.

    >>> _skip("<!-- skip: downloads -->"), _skip("<!-- block needs: json -->"), _skip("x")
    ('downloads', '', '')
    """
    reason, needs = _SKIP.search(before), _BLOCK_NEEDS.search(before)
    if needs is not None and not _is_installed(needs.group(1)):
        return f"{needs.group(1)} is not installed"
    return reason.group(1) if reason else ""


def _is_installed(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:  # of the package around it
        return False


def missing_package(page: str) -> str:
    """The first module that a page needs (`<!-- needs: NAME -->`) and that is not installed, or nothing.

    >>> missing_package("<!-- needs: json -->"), missing_package("<!-- needs: no_such_module -->")
    ('', 'no_such_module')
    """
    return next((name for name in _NEEDS.findall(page) if not _is_installed(name)), "")


def prose(page: str) -> str:
    """A page without its fenced blocks and code spans."""
    return re.sub(r"`[^`\n]*`", "", _FENCE.sub("", page))


def links(page: str) -> list[str]:
    """Targets of links and images outside code."""
    text = prose(page)
    return _LINK.findall(text) + _IMAGE.findall(text)


def anchors(page: str) -> set[str]:
    """Anchors of a page's headings, as GitHub makes them.

    >>> sorted(anchors("# A page\\n\\n## What `x` is: a test"))
    ['a-page', 'what-x-is-a-test']
    """
    headings = re.findall(r"^#+ (.+)$", _FENCE.sub("", page), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
