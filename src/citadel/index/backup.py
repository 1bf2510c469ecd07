"""Back up and restore: copy one whole generation into a new folder while writers go on."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path

from citadel.errors import UsageError
from citadel.index.check import check
from citadel.index.container import DurableFile
from citadel.index.failures import resource_errors
from citadel.index.manifest import Manifest, newest_manifest
from citadel.index.mapping import require_whole
from citadel.index.snapshot import Snapshot
from citadel.index.storage import NO_LINKS, AnyPath, FolderStorage, Storage, sync_folder

# The target is on another disk, the file is someone else's, or a writer has just removed it.
_COPY_INSTEAD = NO_LINKS | {errno.EXDEV, errno.EACCES, errno.ENOENT}
_PIECE = 1 << 22  # bytes written at a time


def backup(source: Storage, target: AnyPath, *, links: bool = True) -> Snapshot:
    """Copy the newest generation into a new folder, read every byte of it there, and return it.

    Files are hard links where the file system allows it, unless `links` is false. The folder gets its name
    when all of it is durable and was checked, so a failure leaves nothing under that name.
    """
    path = Path(os.path.abspath(target))
    _require_new(source, path, os.fspath(target))
    with resource_errors(os.fspath(target)), _unfinished(path) as folder:
        manifest, files = _hold(source)
        storage = FolderStorage(folder)
        for name, view in files.items():  # the manifest is last
            if not (links and _link(source, storage, name)):
                _copy(storage, name, view)
        storage.sync()
        snapshot = check(storage, deep=True)
        assert snapshot.manifest.generation == manifest.generation
        del snapshot, storage
        _publish(folder, path, os.fspath(target))
        return check(FolderStorage(target))


def _require_new(source: Storage, path: Path, target: str) -> None:
    if os.path.lexists(path):
        raise _exists(target)
    if isinstance(source, FolderStorage) and path.is_relative_to(source.path):
        raise UsageError(f"{target}: a copy of an index cannot be inside it: name another folder")


def _exists(target: str) -> UsageError:
    return UsageError(f"{target}: it exists already, and nothing is overwritten: name a new folder")


@contextlib.contextmanager
def _unfinished(path: Path) -> Iterator[Path]:
    """A folder beside the target, on the same disk; it is removed unless it got its name."""
    FolderStorage(path.parent).make()
    folder = path.with_name(f".{path.name[:100]}.{uuid.uuid4().hex}.tmp")
    folder.mkdir(mode=0o755)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _hold(source: Storage) -> tuple[Manifest, dict[str, memoryview]]:
    """Map all files of the newest generation: their bytes stay readable when a writer removes them."""
    while True:
        manifest = newest_manifest(source)
        names = [*(record.name for record in manifest.files()), manifest.name]
        try:
            return manifest, {name: source.map(name) for name in names}
        except FileNotFoundError:
            if newest_manifest(source).generation == manifest.generation:
                Snapshot(source, manifest)  # names the missing file
                raise


def _link(source: Storage, target: FolderStorage, name: str) -> bool:
    """Link a file into the target; False if it must be copied."""
    if not isinstance(source, FolderStorage):
        return False
    folders = {"src_dir_fd": source.folder(), "dst_dir_fd": target.folder()}
    try:
        os.link(name, name, **folders, follow_symlinks=False)
    except OSError as error:
        if error.errno not in _COPY_INSTEAD:
            raise
        return False
    return True


def _copy(target: FolderStorage, name: str, view: memoryview) -> None:
    file = DurableFile(target, name)
    try:
        for start in range(0, len(view), _PIECE):
            file.write(view[start : start + _PIECE])
        require_whole(view, name)
        file.finish()
    except BaseException:
        file.abandon()
        raise


def _publish(folder: Path, path: Path, target: str) -> None:
    """Give the finished folder its name, durably."""
    try:
        os.rename(folder, path)
    except OSError as error:
        if error.errno in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR):  # created meanwhile
            raise _exists(target) from None
        raise
    sync_folder(path.parent)
