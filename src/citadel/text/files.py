"""Read lines of a plain or compressed file with byte positions, so that an interrupted build can resume."""

from __future__ import annotations

import gzip
import io
import lzma
import os
import stat
import sys
import zlib
from collections.abc import Callable
from typing import Any, BinaryIO, NamedTuple, Self

from citadel.errors import InputError, UsageError

zstd: Any
try:
    if sys.version_info >= (3, 14):
        from compression import zstd
    else:
        from backports import zstd
except ImportError:  # citadel was copied, not installed
    zstd = None

MAX_LINE = 64 << 20  # bytes
STDIN = "-"
_CHUNK = 1 << 20
_HEAD = 4096  # bytes kept of a line that is too long, to find its document id
_DAMAGED = (OSError, EOFError, ValueError, zlib.error, lzma.LZMAError, *([zstd.ZstdError] if zstd else []))


class Line(NamedTuple):
    """One line of the decompressed stream."""

    number: int  # from 1
    end: int  # offset of the next line
    text: bytes  # without the line end


class LineTooLongError(InputError):
    """A line above the size limit; `head` is its beginning. Reading can continue with the next line."""

    head = b""


class Lines:
    """Iterator over the lines of a stream, made by `open_lines`.

    `position` is the number of decompressed bytes read so far, `crc` their zlib.crc32, and `size` the size of
    the file on disk, None for a pipe.
    """

    def __init__(
        self, source: str, stream: io.BufferedReader, disk: BinaryIO | None, max_line: int | None = None
    ) -> None:
        self.source = source
        self._limit = MAX_LINE if max_line is None else min(max_line, MAX_LINE)
        self.number = 0
        self.position = 0
        self.crc = 0
        self.size = _size_on_disk(disk)
        self._stream = stream
        self._disk = disk
        self._plain = stream is disk

    @property
    def consumed_on_disk(self) -> int:
        """Bytes read of `size`, for a progress bar."""
        if self._disk is None or self._plain or self.size is None:
            return self.position
        return self.size if self._disk.closed else self._disk.tell()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Line:
        if self._stream.closed:
            raise StopIteration
        line = self._read(lambda: self._stream.readline(self._limit + 1))
        if not line:
            self.close()
            raise StopIteration
        self._count(line)
        self.number += 1
        if len(line) > self._limit and not line.endswith(b"\n"):
            self._skip_rest_of_line(line[:_HEAD])
        return Line(self.number, self.position, line.rstrip(b"\r\n"))

    def _skip_rest_of_line(self, head: bytes) -> None:
        while piece := self._read(lambda: self._stream.readline(_CHUNK)):
            self._count(piece)
            if piece.endswith(b"\n"):
                break
        advice = "split it" if self._limit == MAX_LINE else "raise the memory limit (--memory), or split it"
        reason = f"the line is longer than {self._limit >> 20} MiB: {advice}"
        error = LineTooLongError(reason, self.source, self.number)
        error.head = head
        raise error

    def _count(self, piece: bytes) -> None:
        self.position += len(piece)
        self.crc = zlib.crc32(piece, self.crc)

    def _read(self, read: Callable[[], bytes]) -> bytes:
        try:
            return read()
        except _DAMAGED as error:
            self.close()
            raise InputError(_unreadable(error), self.source, self.number + 1) from None

    def skip_to(self, start: int) -> None:
        """Read the first `start` bytes for their line count and CRC; they must end at a line end."""
        last = b"\n"
        while self.position < start:
            piece = self._read(lambda: self._stream.read(min(_CHUNK, start - self.position)))
            if not piece:
                self._fail(
                    f"the file has changed: it ends after {self.position} bytes, but {start} were read before"
                )
            self._count(piece)
            self.number += piece.count(b"\n")
            last = piece[-1:]
        if last != b"\n":
            self._expect_end(start)

    def _expect_end(self, start: int) -> None:
        self.number += 1
        if self._read(lambda: self._stream.peek(1)):
            self._fail(f"the file has changed: no line ends at byte {start}, where reading stopped before")

    def _fail(self, reason: str) -> None:
        self.close()
        raise InputError(f"{reason}; start anew", self.source)

    def close(self) -> None:
        """Close the file; standard input stays open."""
        if self._disk is None:
            return
        self._stream.close()
        self._disk.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def open_lines(path: str | os.PathLike[str], start: int = 0, max_line: int | None = None) -> Lines:
    """Open a file or "-" (standard input) at byte `start`; .gz, .xz and .zst files are decompressed.

    The bytes before `start` are read again, so that `crc` and `number` continue those of the first run. A
    line of more than `max_line` bytes (default 64 MiB) is an error.

    >>> import pathlib, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "two.txt")
    ...     size = path.write_bytes(b"one" + bytes([10]) + b"two")
    ...     with open_lines(path) as lines:
    ...         [tuple(line) for line in lines]
    [(1, 4, b'one'), (2, 7, b'two')]
    """
    name = os.fspath(path)
    if name == STDIN:
        if start:
            raise UsageError("standard input cannot be resumed: give a file, or start anew")
        return Lines("<stdin>", _standard_input(), None, max_line)
    disk = _open(name)
    lines = Lines(name, _decompressed(name, disk), disk, max_line)
    lines.skip_to(start)
    return lines


def uncompressed_name(name: str) -> str:
    """Remove the compression suffix from a file name.

    >>> uncompressed_name("corpus.jsonl.zst")
    'corpus.jsonl'
    """
    stem, suffix = os.path.splitext(name)
    return stem if suffix.lower() in _DECOMPRESSORS else name


def _open(name: str) -> io.BufferedReader:
    try:
        return io.BufferedReader(io.FileIO(name), _CHUNK)
    except OSError as error:
        raise InputError(f"cannot be opened: {error.strerror}", name) from None
    except ValueError as error:  # a NUL or a lone surrogate in the name
        raise InputError(f"not a file name: {error}", repr(name)) from None


def _decompressed(name: str, disk: io.BufferedReader) -> io.BufferedReader:
    decompress = _DECOMPRESSORS.get(os.path.splitext(name)[1].lower())
    return disk if decompress is None else io.BufferedReader(decompress(disk), _CHUNK)


def _standard_input() -> io.BufferedReader:
    stream: Any = sys.stdin.buffer
    return stream if isinstance(stream, io.BufferedReader) else io.BufferedReader(stream, _CHUNK)


def _size_on_disk(disk: BinaryIO | None) -> int | None:
    if disk is None:
        return None
    status = os.fstat(disk.fileno())
    return status.st_size if stat.S_ISREG(status.st_mode) else None


def _unreadable(error: Exception) -> str:
    if isinstance(error, EOFError):
        return "the compressed file is truncated: copy it again"
    if isinstance(error, OSError) and error.errno is not None:
        return f"cannot be read: {error.strerror}"
    return f"the compressed file is damaged ({error}): copy it again"


def _zstd(disk: BinaryIO) -> Any:
    """Open a zstd stream. The package is optional until such a file is read."""
    if zstd is None:
        raise InputError(
            "this file is compressed with zstd: run `pip install backports.zstd`, or decompress it first"
        )
    return zstd.ZstdFile(disk)


_DECOMPRESSORS: dict[str, Callable[[BinaryIO], Any]] = {
    ".gz": lambda disk: gzip.GzipFile(fileobj=disk, mode="rb"),
    ".xz": lzma.LZMAFile,
    ".zst": _zstd,
}
