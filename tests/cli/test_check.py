"""`citadel check`: what is whole, what is not, and the way back."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Citadel


def flip(path: Path, place: int) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)


def test_a_whole_index(index: Path, citadel: Citadel) -> None:
    assert "opens: 3 documents, 1 segment" in citadel("check", index).out
    assert "every byte read" in citadel("check", index, "--deep").out
    assert "every byte read" in citadel("check", index, "--repair").out


@pytest.mark.parametrize("pattern", ["seg-*.cit", "docs-*.sqlite"])
def test_a_flipped_bit_is_exit_3_and_names_the_file(pattern: str, index: Path, citadel: Citadel) -> None:
    (file,) = index.glob(pattern)
    flip(file, file.stat().st_size // 2)
    done = citadel("check", index, "--deep", code=3)
    assert file.name in done.err
    assert "is damaged" in done.out


def test_repair_builds_damaged_lists_again(index: Path, citadel: Citadel) -> None:
    before = set(index.glob("seg-*"))
    citadel("add", index, "-", stdin=b'{"id": "d4", "text": "fourth"}\n')
    (added,) = set(index.glob("seg-*")) - before
    flip(added, added.stat().st_size // 2)
    done = citadel("check", index, "--deep", code=3)
    assert "--repair`: repair keeps all 4 documents" in done.out
    repaired = citadel("check", index, "--repair").out
    assert "is whole: 4 documents" in repaired
    citadel("check", index, "--deep")
    assert (
        "1 document added, 1 replaced; 4 in total"
        in citadel("add", index, "-", stdin=b'{"id": "d4", "text": "fourth"}\n').out
    )


def test_nothing_whole_cannot_be_repaired(index: Path, citadel: Citadel) -> None:
    for file in index.glob("gen.*"):
        flip(file, 5)
    before = sorted(index.iterdir())
    citadel("check", index, "--repair", code=3)
    assert sorted(index.iterdir()) == before


def test_an_unknown_format_names_both(index: Path, citadel: Citadel) -> None:
    from citadel.index.checksum import crc32c

    newest = max(index.glob("gen.*"))
    line = newest.read_bytes().splitlines()[0].replace(b'"format": 1', b'"format": 99')
    newest.write_bytes(line + f"\n{crc32c(line):08x}\n".encode())
    error = citadel("check", index, code=3).err
    assert "99" in error
    assert "format 1" in error


def test_a_damaged_document_is_dropped_with_yes_only(index: Path, citadel: Citadel) -> None:
    (file,) = index.glob("docs-*.sqlite")
    flip(file, file.read_bytes().index(b"relativity"))
    said = citadel("check", index, "--deep", code=3)
    assert "--repair --yes`: repair keeps 2 documents and loses 1: d1" in said.out
    assert "loses 1: d1; nothing was changed: repeat it with --yes" in citadel("check", index, "--repair", code=3).err
    repaired = citadel("check", index, "--repair", "--yes").out
    assert "lost: d1" in repaired.splitlines()
    assert "is whole: 2 documents" in repaired


def test_damage_of_the_generation_before_is_reported(index: Path, citadel: Citadel) -> None:
    citadel("add", index, "-", stdin=b'{"id": "d4", "text": "fourth"}\n')
    older = sorted(index.glob("gen.*"))[-2]
    flip(older, 5)
    done = citadel("check", index, "--deep")
    assert f"generation {int(older.suffix[1:])}, which a repair could return to, is damaged" in done.err
