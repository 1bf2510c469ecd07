"""Arrays of an .npz file are read back exactly; damaged files raise InputError."""

from __future__ import annotations

import contextlib
import io
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from citadel.errors import InputError
from citadel.index.npz import open_npz

KEYS = np.array([3, 7, 7], np.uint32)


def npy(array: Any) -> bytes:
    """The bytes of an .npy file."""
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def header(text: bytes, version: bytes = b"\x01\x00", data: bytes = KEYS.tobytes()) -> bytes:
    """An .npy file with this header."""
    length = struct.pack("<H" if version[0] == 1 else "<I", len(text))
    return b"\x93NUMPY" + version + length + text + data


def write(path: Path, *members: tuple[str, bytes], method: int = zipfile.ZIP_STORED) -> Path:
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, content in members:
            archive.writestr(name, content)
    return path


def read(path: Path) -> list[int]:
    """Open, check and read: together these detect all damage."""
    with open_npz(str(path), ["keys"]) as npz:
        npz.check()
        numbers: list[int] = npz.read("keys").tolist()
        return numbers


SHAPES = arrays.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=5)
DTYPES = st.sampled_from(
    [np.dtype(code) for code in ("<f4", ">f4", "<f2", "<i8", ">u2", "|b1", "<U3", "|S2")]
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), order=st.sampled_from("CF"), compressed=st.booleans())
def test_rows_round_trip(tmp_path: Path, data: st.DataObject, order: Any, compressed: bool) -> None:
    array = np.asarray(data.draw(arrays.arrays(DTYPES, SHAPES)), order=order)
    (np.savez_compressed if compressed else np.savez)(tmp_path / "x.npz", keys=array)
    with open_npz(str(tmp_path / "x.npz"), ["keys"]) as npz:
        npz.check()
        rows, left, parts = npz.rows("keys"), len(npz.members["keys"]), []
        while left:
            parts.append(rows.take(data.draw(st.integers(1, left))))
            left -= len(parts[-1])
        assert npz.read("keys").tobytes() == array.tobytes()
    assert b"".join(part.tobytes() for part in parts) == array.tobytes()


def test_file_larger_than_a_block(tmp_path: Path) -> None:
    numbers = np.arange(200_000).reshape(-1, 2)  # 1.6 MB: more than one read
    np.savez_compressed(tmp_path / "x.npz", c=numbers, f=np.asfortranarray(numbers))
    with open_npz(str(tmp_path / "x.npz"), ["c", "f"]) as npz:
        assert npz.members["f"].by_columns
        for name in ("c", "f"):
            rows = npz.rows(name)
            assert (rows.take(60_000) == numbers[:60_000]).all()
            assert (rows.take(40_000) == numbers[60_000:]).all()


def test_other_arrays_are_ignored(tmp_path: Path) -> None:
    assert read(write(tmp_path / "x.npz", ("keys.npy", npy(KEYS)), ("notes.txt", b"by hand"))) == [3, 7, 7]
    assert read(write(tmp_path / "y.npz", ("keys", npy(KEYS)))) == [
        3,
        7,
        7,
    ]  # numpy also accepts a name without .npy


HEADERS: dict[str, bytes] = {
    "no array": b"three keys",
    "empty": b"",
    "objects": npy(np.array([{}, None], dtype=object)),
    "records": npy(np.zeros(3, [("a", "<f4")])),
    "times": npy(np.zeros(3, "<M8[s]")),
    "more rows than bytes": header(b"{'descr': '<u4', 'fortran_order': False, 'shape': (4,)}"),
    "fewer rows than bytes": header(b"{'descr': '<u4', 'fortran_order': False, 'shape': (2,)}"),
    "a trillion rows": header(b"{'descr': '<u4', 'fortran_order': False, 'shape': (1000000000000,)}"),
    "negative rows": header(b"{'descr': '<u4', 'fortran_order': False, 'shape': (-3,)}"),
    "negative twice": header(b"{'descr': '<u4', 'fortran_order': False, 'shape': (-3, -1)}"),
    "no shape": header(b"{'descr': '<u4', 'fortran_order': False}"),
    "half a header": header(b"{'descr': '<u4', 'fort"),
    "a call": header(b"__import__('os').getcwd()"),
    "no type": header(b"{'descr': 'keys', 'fortran_order': False, 'shape': (3,)}"),
    "a header longer than the file": b"\x93NUMPY\x01\x00\xff\xff{}",
    "a header of 4 GB": b"\x93NUMPY\x02\x00\xff\xff\xff\xff{}",
    "a long header": header(b"{'descr': '<u4', 'fortran_order': False, 'shape': (3,)}" + b" " * 20_000),
    "deep nesting": header(b"(" * 5_000),
    "a later version": header(
        b"{'descr': '<u4', 'fortran_order': False, 'shape': (3,)}", version=b"\x03\x00"
    ),
}


