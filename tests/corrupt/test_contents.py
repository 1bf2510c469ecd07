"""Hostile sections with valid checksums: both engines give a typed error or a ranking."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from tests.corrupt import indexes, rewrite
from tests.corrupt.seeds import generator, often
from tests.corrupt.visitor import complaint, visit

Whole = Callable[[str], Path]
DOCUMENTS_PER_SEGMENT = indexes.DOCUMENTS // 2
FILES = [(kind, "seg-") for kind in indexes.KINDS] + [
    ("bm25", "del-"),
    ("int8", "del-"),
    ("pq2", "codebook-"),
    ("residual2", "codebook-"),
]
COLUMNS = [(kind, "cols-") for kind in indexes.HAS_COLUMNS]
WIDTHS = {
    "ID_OFFSETS": 8, "ID_HASHES": 8, "ID_NUMBERS": 4, "KEYS": 4, "LIST_STARTS": 8, "BLOCK_STARTS": 8,
    "BLOCK_DOCUMENTS": 4, "BLOCK_OFFSETS": 8, "SCALES": 2, "VALUES": 2, "TERM_OFFSETS": 8, "LENGTHS": 4,
    "COUNT_OFFSETS": 8, "SEMANTIC_SCALES": 2, "PROBE_CENTROIDS": 4, "PROBE_STARTS": 8, "PROBE_DOCUMENTS": 4,
    "DELETED_STARTS": 8, "DELETED_DOCUMENTS": 4, "TERM_STARTS": 8, "TERM_RANKS": 4, "TERM_COUNTS": 4,
    "REMOVED_LENGTHS": 8, "CENTROIDS": 4, "KEY_SCALES": 4, "PASSAGE_STARTS": 8, "PASSAGE_SPANS": 4,
    "COLUMN_DATA": 8, "TOKEN_STARTS": 8, "TOKEN_CENTROIDS": 2, "CENTROID_SCALES": 2, "BUCKET_CUTS": 4,
}  # fmt: skip
NAN = struct.pack("<f", float("nan"))


def extremes(width: int) -> list[bytes]:
    top = (1 << 8 * width) - 1
    values = [0, 1, 2, 127, 128, top, top - 1, top >> 1, (top >> 1) + 1]
    if width == 8:
        values += [255 << 56, 33 << 56, (1 << 56) - 1, 32 << 56 | 1 << 20]
    return [value.to_bytes(width, "little") for value in values]


def numbers_replaced(data: bytes, width: int) -> Iterator[bytes]:
    """Each extreme number at the first, second, middle and last position, and everywhere."""
    count = len(data) // width
    for value in extremes(width):
        for position in sorted({0, 1, count // 2, count - 1} & set(range(count))):
            yield data[: position * width] + value + data[(position + 1) * width :]
        yield value * count


def shaken(data: bytes, width: int, random: Random) -> Iterator[bytes]:
    yield bytes(len(data))
    yield b"\xff" * len(data)
    yield data[:-width]
    yield data + data[-width:]
    yield b""
    yield data[::-1]
    yield random.randbytes(len(data))
    if width == 4:
        yield (NAN * len(data))[: len(data)]
    yield from numbers_replaced(data, width)


def hostile_sections(path: Path, random: Random) -> Iterator[tuple[str, dict[str, bytes | None]]]:
    for name, data in rewrite.sections(path).items():
        if name == "META":
            continue
        yield f"without {name}", {name: None}
        for number, changed in enumerate(shaken(data, WIDTHS.get(name, 1), random)):
            yield f"{name}, change {number}", {name: changed}


def shaken_together(path: Path, random: Random, count: int) -> Iterator[tuple[str, dict[str, bytes | None]]]:
    """Several sections of the right length, each with some random bytes."""
    sections = rewrite.sections(path)
    for number in range(count):
        changes: dict[str, bytes | None] = {}
        for name in random.sample(sorted(set(sections) - {"META"}), min(3, len(sections))):
            data = bytearray(sections[name])
            for _ in range(min(len(data), random.choice([1, 4, 64]))):
                data[random.randrange(len(data))] = random.choice(
                    [0, 1, 2, 32, 127, 128, 255, random.randrange(256)]
                )
            changes[name] = bytes(data)
        yield f"shaken {number}: {', '.join(changes)}", changes


@pytest.mark.parametrize("engine", ["native", "reference"])
@pytest.mark.parametrize(("kind", "prefix"), FILES + COLUMNS)
def test_hostile_sections(kind: str, prefix: str, engine: str, whole: Whole, tmp_path: Path) -> None:
    random, source = generator("contents", kind, prefix), whole(kind)
    path = min(source.glob(f"{prefix}*"))
    cases = [*hostile_sections(path, random), *shaken_together(path, random, often(40, 100))]
    step = often(5 if engine == "native" else 16, 3)
    cases = cases[random.randrange(step) :: step]
    names = {}
    for number, (case, changes) in enumerate(cases):
        folder = cheap_copy(source, tmp_path / str(number), path.name)
        rewrite.tamper(folder, prefix, changes)
        names[str(folder)] = case
    visits = visit(map(Path, names), kind, engine, source)
    assert len(visits) == len(names) >= 5
    assert {names[result.folder]: complaint(result) for result in visits if complaint(result)} == {}
    assert engine == "reference" or any(
        result.error for result in visits
    )  # its few cases may all be harmless


def cheap_copy(source: Path, target: Path, *own: str) -> Path:
    """A folder with hard links to another's files, except for those that a test rewrites."""
    target.mkdir()
    for path in source.iterdir():
        if path.name in own or path.name.startswith("gen."):
            (target / path.name).write_bytes(path.read_bytes())
        else:
            (target / path.name).hardlink_to(path)
    return target


