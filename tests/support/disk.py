"""A storage in memory that logs every operation and tracks what is durable."""

from __future__ import annotations

import contextlib
import sqlite3
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from citadel.errors import LockHeldError
from citadel.index.storage import TEMPORARY, Lock, Output
from tests.support.seeds import fast_folder


class Operation(NamedTuple):
    """One storage operation. `file` identifies a file, whose name may change."""

    kind: str  # create write fsync rename remove sync acknowledge
    file: int = -1
    name: str = ""
    new: str = ""
    data: bytes = b""


@dataclass
class File:
    """A file's bytes, and how many of them are synced."""

    number: int
    data: bytearray
    synced: int = 0


def folder_of(name: str) -> str:
    """The folder of a file; empty for the top folder."""
    return name.rpartition("/")[0]


class MemoryDisk:
    """A storage in memory. Its initial files are durable; `log` has every change since."""

    location = "memory"

    def __init__(self, files: Mapping[str, bytes] | None = None) -> None:
        self.log: list[Operation] = []
        self._numbers = iter(range(1 << 60))
        self.files = {
            name: File(next(self._numbers), bytearray(data), len(data))
            for name, data in (files or {}).items()
        }
        self._synced_names = dict(self.files)
        self.locked = False
        self.free: int | None = None  # result of free_space

    def make(self) -> None:
        pass

    def reopen(self) -> None:
        pass

    def inside(self, name: str) -> InnerDisk:
        return InnerDisk(self, name)

    def names(self) -> list[str]:
        return sorted({name.partition("/")[0] for name in self.files})

    def _file(self, name: str) -> File:
        if name not in self.files:
            raise FileNotFoundError(name)
        return self.files[name]

    def map(self, name: str) -> memoryview:
        return memoryview(bytes(self._file(name).data))

    def database(self, name: str) -> sqlite3.Connection:
        connection = sqlite3.connect(":memory:", check_same_thread=False)
        connection.deserialize(bytes(self._file(name).data))
        return connection

    def create(self, name: str) -> Output:
        if name in self.files:
            raise FileExistsError(name)
        file = self.files[name] = File(next(self._numbers), bytearray())
        self.log.append(Operation("create", file.number, name))
        return MemoryOutput(self, file)

    def rename(self, old: str, new: str) -> None:
        file = self._file(old)
        if new in self.files:
            raise FileExistsError(new)
        del self.files[old]
        self.files[new] = file
        self.log.append(Operation("rename", file.number, old, new))

    def remove(self, name: str) -> None:
        for each in [each for each in self.files if each == name or each.startswith(f"{name}/")]:
            del self.files[each]
            self.log.append(Operation("remove", name=each))

    def sync(self) -> None:
        self.sync_folder("")

    def sync_folder(self, folder: str) -> None:
        """Make the names of one folder durable; the top folder has no name."""
        kept = {name: file for name, file in self._synced_names.items() if folder_of(name) != folder}
        self._synced_names = kept | {
            name: file for name, file in self.files.items() if folder_of(name) == folder
        }
        self.log.append(Operation("sync", name=folder))

    def lock(self) -> Lock:
        if self.locked:
            raise LockHeldError("memory: another process is writing to this index; wait for it or stop it")
        self.locked = True
        return MemoryLock(self)

    @contextlib.contextmanager
    def scratch(self) -> Iterator[Path]:
        with tempfile.TemporaryDirectory(suffix=TEMPORARY, dir=fast_folder()) as folder:
            yield Path(folder)

    def free_space(self) -> int | None:
        return self.free

    def acknowledge(self) -> None:
        """Log that the workload's changes were acknowledged as durable."""
        self.log.append(Operation("acknowledge"))

    def synced_only(self) -> MemoryDisk:
        """The disk after a power loss that drops everything not synced."""
        return MemoryDisk(
            {name: bytes(file.data[: file.synced]) for name, file in self._synced_names.items()}
        )


class InnerDisk(MemoryDisk):
    """A folder on a disk. Creating it is durable, as FolderStorage.make is."""

    def __init__(self, disk: MemoryDisk, folder: str) -> None:
        self._disk, self._folder, self.locked = disk, folder, False
        self.location = f"{disk.location}/{folder}"

    def _path(self, name: str) -> str:
        return f"{self._folder}/{name}"

    def names(self) -> list[str]:
        start = self._path("")
        return sorted(name.removeprefix(start) for name in self._disk.files if name.startswith(start))

    def map(self, name: str) -> memoryview:
        return self._disk.map(self._path(name))

    def database(self, name: str) -> sqlite3.Connection:
        return self._disk.database(self._path(name))

    def create(self, name: str) -> Output:
        return self._disk.create(self._path(name))

    def rename(self, old: str, new: str) -> None:
        self._disk.rename(self._path(old), self._path(new))

    def remove(self, name: str) -> None:
        self._disk.remove(self._path(name))

    def sync(self) -> None:
        self._disk.sync_folder(self._folder)

    def free_space(self) -> int | None:
        return self._disk.free


class MemoryOutput:
    """A file being written to a MemoryDisk."""

    def __init__(self, disk: MemoryDisk, file: File) -> None:
        self._disk, self._file = disk, file

    def write(self, data: memoryview) -> None:
        if len(data):
            self._file.data += data
            self._disk.log.append(Operation("write", self._file.number, data=bytes(data)))

    def sync(self) -> None:
        self._file.synced = len(self._file.data)
        self._disk.log.append(Operation("fsync", self._file.number))

    def close(self) -> None:
        pass


class MemoryLock:
    """A lock on a MemoryDisk."""

    def __init__(self, disk: MemoryDisk) -> None:
        self._disk = disk

    def check(self) -> None:
        pass

    def release(self) -> None:
        self._disk.locked = False
