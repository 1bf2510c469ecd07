"""Prepare Markdown pages for the site: GitHub's anchors, links between pages, lists after a paragraph."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
OTHERS = {  # pages outside docs/ that belong to the site
    "CHANGELOG.md": "project/changelog.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "benchmarks/README.md": "project/benchmarks.md",
    "models/small-en/README.md": "project/small-en.md",
    "native/README.md": "project/native.md",
}
_FENCE = re.compile(r"^( *)(```|~~~).*?^\1\2[ \t]*$", re.M | re.S)
_LINK = re.compile(r"`[^`\n]*`|(!?)\[((?:[^\]\[`]|`[^`]*`)*)\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^(#+ )(.+?) *$", re.M)
_SKIP = re.compile(r"^<!-- skip: .*? -->\n", re.M | re.S)
_LIST = re.compile(r"^(?![-*|#>\s]|\d+\. )(.*\S.*)\n(?=(?:[-*]|\d+\.) )", re.M)


def site_path(path: Path) -> str | None:
    """The path of a file of the repository on the site; None if it is not part of it.

    >>> site_path(ROOT / "docs" / "README.md"), site_path(ROOT / "Makefile")
    ('index.md', None)
    """
    name = path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else ""
    if name.startswith("docs/"):
        return "index.md" if name == "docs/README.md" else name.removeprefix("docs/")
    return OTHERS.get(name)


def sources() -> Iterator[Path]:
    """Files of the repository that make up the site, with the pictures."""
    yield from (path for path in sorted((ROOT / "docs").rglob("*")) if path.is_file())
    yield from (ROOT / name for name in OTHERS if (ROOT / name).is_file())


def anchor(heading: str) -> str:
    """The anchor that GitHub gives a heading.

    >>> anchor("What `x` is: a test")
    'what-x-is-a-test'
    """
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def prepare(text: str, page: Path) -> str:
    """A page of the repository as a page of the site."""
    text = _SKIP.sub("", text)
    seen: dict[str, int] = {}
    parts, end = [], 0
    for fence in _FENCE.finditer(text):
        parts += [_prose(text[end : fence.start()], page, seen), fence.group()]
        end = fence.end()
    return "".join([*parts, _prose(text[end:], page, seen)])


def _prose(text: str, page: Path, seen: dict[str, int]) -> str:
    text = _LIST.sub(r"\1\n\n", text)
    text = _LINK.sub(lambda match: _link(match, page), text)
    return _HEADING.sub(lambda match: _heading(match, seen), text)


def _heading(match: re.Match[str], seen: dict[str, int]) -> str:
    name = anchor(re.sub(r"\]\([^)]*\)", "", match[2]))
    seen[name] = seen.get(name, -1) + 1
    return f"{match[1]}{match[2]} {{ #{name}{f'-{seen[name]}' if seen[name] else ''} }}"


def _link(match: re.Match[str], page: Path) -> str:
    """A link to the same page on the site; a file that is not on the site is named without a link."""
    target, _, fragment = (match[3] or "").partition("#")
    if not target or re.match(r"[a-z]+:", target):
        return match[0]
    path = site_path(Path(os.path.normpath(page.parent / target)))
    if path is None:
        return match[2]
    here = site_path(page)
    assert here is not None
    relative = os.path.relpath(path, Path(here).parent)
    return f"{match[1]}[{match[2]}]({relative}{'#' if fragment else ''}{fragment})"


def contents(text: str) -> list[tuple[str, list[tuple[str, str]]]]:
    """Sections of docs/README.md with the titles and paths of their pages; the first has no name.

    >>> contents("[Start](start.md)\\n\\n**Guides**:\\n\\n- [Serve](guides/serve.md)")
    [('', [('Start', 'start.md')]), ('Guides', [('Serve', 'guides/serve.md')])]
    """
    sections: list[tuple[str, list[tuple[str, str]]]] = [("", [])]
    for line in text.replace("\n  ", " ").splitlines():
        if bold := re.match(r"\*\*(.+?)\*\*", line):
            sections.append((bold[1], []))
        links = [match for match in _LINK.finditer(line) if match[3] and ".md" in match[3]]
        sections[-1][1].extend((match[2][:1].upper() + match[2][1:], match[3]) for match in links)
    return sections