def forged_fields(path: Path, random: Random) -> Iterator[tuple[str, bytes]]:
    """The JSON of a columns file with other names, kinds, extents and counts."""
    head = json.loads(rewrite.sections(path)["COLUMN_FIELDS"])
    for rows in (0, 1, DOCUMENTS_PER_SEGMENT + 1, 1 << 62, -1, True, None):
        yield f"{rows} rows", json.dumps(head | {"rows": rows}).encode()
    for position, field in enumerate(head["fields"]):
        for changed in forged_field(field, random.choice(head["fields"])):
            fields = [*head["fields"][:position], changed, *head["fields"][position + 1 :]]
            yield json.dumps(changed)[:200], json.dumps(head | {"fields": fields}).encode()


def forged_field(field: dict[str, Any], other: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield field | {"arrays": other["arrays"]}
    yield field | {"kind": other["kind"]}
    yield field | {"name": other["name"]}
    yield other | {"name": field["name"]}
    for role, (dtype, start, count) in field["arrays"].items():
        extents = [[dtype, start, count - 1], [dtype, start, count + 1], [dtype, start + 8, count]]
        extents += [[dtype, 0, 1 << 40], [dtype, 0, 0], ["<u8", start, count], *other["arrays"].values()]
        for extent in extents:
            yield field | {"arrays": field["arrays"] | {role: extent}}
        yield field | {"arrays": {name: value for name, value in field["arrays"].items() if name != role}}


@pytest.mark.parametrize(("kind", "prefix"), COLUMNS)
def test_forged_fields_of_columns(kind: str, prefix: str, whole: Whole, tmp_path: Path) -> None:
    random, source, names = generator("fields", kind), whole(kind), {}
    path = min(source.glob(f"{prefix}*"))
    cases = list(forged_fields(path, random))
    for number, (case, fields) in enumerate(cases[:: often(3, 1)]):
        folder = cheap_copy(source, tmp_path / str(number), path.name)
        rewrite.tamper(folder, prefix, {"COLUMN_FIELDS": fields})
        names[str(folder)] = case
    visits = visit(map(Path, names), kind, "native", source)
    assert {names[result.folder]: complaint(result) for result in visits if complaint(result)} == {}
    assert sum(result.error == "CorruptIndexError" for result in visits) > len(visits) // 2


META: list[dict[str, Any]] = [
    {"documents": 0}, {"documents": 1 << 40}, {"documents": -1}, {"documents": 18.0}, {"documents": "18"},
    {"documents": True}, {"postings": 0}, {"postings": 1 << 62}, {"kind": "sparse"}, {"kind": "vectors"},
    {"kind": "bm25"}, {"kind": "none"}, {"kind": None}, {"kind": ["x"]}, {"kind": {}}, {"dimension": 0},
    {"dimension": 1}, {"dimension": 1 << 31}, {"dimension": 7}, {"codec": "fp16"}, {"codec": "int8"},
    {"codec": "pq1"}, {"codec": "pq2"}, {"codec": []}, {"codec": "zip"}, {"weight_step": 0.0},
    {"weight_step": float("nan")}, {"weight_step": 1}, {"semantic_dimension": 0},
    {"semantic_dimension": 1024}, {"semantic_dimension": 1 << 40},
    {"semantic_codec": "pq2"}, {"semantic_codec": "fp16"},
    {"semantic_codec": "int8"}, {"semantic_codec": {}}, {"surprise": 1}, {"subvector": 0}, {"subvector": "4"},
    {"global_scale": None}, {"global_scale": float("nan")}, {"global_scale": 1e308}, {"sampled": "many"},
    {"sampled": [1]}, {"sampled": {}},
]  # fmt: skip


@pytest.mark.parametrize(("kind", "prefix"), FILES)
def test_hostile_meta(kind: str, prefix: str, whole: Whole, tmp_path: Path) -> None:
    source, names = whole(kind), {}
    path = min(source.glob(f"{prefix}*"))
    raw: list[bytes] = [
        b"",
        b"[]",
        b"{",
        b"null",
        b"{}",
        b"[" * 50_000,
        b"\xff",
        b'{"documents": ' + b"9" * 5000 + b"}",
    ]
    changes: list[bytes | dict[str, Any]] = [*META, *raw]
    for number, change in enumerate(changes):
        folder = cheap_copy(source, tmp_path / str(number), path.name)
        if isinstance(change, bytes):
            rewrite.tamper(folder, prefix, {"META": change})
        else:
            rewrite.tamper_meta(folder, prefix, **change)
        names[str(folder)] = str(change)[:80]
    visits = visit(map(Path, names), kind, "native", source)
    assert {names[result.folder]: complaint(result) for result in visits if complaint(result)} == {}


def test_out_of_range_document_numbers_are_refused(whole: Whole, tmp_path: Path) -> None:
    """Document numbers beyond the segment are refused in every block."""
    folder = cheap_copy(whole("int8"), tmp_path / "copy", min(whole("int8").glob("seg-*")).name)
    firsts = np.full(indexes.KEYS, 1 << 20, "<u4").tobytes()
    rewrite.tamper(folder, "seg-", {"BLOCK_DOCUMENTS": firsts})
    (result,) = visit([folder], "int8", "native", whole("int8"))
    assert (result.error, result.section) == ("CorruptIndexError", "PACKED_DOCUMENTS")
