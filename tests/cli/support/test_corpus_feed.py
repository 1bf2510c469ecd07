"""Progress of a corpus feed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from citadel import Index
from citadel.cli.support.corpus_feed import open_feed
from citadel.encode.encoder import Encoder
from citadel.progress import Progress
from tests.cli.conftest import write_jsonl


class Recorder(Progress):
    """Records the calls of a progress bar."""

    def __init__(self) -> None:
        super().__init__("Indexing", "documents")
        self.calls: list[tuple[int, int | None]] = []
        self.first: int | None = None

    def resume(self, done: int) -> None:
        self.first = done

    def __call__(self, done: int, items: int | None = None, what: str = "") -> None:
        self.calls.append((done, items))


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    rows: list[dict[str, object]] = [{"id": f"d{n}", "text": "relativity " * (n % 7 + 1)} for n in range(40)]
    return write_jsonl(tmp_path / "texts.jsonl", rows)


def test_progress_counts_encoded_documents(
    texts: Path, tmp_path: Path, tiny_model: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    encoded = 0
    route = Encoder._route

    def counted(self: Encoder, *arguments: Any) -> Any:
        nonlocal encoded
        encoded += 1
        return route(self, *arguments)

    class Checked(Recorder):
        def __call__(self, done: int, items: int | None = None, what: str = "") -> None:
            assert items is not None and items <= encoded
            super().__call__(done, items, what)

    monkeypatch.setattr(Encoder, "_route", counted)
    progress, feed = Checked(), open_feed(str(texts), None, "fail")
    with Index.create(tmp_path / "index", model=tiny_model(), threads=1) as index:
        assert feed.add(index, lambda size: False, progress)
        index.commit()
    items = [items for _, items in progress.calls]
    assert len(items) > 1  # within one batch of 40 documents
    assert items[-1] == 40 and progress.calls[-1][0] == progress.total == texts.stat().st_size


def test_progress_of_a_resumed_feed_starts_at_its_position(texts: Path, tmp_path: Path) -> None:
    feed = open_feed(str(texts), None, "fail")
    with Index.create(tmp_path / "index", model="bm25") as index:
        feed.add(index, lambda size: size > 500, Recorder())
        index.commit()
        state = feed.state()
        feed.close()
        progress, rest = Recorder(), open_feed(str(texts), None, "fail", state)
        rest.add(index, lambda size: False, progress)
        index.commit()
    assert progress.first == state.position > 500
    assert progress.calls[0][1] == 1 and progress.calls[-1] == (texts.stat().st_size, 40 - state.line)
