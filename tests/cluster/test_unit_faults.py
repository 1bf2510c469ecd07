"""Builds without Ray: a full disk at any write, kill −9 between segment and marker, object stores."""

from __future__ import annotations

import errno
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import pytest

import citadel
from citadel.cluster.encode_unit import UnitEncoder, is_finished, unit_folder
from citadel.cluster.job import Job
from citadel.cluster.units import cut_units
from citadel.errors import CorruptIndexError, ResourceError
from citadel.index.failures import resource_errors
from citadel.index.storage import FileOutput
from tests.cluster.test_units import BM25, documents, make_job, publish

DYING = """
import os, signal, sys
from citadel.cluster.encode_unit import UnitEncoder
from citadel.cluster.units import cut_units
from citadel.index.commit import Publisher
from tests.cluster.test_units import documents, make_job
from pathlib import Path

before = Publisher._write_manifest
def die(self, manifest):
    if manifest.build is not None and manifest.build.finished:
        os.kill(os.getpid(), signal.SIGKILL)
    before(self, manifest)
Publisher._write_manifest = die
job = make_job(Path(sys.argv[1]))
UnitEncoder(job).encode(next(iter(cut_units(documents(), job))))
"""


def build_all(job: Job) -> citadel.Index:
    """Encode what is not finished, and publish; what a build does, without Ray."""
    encoder, units = UnitEncoder(job), list(cut_units(documents(), job))
    job.target.make()
    with resource_errors(job.root):
        for unit in units:
            encoder.encode(unit)
        return publish(job, units)


def require_whole(index: citadel.Index, folder: Path) -> None:
    """All documents once, ranked like those of one index."""
    one = citadel.Index.create(folder, model="bm25")
    one.add(documents())
    one.commit()
    index.check(deep=True)
    assert sorted(index.ids()) == sorted(one.ids())
    for query in ("fox", "dog again", "w1 w2"):
        ours, theirs = index.search(query, 100), one.search(query, 100)
        assert (ours.ids, ours.scores) == (theirs.ids, theirs.scores)


def test_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk is full at write 5, 35, 65, …; after each, the next run has room for 30 more."""
    job, runs, problems = make_job(tmp_path / "root"), 0, list[str]()
    written, room = [0], [5]
    plain = FileOutput.write

    def write(self: FileOutput, data: memoryview) -> None:
        written[0] += 1
        if written[0] > room[0]:
            raise OSError(errno.ENOSPC, "No space left on device")
        plain(self, data)

    monkeypatch.setattr(FileOutput, "write", write)
    while True:
        runs += 1
        try:
            index = build_all(job)
            break
        except ResourceError as error:
            problems.append(str(error))
            room[0] = written[0] + 30 + 10 * runs
    monkeypatch.undo()
    assert runs > 5
    assert all("no space left" in problem for problem in problems)
    require_whole(index, tmp_path / "one")


def test_killed_between_segment_and_marker(tmp_path: Path) -> None:
    job = make_job(tmp_path / "root")
    job.target.make()
    unit = next(iter(cut_units(documents(), job)))
    died = subprocess.run([sys.executable, "-c", DYING, str(tmp_path / "root")], check=False)
    assert died.returncode == -9
    names = unit_folder(job, unit.key).names()
    assert any(name.startswith("seg-") for name in names)
    assert not is_finished(job, unit.key)
    require_whole(build_all(job), tmp_path / "one")


def test_an_object_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("obstore", reason="needs the extra [objects]")
    monkeypatch.setenv("CITADEL_CACHE", str(tmp_path / "cache"))
    given: dict[str, Any] = {"unit_documents": 8, "memory": 64 << 20, "graph": False}
    job = Job(f"memory://cluster/{uuid.uuid4().hex}", "corpus", 3, BM25, **given)
    require_whole(build_all(job), tmp_path / "one")
    assert UnitEncoder(job).encode(next(iter(cut_units(documents(), job)))) > 0  # nothing is encoded again


@pytest.mark.parametrize("damage", ["truncate", "flip"])
def test_a_damaged_object(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str) -> None:
    """A unit in an object store: the damage is reported, and the next run encodes the unit again."""
    pytest.importorskip("obstore", reason="needs the extra [objects]")
    monkeypatch.setenv("CITADEL_CACHE", str(tmp_path / "cache"))
    given: dict[str, Any] = {"unit_documents": 8, "memory": 64 << 20, "graph": False}
    job = Job(f"memory://cluster/{uuid.uuid4().hex}", "corpus", 3, BM25, **given)
    units, encoder = list(cut_units(documents(), job)), UnitEncoder(job)
    for unit in units:
        encoder.encode(unit)
    damage_object(unit_folder(job, units[0].key), damage)
    monkeypatch.setenv("CITADEL_CACHE", str(tmp_path / "cache of another machine"))
    with pytest.raises(CorruptIndexError, match="rerun the same command"):
        publish(job, units)
    assert [is_finished(job, unit.key) for unit in units] == [False] + [True] * (len(units) - 1)
    require_whole(build_all(job), tmp_path / "one")


def damage_object(storage: Any, damage: str) -> None:
    """Truncate the object of a segment, or flip a bit of it; the checksum that it carries stays."""
    [name] = [name for name in storage.names() if name.startswith("seg-")]
    key, data = storage._key(name), bytearray(storage.map(name))
    if damage == "truncate":
        del data[len(data) // 2 :]
    else:
        data[len(data) // 2] ^= 1
    info = storage._bucket.head(key)
    storage._bucket.put(key, bytes(data), storage._bucket.head(key).crc, info.etag)
