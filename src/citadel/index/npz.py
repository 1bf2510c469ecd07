"""Read the arrays of an .npz file: headers are checked on opening, rows are streamed."""

from __future__ import annotations

import io
import math
import sys
import tempfile
import tokenize
import zipfile
import zlib
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import IO, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from citadel.errors import InputError
from citadel.index.failures import resource_errors

_VERSIONS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)  # others need unbounded memory
_KINDS = "biufUS"  # numbers and strings; no objects, which are pickles, and no records
_HEADER = 1 << 16  # bytes; numpy writes fewer than 200
_BLOCK = 1 << 18
_DAMAGE = (
    *(OSError, ValueError, KeyError, TypeError, SyntaxError, OverflowError, RecursionError, EOFError),
    *(zipfile.BadZipFile, zlib.error, NotImplementedError, tokenize.TokenError),
)


@contextmanager
def reading(path: str) -> Iterator[None]:
    """Turn the errors of a damaged, foreign or missing file into one InputError."""
    try:
        yield
    except FileNotFoundError:
        raise InputError("there is no such file", path) from None
    except _DAMAGE as error:
        problem = " ".join(str(error).split())[:200] or type(error).__name__
        raise InputError(
            f"not an .npz file of plain arrays ({problem}): save it again with numpy.savez", path
        ) from None


@dataclass(frozen=True)
class Member:
    """The header of an array."""

    info: zipfile.ZipInfo
    start: int  # bytes of the header
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    by_columns: bool  # Fortran order, where it differs from C order

    def __len__(self) -> int:
        return self.shape[0] if self.shape else 1

    @property
    def width(self) -> int:
        """Values per row."""
        return math.prod(self.shape[1:])

    @property
    def row_bytes(self) -> int:
        return self.width * self.dtype.itemsize


class Rows(Protocol):
    """An array that is read row by row."""

    def take(self, count: int) -> NDArray[Any]:
        """The next `count` rows."""


class Npz:
    """An open .npz file: the requested arrays by name."""

    def __init__(
        self, path: str, archive: zipfile.ZipFile, members: Mapping[str, Member], stack: ExitStack
    ) -> None:
        self.path, self.members = path, members
        self._archive, self._stack = archive, stack

    def check(self) -> None:
        """Read every array once, so that a damaged file is refused before any of it is used."""
        for member in self.members.values():
            with reading(self.path), self._archive.open(member.info) as file:
                size = 0
                while block := file.read(_BLOCK):
                    size += len(block)
                if size != member.info.file_size:
                    raise EOFError(f"{member.info.filename} ends too early")

    def rows(self, name: str) -> Rows:
        """A reader from the first row of an array."""
        member = self.members[name]
        with reading(self.path):
            file = self._stack.enter_context(self._archive.open(member.info))
            file.read(member.start)
            return (
                _Columns(self.path, file, member) if member.by_columns else _Stream(self.path, file, member)
            )

    def read(self, name: str) -> NDArray[Any]:
        """A whole array."""
        member = self.members[name]
        return self.rows(name).take(len(member)).reshape(member.shape)


@contextmanager
def open_npz(path: str, names: Collection[str]) -> Iterator[Npz]:
    """Open a file and read the headers of the arrays in `names` that it has.

    >>> with tempfile.NamedTemporaryFile(suffix=".npz") as file:
    ...     np.savez(file, keys=np.array([3, 7, 7]))
    ...     with open_npz(file.name, ["keys", "weights"]) as npz:
    ...         npz.members["keys"].shape, npz.rows("keys").take(2).tolist()
    ((3,), [3, 7])
    """
    with ExitStack() as stack:
        with reading(path):
            archive = stack.enter_context(zipfile.ZipFile(path))
            members = _members(archive, names)
        yield Npz(path, archive, members, stack)


def _members(archive: zipfile.ZipFile, names: Collection[str]) -> dict[str, Member]:
    members: dict[str, Member] = {}
    for info in archive.infolist():
        name = info.filename.removesuffix(".npy")
        if name in members:
            raise ValueError(f"the array {name} occurs twice")
        if name in names:
            members[name] = _member(archive, info)
    return members


def _member(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> Member:
    """Read a header and check it against the size in the archive."""
    if info.compress_type not in _METHODS or info.flag_bits & 1:
        raise ValueError(f"{info.filename} is encrypted or compressed in a way that numpy does not use")
    with archive.open(info) as file:
        head = io.BytesIO(file.read(_HEADER))
    shape, fortran, dtype = _VERSIONS[np.lib.format.read_magic(head)](head)
    if dtype.kind not in _KINDS:
        raise ValueError(f"{info.filename} holds {dtype}, neither numbers nor strings")
    if min(shape, default=0) < 0 or head.tell() + math.prod(shape) * dtype.itemsize != info.file_size:
        raise ValueError(
            f"{info.filename} has {info.file_size} bytes, which does not fit its header {dtype}{list(shape)}"
        )
    by_columns = fortran and 0 not in shape and sum(length > 1 for length in shape) > 1
    return Member(info, head.tell(), dtype, shape, by_columns)


class _Stream:
    """Rows in C order, read sequentially."""

    def __init__(self, path: str, file: IO[bytes], member: Member) -> None:
        self._path, self._file, self._member = path, file, member

    def take(self, count: int) -> NDArray[Any]:
        member = self._member
        shape = (count, *member.shape[1:])
        if not count * member.row_bytes:
            return np.zeros(shape, member.dtype)
        raw = np.empty(count * member.row_bytes, np.uint8)
        with reading(self._path):
            self._fill(raw.data)
            return _checked(raw.view(member.dtype).reshape(shape))

    def _fill(self, target: memoryview) -> None:
        """Read in blocks, because zipfile holds several copies of what it decompresses."""
        while target:
            block = self._file.read(min(len(target), _BLOCK))
            if not block:
                raise EOFError(f"{self._member.info.filename} ends too early")
            target[: len(block)] = block
            target = target[len(block) :]


class _Columns:
    """Rows of an array in Fortran order, mapped from an anonymous temporary file."""

    def __init__(self, path: str, file: IO[bytes], member: Member) -> None:
        self._path, self._next = path, 0
        with resource_errors(tempfile.gettempdir()), tempfile.TemporaryFile() as spool:
            while block := file.read(_BLOCK):
                spool.write(block)
            spool.flush()
            self._array = np.memmap(spool, member.dtype, "r", shape=member.shape, order="F")

    def take(self, count: int) -> NDArray[Any]:
        rows = np.ascontiguousarray(self._array[self._next : self._next + count])
        self._next += count
        with reading(self._path):
            return _checked(rows)


def _checked(rows: NDArray[Any]) -> NDArray[Any]:
    """Raise on invalid code points before they become a Python string."""
    if (
        rows.dtype.kind == "U"
        and rows.nbytes
        and int(rows.view(f"{rows.dtype.byteorder}u4").max()) > sys.maxunicode
    ):
        raise ValueError("a string holds an invalid code point")
    return rows
