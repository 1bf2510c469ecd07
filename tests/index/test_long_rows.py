"""Long documents are read in pieces: the same text, the same damage, parts of it, and little memory."""

from __future__ import annotations

import contextlib
import json
import sqlite3
import tracemalloc
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import citadel
from citadel.errors import CorruptIndexError, ResourceError
from citadel.index import documents, long_rows
from citadel.index.checksum import crc32c
from citadel.index.documents import DocumentStore
from citadel.index.long_rows import window
from citadel.index.storage import FolderStorage
from tests.index.quick import Quick

FOX = "\N{FOX FACE}"
TEXTS = {
    "ASCII": "one two three " * 3000,
    "two bytes": "é" * 20_000,
    "three bytes": "a" + "漢字" * 10_000,
    "all widths": f"aé漢{FOX} " * 5000,
    "an emoji at the end": "a" * 40_000 + FOX,
    "not a whole number of pieces": "x" * 33_333,
    "a whole number of pieces": "x" * 40_000,
}
METADATA = {"year": 1905, "names": ["Curie", "Noether"], "note": FOX * 300}


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pieces of 1,000 bytes, from 32 KiB on."""
    monkeypatch.setattr(long_rows, "PIECE", 1000)
    monkeypatch.setattr(documents, "_MEDIUM", documents._SHORT)


@pytest.fixture
def pieces_read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The length of every piece that is read, so that a test can tell how a row was read."""
    lengths: list[int] = []
    real = long_rows._next_piece

    def counted(blob: sqlite3.Blob, lock: Any) -> bytes:
        piece = real(blob, lock)
        lengths.append(len(piece))
        return piece

    monkeypatch.setattr(long_rows, "_next_piece", counted)
    return lengths


def store_of(folder: Path, *given: dict[str, Any]) -> DocumentStore:
    with citadel.Index.create(Quick(folder), model="bm25") as index:
        index.add(given)
        return index.commit().searcher().snapshot.segments[0].store


@pytest.mark.parametrize("case", TEXTS)
def test_document_round_trips(case: str, tmp_path: Path, pieces_read: list[int]) -> None:
    text, title = TEXTS[case], TEXTS["all widths"]
    store = store_of(
        tmp_path / "i",
        {"id": "bare", "text": text},
        {"id": f"d{FOX}", "text": text, "title": title, **METADATA},
        {"id": "title", "text": "", "title": title},
    )
    bare, full, only_title = store.get([0, 1, 2])
    assert bare == citadel.Document("bare", text)
    assert full == citadel.Document(f"d{FOX}", text, title, METADATA)
    assert only_title == citadel.Document("title", "", title)
    assert max(pieces_read) == 1000 and sum(pieces_read) > len(text.encode())
    joined = dict.fromkeys(("id", "title", "text", "metadata"), "")
    for column, piece in store.pieces(1):
        joined[column] += piece
    assert (joined["id"], joined["title"], joined["text"]) == (f"d{FOX}", title, text)
    assert json.loads(joined["metadata"]) == METADATA
    assert [column for column, piece in store.pieces(0) if not piece and column == "title"] == ["title"]


@pytest.mark.parametrize("case", TEXTS)
@pytest.mark.parametrize(
    ("start", "stop"), [(0, 10), (995, 1005), (7777, 19_999), (0, 10**9), (10**6, 10**7)]
)
def test_part_of_a_text(case: str, start: int, stop: int, tmp_path: Path, pieces_read: list[int]) -> None:
    text, title = TEXTS[case], "Title"
    store = store_of(tmp_path / "i", {"id": "d1", "text": text, "title": title})
    document, length = store.part(0, start, stop)
    assert (document.text, length) == (text[start:stop], len(text))
    assert document.title == title[: stop - start]
    assert store.fields([0], stop) == [("d1", title[:stop], text[:stop], {})]
    assert len(pieces_read) > 2 * len(text.encode()) // 1000  # all bytes, for the checksum


@pytest.mark.parametrize("text", ["", "short", "é" * 1000])
def test_part_of_a_short_text_is_read_at_once(text: str, tmp_path: Path, pieces_read: list[int]) -> None:
    store = store_of(tmp_path / "i", {"id": "d1", "text": text, "title": "Title"})
    assert store.part(0, 1, 4) == (citadel.Document("d1", text[1:4], "Tit"), len(text))
    assert store.fields([0], 3) == [("d1", "Tit", text[:3], {})]
    assert list(store.pieces(0))[1:3] == [("title", "Title"), ("text", text)]
    assert pieces_read == []


READS: dict[str, Callable[[citadel.Searcher, DocumentStore], object]] = {
    "whole": lambda _, store: store.get([0]),
    "beginning": lambda _, store: store.fields([0], 10),
    "part": lambda _, store: store.part(0, 50, 60),
    "pieces": lambda _, store: list(store.pieces(0)),
    "explanation": lambda searcher, _: searcher.explain("middle", "d1"),
}


@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize(
    "wrong", [b"b", b"\xff", b"\xc3"], ids=["another letter", "no UTF-8", "half a letter"]
)
def test_damaged_byte_in_the_middle(read: str, wrong: bytes, tmp_path: Path) -> None:
    text = "aé " * 40_000 + "middle" + "aé " * 40_000
    store_of(tmp_path / "i", {"id": "d1", "text": text})
    [path] = (tmp_path / "i").glob("docs-*")
    data = path.read_bytes()
    offset = data.index(b"middle") + 3
    path.write_bytes(data[:offset] + wrong + data[offset + 1 :])
    searcher = citadel.Index.open(tmp_path / "i").searcher()
    with pytest.raises(CorruptIndexError, match="the checksum of document 0 does not match") as caught:
        READS[read](searcher, searcher.snapshot.segments[0].store)
    assert (caught.value.file, caught.value.section) == (path.name, "documents")


