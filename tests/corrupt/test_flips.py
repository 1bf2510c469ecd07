"""A flipped bit is reported with file and section by its first reader or by a deep check."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

import citadel
from tests.corrupt import indexes
from tests.corrupt.seeds import generator, often
from tests.index.stranger import File

Whole = Callable[[str], Path]
Truth = Callable[[str], list[Any]]
CIT = [(kind, "seg-") for kind in indexes.KINDS] + [
    ("bm25", "del-"),
    ("int8", "del-"),
    ("pq2", "codebook-"),
    ("residual2", "codebook-"),
    ("bm25", "cols-"),
    ("int8", "cols-"),
    ("hybrid", "words-"),
    ("hybrid", "del-"),
]


class Flipped:
    """Flip one bit of a file for the duration of the block."""

    def __init__(self, path: Path, byte: int, bit: int) -> None:
        self.path, self.byte, self.mask = path, byte, 1 << bit

    def __enter__(self) -> None:
        self._flip()

    def __exit__(self, *_: object) -> None:
        self._flip()

    def _flip(self) -> None:
        with self.path.open("r+b", buffering=0) as file:
            file.seek(self.byte)
            octet = file.read(1)[0]
            file.seek(self.byte)
            file.write(bytes([octet ^ self.mask]))


def reader_error(
    folder: Path, kind: str, truth: list[Any], engine: str = "native"
) -> citadel.CorruptIndexError | None:
    """The error of reading everything; without an error the answers must be correct."""
    try:
        assert indexes.ask(folder, kind, engine) == truth
    except citadel.CorruptIndexError as error:
        return error
    return None


def examine(folder: Path, kind: str, path: Path, sections: set[str], truth: list[Any]) -> None:
    """Check that a reader reports the damage or answers correctly, and that a deep check reports it."""
    error = reader_error(folder, kind, truth)
    assert error is None or (error.file, error.section in sections) == (path.name, True), str(error)
    with pytest.raises(citadel.CorruptIndexError) as caught:
        citadel.Index.open(folder).check(deep=True)
    assert (caught.value.file, caught.value.section in sections) == (path.name, True), str(caught.value)


def flip_all(
    folder: Path,
    kind: str,
    path: Path,
    positions: Iterator[tuple[int, set[str]]],
    truth: list[Any],
    bits: Random,
) -> int:
    done = 0
    for byte, sections in positions:
        bit = bits.randrange(8)
        try:
            with Flipped(path, byte, bit):
                examine(folder, kind, path, sections, truth)
        except BaseException as error:
            error.add_note(f"{kind}: bit {bit} of byte {byte} of {path.name}, expected in {sorted(sections)}")
            raise
        done += 1
    print(f"{done} bits of {path.name} flipped")
    return done


def file_of(folder: Path, prefix: str) -> Path:
    return min(folder.glob(f"{prefix}*"))


def frame(file: File) -> Iterator[tuple[int, set[str]]]:
    """Every byte of header, table and footer, with the sections that its error may name."""
    yield from ((byte, {"header"}) for byte in range(64))
    yield from ((byte, {"table"}) for byte in range(file.table_offset, file.table_offset + file.table_length))
    yield from ((byte, {"footer"}) for byte in range(len(file.data) - 32, len(file.data)))


def padding(file: File) -> Iterator[tuple[int, set[str]]]:
    """The padding bytes between sections."""
    used = {byte for extent in file.extents.values() for byte in range(extent.offset, extent.end)}
    yield from ((byte, {"file"}) for byte in range(64, file.table_offset) if byte not in used)


def inside(file: File, random: Random, flips_per_section: int) -> Iterator[tuple[int, set[str]]]:
    for name, extent in file.extents.items():
        for _ in range(flips_per_section if extent.length else 0):
            # A deep check compares columns with the checksum of the whole file first.
            sections = {name, "file"} if name.startswith("COLUMN") else {name}
            yield random.randrange(extent.offset, extent.end), sections


@pytest.mark.parametrize(("kind", "prefix"), CIT)
def test_flips_in_header_table_footer_and_padding(
    kind: str, prefix: str, whole: Whole, truth: Truth, tmp_path: Path
) -> None:
    random, folder = generator("frame", kind, prefix), indexes.copy(whole(kind), tmp_path / kind)
    path = file_of(folder, prefix)
    for _ in range(often(1, 2)):
        done = flip_all(folder, kind, path, frame(File(path)), truth(kind), random)
        assert done > 64 + 32 + 2 * 32
    flip_all(folder, kind, path, iter(list(padding(File(path)))[:: often(7, 3)]), truth(kind), random)
    assert indexes.ask(folder, kind) == truth(kind)


@pytest.mark.parametrize(("kind", "prefix"), CIT)
def test_flips_in_every_section(kind: str, prefix: str, whole: Whole, truth: Truth, tmp_path: Path) -> None:
    random, folder = generator("sections", kind, prefix), indexes.copy(whole(kind), tmp_path / kind)
    path = file_of(folder, prefix)
    flips_per_section = often(40 if kind == "hybrid" else 200, 300)
    assert (
        flip_all(folder, kind, path, inside(File(path), random, flips_per_section), truth(kind), random)
        >= min(4, File(path).count) * flips_per_section
    )


@pytest.mark.parametrize("kind", indexes.KINDS)
def test_flips_in_the_manifest(kind: str, whole: Whole, truth: Truth, tmp_path: Path) -> None:
    random, folder = generator("manifest", kind), indexes.copy(whole(kind), tmp_path / kind)
    path = indexes.manifest_path(folder)
    step = often(1 if kind == "bm25" else 10, 2)
    for _ in range(often(1, 2)):
        positions = ((byte, {"manifest"}) for byte in range(0, path.stat().st_size, step))
        assert flip_all(folder, kind, path, positions, truth(kind), random) >= 90


def test_flips_in_the_documents(whole: Whole, truth: Truth, tmp_path: Path) -> None:
    """SQLite leaves parts of its pages unused; only the file's checksum covers them."""
    random, folder = generator("sqlite"), indexes.copy(whole("bm25"), tmp_path / "bm25")
    path = file_of(folder, "docs-")
    sections = {"file", "database", "schema", "citadel", "documents"}
    header = ((byte, sections) for byte in range(100))
    flip_all(folder, "bm25", path, header, truth("bm25"), random)
    anywhere = ((random.randrange(path.stat().st_size), sections) for _ in range(often(500, 1_500)))
    flip_all(folder, "bm25", path, anywhere, truth("bm25"), random)
    rows = [byte for byte in range(path.stat().st_size) if path.read_bytes()[byte : byte + 4] == b"titl"]
    assert len(rows) >= 18
    flip_all(folder, "bm25", path, ((byte, sections) for byte in rows), truth("bm25"), random)


def test_damaged_text_is_never_returned(whole: Whole, tmp_path: Path) -> None:
    folder = indexes.copy(whole("bm25"), tmp_path / "bm25")
    path = file_of(folder, "docs-")
    name = next(
        name
        for name in ("d0", f"d{indexes.DOCUMENTS // 2}")
        if f"title {name[1:]}".encode() in path.read_bytes()
    )
    byte = path.read_bytes().index(f"title {name[1:]}".encode())
    assert citadel.Index.open(folder).get(name) is not None
    with Flipped(path, byte, 0), pytest.raises(citadel.CorruptIndexError, match="checksum of document 0"):
        citadel.Index.open(folder).get(name)


@pytest.mark.parametrize("kind", ["bm25", "int8"])
def test_reference_engine_reports_the_same_damage(
    kind: str, whole: Whole, truth: Truth, tmp_path: Path
) -> None:
    random, folder = generator("reference", kind), indexes.copy(whole(kind), tmp_path / kind)
    path = file_of(folder, "seg-")
    for byte, sections in inside(File(path), random, often(3, 8)):
        with Flipped(path, byte, random.randrange(8)):
            error = reader_error(folder, kind, truth(kind), "reference")
            assert error is None or error.section in sections, (byte, str(error))
