"""Four storages with a broken commit protocol, each of which the crash tests must detect."""

from __future__ import annotations

from citadel.index.storage import TEMPORARY, Output
from tests.support.disk import MemoryDisk


class NoFsync(MemoryDisk):
    """Files are renamed, but their bytes are never synced."""

    def create(self, name: str) -> Output:
        return Unsynced(super().create(name))


class NoDirectoryFsync(MemoryDisk):
    """Bytes are synced, but the folder never is."""

    def sync(self) -> None:
        pass


class ManifestInPlace(MemoryDisk):
    """The manifest is written under its final name, so that a reader may see half of it."""

    def create(self, name: str) -> Output:
        return super().create(name.removesuffix(TEMPORARY) if name.startswith("gen.") else name)

    def rename(self, old: str, new: str) -> None:
        if not new.startswith("gen."):
            super().rename(old, new)


class RenameBeforeFsync(MemoryDisk):
    """A file gets its final name before it is synced."""

    def create(self, name: str) -> Output:
        return NamedEarly(self, name, super().create(name))

    def rename(self, old: str, new: str) -> None:
        if old in self.files:
            super().rename(old, new)


class Unsynced:
    """An output whose sync does nothing."""

    def __init__(self, output: Output) -> None:
        self.write, self.close = output.write, output.close

    def sync(self) -> None:
        pass


class NamedEarly:
    """An output that gets its final name before it is synced."""

    def __init__(self, disk: RenameBeforeFsync, name: str, output: Output) -> None:
        self._disk, self._name, self._output = disk, name, output
        self.write, self.close = output.write, output.close

    def sync(self) -> None:
        self._disk.rename(self._name, self._name.removesuffix(TEMPORARY))
        self._output.sync()


BROKEN = (NoFsync, NoDirectoryFsync, ManifestInPlace, RenameBeforeFsync)
