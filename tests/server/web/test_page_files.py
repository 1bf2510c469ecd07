"""Files of the page: complete, nothing from other sites, nothing that the policy forbids."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[3] / "src" / "citadel" / "server" / "web"
SCRIPTS = sorted(PAGE.glob("*.js"))
# Text must stay text: functions that turn a string into markup or code are forbidden.
FORBIDDEN = re.compile(
    r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|DOMParser|\beval\b|new Function|localStorage"
)
NAMESPACE = "http://www.w3.org/2000/svg"


class Tags(HTMLParser):
    """Every tag with its attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def ids(self) -> list[str]:
        return [str(attributes["id"]) for _, attributes in self.elements if "id" in attributes]


@pytest.fixture(scope="module")
def tags() -> Tags:
    return Tags((PAGE / "index.html").read_text())


def test_every_referenced_file_exists(tags: Tags) -> None:
    named = [
        attributes.get("src") or attributes.get("href")
        for tag, attributes in tags.elements
        if tag in ("script", "link")
    ]
    assert named and all((PAGE / str(name)).is_file() for name in named)
    for script in SCRIPTS:
        for name in re.findall(r'from "\./([^"]+)"', script.read_text()):
            assert (PAGE / name).is_file(), (script.name, name)


def test_no_inline_styles_or_scripts(tags: Tags) -> None:
    """The policy is default-src 'self', so inline styles and scripts would have no effect."""
    for tag, attributes in tags.elements:
        assert "style" not in attributes and tag != "style"
        assert not [name for name in attributes if name.startswith("on")]
        assert tag != "script" or attributes.get("src")


def test_no_external_resources() -> None:
    for path in PAGE.iterdir():
        text = path.read_text().replace(NAMESPACE, "")
        assert not re.search(r"https?://|//[a-z0-9-]+\.[a-z]|@import|url\(", text), path.name


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_no_string_becomes_markup(script: Path) -> None:
    assert not FORBIDDEN.search(script.read_text())


def test_every_id_used_by_a_script_exists(tags: Tags) -> None:
    assert len(tags.ids()) == len(set(tags.ids()))
    for script in SCRIPTS:
        wanted = set(re.findall(r'byId\("([^"]+)"\)', script.read_text()))
        assert wanted <= set(tags.ids()), script.name


def test_inputs_are_labelled_and_tabs_control_panels(tags: Tags) -> None:
    inputs = [attributes for tag, attributes in tags.elements if tag in ("input", "textarea")]
    labelled = {attributes.get("for") for tag, attributes in tags.elements if tag == "label"}
    inside = {"tau", None}  # inside their label
    assert all(attributes.get("id") in labelled | inside for attributes in inputs)
    for _, attributes in tags.elements:
        if attributes.get("role") == "tab":
            assert attributes["aria-controls"] in tags.ids()


def test_total_size_is_below_100_kb() -> None:
    assert sum(path.stat().st_size for path in PAGE.iterdir()) < 100_000