def with_text(folder: Path, text: bytes) -> DocumentStore:
    """A store whose document has this text and a checksum that matches."""
    whole = store_of(folder, {"id": "d1", "text": "short"})
    record, index_id = whole.record, whole._index_id
    with contextlib.closing(sqlite3.connect(folder / record.name, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode=OFF")
        crc = crc32c(b"0\0d1\0\0" + text + b"\0{}")
        connection.execute("UPDATE documents SET text = CAST(? AS TEXT), crc = ?", (text, crc))
    length = (folder / record.name).stat().st_size
    return DocumentStore(FolderStorage(folder), record._replace(length=length), index_id, 1)


@pytest.mark.parametrize(
    "ending", [b"\xff", b"\xc3", FOX.encode()[:3]], ids=["no UTF-8", "half a letter", "most of an emoji"]
)
def test_text_that_is_not_utf8_under_a_matching_checksum(ending: bytes, tmp_path: Path) -> None:
    store = with_text(tmp_path / "i", b"a" * 40_000 + ending)
    with pytest.raises(CorruptIndexError, match="document 0 is not UTF-8"):
        store.part(0, 0, 10)


def test_text_beyond_the_limit_is_refused_before_decoding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An emoji makes every character four bytes wide, and wide text counts twice."""
    monkeypatch.setattr(long_rows, "MAX_TEXT", 8 * 40_001)
    assert with_text(tmp_path / "1", b"a" * 39_998 + FOX.encode()).get([0])
    for number, text in enumerate([b"a" * 40_000 + FOX.encode(), b"a" * 321_000], 2):
        with pytest.raises(CorruptIndexError, match="document 0 is too large"):
            with_text(tmp_path / str(number), text).fields([0], 10)


@pytest.mark.parametrize("error", ["disk I/O error", "database disk image is malformed"])
def test_failing_disk_is_not_damage(error: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SQLite calls some failed reads a malformed database: the row is read again to tell."""
    store = store_of(tmp_path / "i", {"id": "d1", "text": TEXTS["ASCII"]})
    real, calls = long_rows._next_piece, 0

    def failing(blob: sqlite3.Blob, lock: Any) -> bytes:
        nonlocal calls
        calls += 1
        if calls == 5:
            raise (sqlite3.OperationalError if "I/O" in error else sqlite3.DatabaseError)(error)
        return real(blob, lock)

    monkeypatch.setattr(long_rows, "_next_piece", failing)
    with pytest.raises(ResourceError, match="the disk failed"):
        store.get([0])
    assert store.get([0])[0].text == TEXTS["ASCII"]


def test_reading_in_pieces_does_not_block_other_readers(tmp_path: Path) -> None:
    """Neither an open nor an abandoned read holds the lock."""
    given = [{"id": f"d{number}", "text": text} for number, text in enumerate(TEXTS.values())]
    store = store_of(tmp_path / "i", *given, {"id": "short", "text": "short"})
    begun = [store.pieces(number) for number in range(len(given)) for _ in range(2)]
    for pieces in begun:
        assert next(pieces)[0] == "id"
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda number: store.get([number])[0].text, [*range(len(given) + 1)] * 4))
    assert found == [*TEXTS.values(), "short"] * 4
    del begun[1:]
    assert "".join(piece for column, piece in begun[0] if column == "text") == TEXTS["ASCII"]
    assert store.get([len(given)])[0].text == "short"


def test_explanation_equals_that_of_the_whole_text(tmp_path: Path, pieces_read: list[int]) -> None:
    filler = f"lorem ipsum é漢{FOX} dolor sit amet "
    texts = {
        "begin": "The middle. " + filler * 20_000,
        "middle": filler * 9000 + "The middle of a text. " + filler * 9000,
        "end": filler * 20_000 + "The middle",
        "none": filler * 20_000,
        "one word": "x" * 300_000,
        "limit": "middle " * 20_000,
    }
    given = [{"id": id, "text": text, "title": "t" * 100} for id, text in texts.items()]
    with citadel.Index.create(Quick(tmp_path / "i"), model="bm25") as index:
        index.add(given)
        searcher = index.commit().searcher()
    found = {id: searcher.explain("the middle text", id) for id in texts}
    assert pieces_read
    for id, explanation in found.items():
        start = explanation.text_start
        assert explanation.text == texts[id][start : start + len(explanation.text)] and explanation.text_cut
        assert ("middle" in explanation.text) == (id not in ("none", "one word"))
        assert 99_000 < len(explanation.text) <= 100_000


def test_memory_does_not_grow_with_the_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()  # pieces of the usual size
    text = "one two three " * 1_000_000
    store = store_of(tmp_path / "i", {"id": "d1", "text": text})
    tracemalloc.start()
    try:
        assert store.fields([0], 100_000)[0][2] == text[:100_000]
        assert store.part(0, 10**7, 10**7 + 100_000).document.text == text[10**7 : 10**7 + 100_000]
        assert sum(len(piece) for column, piece in store.pieces(0) if column == "text") == len(text)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 4_000_000


def test_window_of_pieces() -> None:
    pieces = ["ab", "", "cde", "f"]
    for start in range(8):
        for stop in range(8):
            assert window(pieces, start, stop) == ("abcdef"[start:stop], 6)
    assert window([]) == ("", 0)
