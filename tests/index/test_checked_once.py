"""A document is checked exactly once when it is added."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from citadel.api import Index
from citadel.cli.support.corpus_feed import TextFeed
from citadel.index import changes
from citadel.progress import Progress
from citadel.text import parse
from citadel.types import Document


@pytest.fixture
def checked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    ids: list[str] = []
    check: Callable[[Document], Document] = parse.check_document

    def counted(document: Document) -> Document:
        ids.append(document.id)
        return check(document)

    for module in (parse, changes):
        monkeypatch.setattr(module, "check_document", counted)
    return ids


def test_corpus_documents_are_checked_once(tmp_path: Path, checked: list[str]) -> None:
    (tmp_path / "c.tsv").write_text("d1\tone\nd2\ttwo\n")
    index = Index.create(tmp_path / "index", model="bm25")
    feed = TextFeed(str(tmp_path / "c.tsv"), "c.tsv", None, "fail")
    assert feed.add(index, lambda size: False, Progress(""))
    assert len(index.commit()) == 2
    assert checked == ["d1", "d2"]


@pytest.mark.parametrize(
    "item", [{"id": "d1", "text": "one"}, Document("d1", "one")], ids=["dict", "Document"]
)
def test_added_documents_are_checked_once(
    item: Document | dict[str, str], tmp_path: Path, checked: list[str]
) -> None:
    Index.create(tmp_path / "index", model="bm25").add([item])
    assert checked == ["d1"]
