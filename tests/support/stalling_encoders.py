"""Encoders that wait at a point of their first unit, so that a test can kill them there; and a full disk.

Encoder and test meet in the folder of the sharded index: the first encoder at the point writes the file
`stalled`, and goes on when the test has made the file `go`.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

from citadel.cluster.encode_unit import UnitEncoder
from citadel.cluster.job import Job
from citadel.cluster.units import Unit
from citadel.index.commit import Publisher
from citadel.index.storage import FileOutput
from citadel.types import Document
from tests.support.serving import wait_until

WAIT_SECONDS = 120.0
WRITES = 200  # that a full disk still takes


class Stalled(NamedTuple):
    """Process and node of an encoder that waits, and the key of its unit."""

    pid: int
    node: str
    key: str


def wait_for_stalled(job: Job) -> Stalled:
    """The encoder that has reached its point."""
    path = Path(job.root).parent / "stalled"
    wait_until(path.exists, WAIT_SECONDS)
    return Stalled(**json.loads(path.read_text()))


def let_go(job: Job) -> None:
    """Have the encoder that waits go on."""
    (Path(job.root).parent / "go").touch()


def _stall(job: Job, key: str) -> None:
    import ray

    folder = Path(job.root).parent
    try:
        (folder / "first").touch(exist_ok=False)
    except FileExistsError:
        return
    stalled = Stalled(os.getpid(), ray.get_runtime_context().get_node_id(), key)
    (folder / "part").write_text(json.dumps(stalled._asdict()))
    (folder / "part").rename(folder / "stalled")
    end = time.monotonic() + WAIT_SECONDS
    while not (folder / "go").exists() and time.monotonic() < end:
        time.sleep(0.01)


class _StallingDocuments(list[Document]):
    """Documents of which the second half comes late."""

    def __init__(self, job: Job, unit: Unit) -> None:
        super().__init__(unit.documents)
        self._job, self._key = job, unit.key

    def __iter__(self) -> Iterator[Document]:
        for number in range(len(self)):
            if number == len(self) // 2:
                _stall(self._job, self._key)
            yield super().__getitem__(number)


class MidBatch(UnitEncoder):
    """Waits while it encodes a unit."""

    def encode(self, unit: Unit) -> int:
        return super().encode(unit._replace(documents=_StallingDocuments(self._job, unit)))


class BeforeMarker(UnitEncoder):
    """Waits when the segment of a unit is written, before the manifest that completes it."""

    def encode(self, unit: Unit) -> int:
        write = Publisher._write_manifest

        def write_late(publisher: Publisher, manifest: Any) -> Any:
            if manifest.build is not None and manifest.build.finished:
                _stall(self._job, unit.key)
            return write(publisher, manifest)

        with mock.patch.object(Publisher, "_write_manifest", write_late):
            return super().encode(unit)


class FullDisk(UnitEncoder):
    """Has a disk that is full after some writes, until the test lets it go."""

    def __init__(self, job: Job, threads: int = 1) -> None:
        super().__init__(job, threads)
        self._writes = 0

    def encode(self, unit: Unit) -> int:
        with self._small_disk():
            return super().encode(unit)

    @contextlib.contextmanager
    def _small_disk(self) -> Iterator[None]:
        write = FileOutput.write

        def write_some(output: FileOutput, data: memoryview) -> None:
            self._writes += 1
            if self._writes > WRITES and not (Path(self._job.root).parent / "go").exists():
                raise OSError(errno.ENOSPC, "No space left on device")
            write(output, data)

        with mock.patch.object(FileOutput, "write", write_some):
            yield