@pytest.mark.parametrize("content", HEADERS.values(), ids=HEADERS)
def test_invalid_array_header_is_refused(content: bytes, tmp_path: Path) -> None:
    path = write(tmp_path / "x.npz", ("keys.npy", content))
    with pytest.raises(InputError) as caught, open_npz(str(path), ["keys"]):
        pytest.fail("the header was taken")
    assert str(caught.value).startswith(f"{path}: not an .npz file of plain arrays (")
    assert "\n" not in str(caught.value)


def test_duplicate_array_is_refused(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="Duplicate name"):
        path = write(tmp_path / "x.npz", ("keys.npy", npy(KEYS)), ("keys.npy", npy(KEYS)))
    with pytest.raises(InputError, match="the array keys occurs twice"):
        read(path)
    with pytest.raises(InputError, match="the array keys occurs twice"):
        read(write(tmp_path / "y.npz", ("keys.npy", npy(KEYS)), ("keys", npy(KEYS))))


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_unsupported_compression_is_refused(method: int, tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match=r"keys\.npy is encrypted or compressed in a way that numpy does not use"
    ):
        read(write(tmp_path / "x.npz", ("keys.npy", npy(KEYS)), method=method))


def patched(content: bytes, mark: bytes, position: int, new: bytes) -> bytes:
    """The archive with bytes replaced at an offset from the last `mark`."""
    start = content.rindex(mark) + position
    return content[:start] + new + content[start + len(new) :]


# An entry of the central directory: flags at 8, CRC at 16, size at 24.
DIRECTORY = b"PK\x01\x02"
DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "cut off": lambda content: content[: len(content) // 2],
    "its end is cut off": lambda content: content[:-1],
    "its beginning is cut off": lambda content: content[10:],
    "wrong CRC": lambda content: patched(content, DIRECTORY, 16, b"\1\2\3\4"),
    "encrypted": lambda content: patched(content, DIRECTORY, 8, b"\1"),
    "a size that is not its own": lambda content: patched(content, DIRECTORY, 24, b"\0\0\0\x10"),
    "an offset outside of the file": lambda content: patched(content, DIRECTORY, 42, b"\xff\xff\xff\x0f"),
    "other bytes": lambda content: content[:300] + b"\xff\xfe\xfd\xfc" + content[304:],
    "nothing but the end": lambda content: content[content.rindex(b"PK\x05\x06") :],
}


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_archive_is_refused(damage: str, method: int, tmp_path: Path) -> None:
    numbers = np.random.default_rng(0).integers(0, 1 << 31, 200)
    path = write(tmp_path / "x.npz", ("keys.npy", npy(numbers)), method=method)
    path.write_bytes(DAMAGE[damage](path.read_bytes()))
    with pytest.raises(InputError, match=r"x\.npz: not an \.npz file"):
        read(path)


def test_file_that_changes_while_it_is_read_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "x.npz", ("keys.npy", npy(np.arange(100_000))))
    with open_npz(str(path), ["keys"]) as npz:
        npz.check()
        rows = npz.rows("keys")
        rows.take(10)
        path.write_bytes(path.read_bytes()[:1000])
        with pytest.raises(InputError, match=r"not an \.npz file"):
            rows.take(99_990)


@pytest.mark.parametrize("seed", range(4))
def test_changed_bytes_are_refused_or_harmless(seed: int, tmp_path: Path) -> None:
    random = np.random.default_rng(seed)
    whole = write(
        tmp_path / "x.npz", ("keys.npy", npy(KEYS)), method=zipfile.ZIP_DEFLATED * (seed % 2)
    ).read_bytes()
    for _ in range(200):
        changed = bytearray(whole)
        for position in random.integers(0, len(whole), random.integers(1, 4)):
            changed[position] = random.integers(256)
        (tmp_path / "x.npz").write_bytes(changed)
        with contextlib.suppress(InputError), open_npz(str(tmp_path / "x.npz"), ["keys"]) as npz:
            npz.check()
            assert "keys" not in npz.members or npz.read("keys").tobytes() == KEYS.tobytes()
