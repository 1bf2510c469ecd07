"""Lines and their positions; truncated and damaged files."""

from __future__ import annotations

import gzip
import io
import lzma
import os
import sys
import tracemalloc
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
from backports import zstd
from hypothesis import given
from hypothesis import strategies as st

from citadel.errors import InputError, UsageError
from citadel.text import files
from citadel.text.files import LineTooLongError, open_lines

THREE = b"one\r\n\ntwo\nthree"  # the last line has no end
COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": gzip.compress,
    ".xz": lzma.compress,
    ".zst": zstd.compress,
}
COMPRESSED = [".gz", ".xz", ".zst"]


def write(folder: Path, data: bytes, suffix: str = "") -> Path:
    path = folder / f"lines.txt{suffix}"
    path.write_bytes(COMPRESS[suffix](data))
    return path


def noise(size: int) -> bytes:
    """Incompressible lines, so that a truncated file loses some."""
    return b"\n".join(b"%08x" % zlib.crc32(b"%d" % i) for i in range(size))


@pytest.mark.parametrize("suffix", COMPRESS)
def test_lines_have_number_end_and_text(tmp_path: Path, suffix: str) -> None:
    with open_lines(write(tmp_path, THREE, suffix)) as lines:
        assert list(lines) == [(1, 5, b"one"), (2, 6, b""), (3, 10, b"two"), (4, 15, b"three")]
        assert (lines.position, lines.crc) == (15, zlib.crc32(THREE))


@pytest.mark.parametrize("suffix", COMPRESS)
def test_resume_after_each_line(tmp_path: Path, suffix: str) -> None:
    path = write(tmp_path, THREE, suffix)
    everything = list(open_lines(path))
    for done, line in enumerate(everything, start=1):
        with open_lines(path, start=line.end) as lines:
            assert (lines.number, lines.position, lines.crc) == (
                line.number,
                line.end,
                zlib.crc32(THREE[: line.end]),
            )
            assert list(lines) == everything[done:]


def test_resume_beyond_the_end_fails(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"lines.txt: the file has changed: it ends after 15 bytes"):
        open_lines(write(tmp_path, THREE), start=16)


def test_resume_inside_a_line_fails(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no line ends at byte 8"):
        open_lines(write(tmp_path, THREE), start=8)


def test_resume_fails_if_the_last_line_grew(tmp_path: Path) -> None:
    path = write(tmp_path, THREE)
    path.write_bytes(THREE + b" and more\n")
    with pytest.raises(InputError, match="no line ends at byte 15"):
        open_lines(path, start=15)


@given(data=st.lists(st.sampled_from([b"a", b"\r", b"\n", b"\0", b"\xff"]), max_size=40).map(b"".join))
def test_lines_cover_the_file(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "joined.txt"
    path.write_bytes(data)
    lines = list(open_lines(path))
    ends = [line.end for line in lines]
    starts = [0, *ends][: len(ends)]
    assert b"".join(data[a:b] for a, b in zip(starts, ends, strict=True)) == data
    assert all(data[a:b].rstrip(b"\r\n") == line.text for a, b, line in zip(starts, ends, lines, strict=True))


@pytest.mark.parametrize("suffix", COMPRESSED)
def test_truncated_compressed_file_is_an_error(tmp_path: Path, suffix: str) -> None:
    path = write(tmp_path, noise(3000), suffix)
    whole = path.read_bytes()
    for length in (len(whole) - 1, len(whole) // 2, 7):
        path.write_bytes(whole[:length])
        with pytest.raises(InputError, match=rf"lines.txt{suffix}:\d+: the compressed file is truncated"):
            list(open_lines(path))


@pytest.mark.parametrize("suffix", COMPRESSED)
def test_damaged_compressed_file_is_an_error(tmp_path: Path, suffix: str) -> None:
    path = write(tmp_path, noise(3000), suffix)
    damaged = bytearray(path.read_bytes())
    damaged[len(damaged) // 2 :] = b"\xff" * (len(damaged) - len(damaged) // 2)
    path.write_bytes(damaged)
    with pytest.raises(
        InputError, match=rf"lines.txt{suffix}:\d+: the compressed file is (damaged|truncated)"
    ):
        list(open_lines(path))


@pytest.mark.parametrize("suffix", COMPRESSED)
def test_plain_text_with_a_compressed_suffix_is_an_error(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"lines.txt{suffix}"
    path.write_bytes(THREE)
    with pytest.raises(InputError, match=rf"lines.txt{suffix}:1: "):
        list(open_lines(path))


@pytest.mark.parametrize("suffix", COMPRESSED)
def test_concatenated_frames(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"lines.txt{suffix}"
    path.write_bytes(COMPRESS[suffix](b"one\ntw") + COMPRESS[suffix](b"o\n"))
    assert [line.text for line in open_lines(path)] == [b"one", b"two"]


def test_zstd_bomb_is_decompressed_in_chunks(tmp_path: Path) -> None:
    path = write(tmp_path, b"\n" * 50_000_000, ".zst")
    tracemalloc.start()
    with files.open_lines(path) as lines:
        assert next(lines).text == b""
        peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert path.stat().st_size < 20_000 and peak < 8 << 20


def test_line_length_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MAX_LINE", 8)
    monkeypatch.setattr(files, "_CHUNK", 2)
    with open_lines(write(tmp_path, b"12345678\n123456789012\nnext")) as lines:
        assert next(lines).text == b"12345678"
        with pytest.raises(LineTooLongError, match=r"lines.txt:2: the line is longer than"):
            next(lines)
        assert next(lines) == (3, 26, b"next")
        assert lines.crc == zlib.crc32(b"12345678\n123456789012\nnext")


def test_missing_files_folders_and_invalid_names_are_input_errors(tmp_path: Path) -> None:
    for path in (tmp_path / "absent.txt", tmp_path, "a\0b", "a\ud800b"):
        with pytest.raises(InputError, match=r"cannot be opened|not a file name"):
            open_lines(path)


def test_standard_input_cannot_be_resumed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(THREE)))
    lines = open_lines("-")
    assert [line.text for line in lines] == [b"one", b"", b"two", b"three"]
    assert (lines.source, lines.size, lines.consumed_on_disk) == ("<stdin>", None, 15)
    with pytest.raises(UsageError, match="cannot be resumed"):
        open_lines("-", start=1)


def test_pipe_has_no_size(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.write(writing, THREE)
    os.close(writing)
    with open_lines(f"/dev/fd/{reading}") as lines:
        assert lines.size is None
        assert len(list(lines)) == 4
        assert lines.consumed_on_disk == 15
    os.close(reading)


@pytest.mark.parametrize("suffix", COMPRESS)
def test_consumed_on_disk_ends_at_the_file_size(tmp_path: Path, suffix: str) -> None:
    path = write(tmp_path, noise(300_000 if suffix == "" else 30_000), suffix)
    with open_lines(path) as lines:
        progress = [lines.consumed_on_disk for _ in lines]
        assert lines.size == path.stat().st_size
        assert progress == sorted(progress)
        assert lines.consumed_on_disk == lines.size
