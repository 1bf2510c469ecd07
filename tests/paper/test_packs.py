"""Packs of measurements: equal files give equal packs, and a report reads them like plain files."""

from __future__ import annotations

import io
import lzma
import os
import tarfile
from pathlib import Path

import pytest

from citadel.errors import InputError
from citadel.paper import packs
from citadel.paper.family import family_table
from citadel.paper.measured import read_folder
from citadel.paper.packs import packs_in, unpack, unpacked, write_packs
from citadel.paper.record import Measurement, write_measurement

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def contents(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


@pytest.fixture
def measured(tmp_path: Path) -> Path:
    """One collection with two systems, one of them with a run."""
    folder = tmp_path / "measured" / "tiny"
    folder.mkdir(parents=True)
    for name in ("BM25", "CITADEL"):
        record = Measurement(name, "tiny", 10, 2, measures={"nDCG@10": 0.5})
        write_measurement(folder / f"{name.lower()}.json", record)
        (folder / f"{name.lower()}.queries.json").write_text(
            '{"measures": {"nDCG@10": {"q1": 0.25, "q2": 0.75}}}'
        )
    (folder / "bm25.run.xz").write_bytes(lzma.compress(b"q1 Q0 d1 1 2.0 bm25\n"))
    return tmp_path / "measured"


def test_unpack_restores_the_files(measured: Path, tmp_path: Path) -> None:
    written = write_packs(measured, tmp_path / "packs")
    assert [pack.name for pack in written] == ["tiny.tar.xz", "tiny-runs-1.tar.xz"]
    unpack(tmp_path / "packs", tmp_path / "back")
    assert contents(tmp_path / "back") == contents(measured)


def test_packs_do_not_depend_on_times_or_modes(measured: Path, tmp_path: Path) -> None:
    write_packs(measured, tmp_path / "first")
    for path in measured.rglob("*.json"):
        os.utime(path, (1, 1))
        path.chmod(0o600)
    write_packs(measured, tmp_path / "second")
    assert contents(tmp_path / "first") == contents(tmp_path / "second")


def test_runs_are_split_by_size(measured: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (measured / "tiny" / "citadel.run.xz").write_bytes(lzma.compress(b"q1 Q0 d2 1 2.0 citadel\n"))
    monkeypatch.setattr(packs, "MAX_RUN_BYTES", 1)
    names = [pack.name for pack in write_packs(measured, tmp_path / "packs")]
    assert names == ["tiny.tar.xz", "tiny-runs-1.tar.xz", "tiny-runs-2.tar.xz"]


def test_report_reads_packs_like_files(measured: Path, tmp_path: Path) -> None:
    write_packs(measured, tmp_path / "packs")
    assert family_table(read_folder(tmp_path / "packs")) == family_table(read_folder(measured))
    assert "CITADEL" in family_table(read_folder(tmp_path / "packs"))


def test_files_override_packs(measured: Path, tmp_path: Path) -> None:
    write_packs(measured, measured)
    write_measurement(
        measured / "tiny" / "bm25.json", Measurement("BM25", "tiny", 10, 2, measures={"nDCG@10": 0.9})
    )
    (bm25,) = [each for each in read_folder(measured) if each.record.system == "BM25"]
    assert bm25.record.measures["nDCG@10"] == 0.9


@pytest.mark.parametrize("kind", ["cut short", "not an archive", "link", "outside", "too large"])
def test_bad_pack_is_an_error(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:xz") as archive:
        entry = tarfile.TarInfo("../outside.json" if kind == "outside" else "tiny/bm25.json")
        entry.size = 0 if kind == "link" else 4
        if kind == "link":
            entry.type, entry.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(entry, io.BytesIO(b"null"))
    data = {"cut short": buffer.getvalue()[:90], "not an archive": b"no archive"}.get(kind, buffer.getvalue())
    pack = tmp_path / "packs" / "tiny.tar.xz"
    pack.parent.mkdir()
    pack.write_bytes(data)
    if kind == "too large":
        monkeypatch.setattr(packs, "MAX_UNPACKED_BYTES", 3)
    with pytest.raises(InputError, match=r"tiny\.tar\.xz"):
        unpack(pack.parent, tmp_path / "back")
    assert not (tmp_path / "outside.json").exists()


def test_committed_packs_are_few_and_small() -> None:
    kept = [*packs_in(BENCHMARKS), *packs_in(BENCHMARKS / "measured")]
    assert 5 <= len(kept) <= 12
    assert all(pack.stat().st_size < 1_000_000 for pack in kept)


def test_committed_measurements_cover_the_family() -> None:
    measurements = read_folder(BENCHMARKS / "measured")
    assert {each.record.collection for each in measurements} == {"cranfield", "scifact", "vaswani"}
    systems = {each.record.system for each in measurements}
    assert {"BM25", "DPR-384", "ColBERT", "CITADEL", "CITADEL+"} <= systems
    assert all(each.record.measures for each in measurements)
    assert (unpacked(BENCHMARKS) / "family" / "citadel" / "train.toml").is_file()
