"""Encode a unit into an index of its own. Its manifest with `finished` is the completion marker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from citadel.api import Index
from citadel.cluster.job import Job
from citadel.cluster.units import Unit
from citadel.errors import CorruptIndexError, IndexNotFoundError
from citadel.index.check import check_file
from citadel.index.container import CitFile, FileRecord
from citadel.index.create import NewIndexOptions, create_index, new_index_settings
from citadel.index.manifest import Build, newest_manifest
from citadel.index.shard import write_order
from citadel.index.snapshot import Snapshot, open_snapshot
from citadel.index.storage import Storage
from citadel.settings import Settings

if TYPE_CHECKING:
    from citadel.encode.encoder import Encoder


def unit_folder(job: Job, key: str) -> Storage:
    """The folder of a unit."""
    return job.work.inside(f"unit-{key}")


def is_finished(job: Job, key: str) -> bool:
    """Whether a unit is encoded and durable."""
    try:
        build = newest_manifest(unit_folder(job, key)).build
    except (IndexNotFoundError, CorruptIndexError):
        return False
    return build is not None and build.finished and build.source == key


class UnitEncoder:
    """Encodes units with one model, which `prepare` loads."""

    def __init__(self, job: Job, threads: int = 1) -> None:
        self._job, self._threads = job, threads
        self._loaded: tuple[Settings, str | None, Encoder | None] | None = None
        self._on_device: Any = None  # the model on a GPU

    def prepare(self) -> Settings:
        """Load the model and return the settings of the index."""
        if self._loaded is None:
            options = NewIndexOptions(**{**self._job.settings, "threads": self._threads})
            self._loaded = new_index_settings(options)
        return self._loaded[0]

    def encode(self, unit: Unit) -> int:
        """Write a unit unless it is finished; return its number of documents.

        What an earlier attempt left is removed. If that attempt still runs, it fails at its commit, because
        its folder is gone."""
        if is_finished(self._job, unit.key):
            return len(unit.documents)
        self._job.work.make()
        storage = unit_folder(self._job, unit.key)
        if storage.names():
            storage.lock().release()  # raises if another worker is writing
            self._job.work.remove(f"unit-{unit.key}")
            storage = unit_folder(self._job, unit.key)
        storage.make()
        create_index(storage, self.prepare(), build=Build(unit.key), graphs=False)
        assert self._loaded is not None
        _, model, encoder = self._loaded
        with Index(storage, self._job.memory, model, self._threads, encoder) as index:
            index._document_encoder = self._on_device
            index.add_checked(unit.documents, encode_on=self._job.encode_on)
            self._on_device = index._document_encoder
            order = write_order(storage, index._snapshot.manifest.index_id, [_positions(unit)])
            named = {"name": order.name, "length": str(order.length), "crc": str(order.crc)}
            index.commit(Build(unit.key, finished=True, options=named))
        return len(unit.documents)


def _positions(unit: Unit) -> NDArray[np.uint64]:
    return np.array(unit.positions, "<u8")


class EncodedUnit(NamedTuple):
    """A finished unit and the positions of its documents in the corpus."""

    snapshot: Snapshot
    positions: NDArray[np.uint64]


def open_unit(job: Job, key: str) -> EncodedUnit:
    """Open a finished unit; reads every byte and raises CorruptIndexError if it is damaged."""
    storage = unit_folder(job, key)
    snapshot = open_snapshot(storage)
    build = snapshot.manifest.build
    if build is None or not build.finished:
        raise CorruptIndexError(f"unit-{key}", "manifest", "the unit is not finished")
    for record in snapshot.manifest.files():
        check_file(storage, record)
    options = build.options
    record = FileRecord(options["name"], int(options["length"]), int(options["crc"]))
    order = CitFile(storage, record, "order", snapshot.manifest.index_id)
    order.check()
    return EncodedUnit(snapshot, order["ORDER"].sized("<u8", int(snapshot.bases[-1])))
