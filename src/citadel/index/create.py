"""The first generation of an index: settings and nothing else."""

from __future__ import annotations

import contextlib
import uuid

from citadel.errors import InputError, UsageError
from citadel.index.garbage import PREFIXES, unfinished
from citadel.index.manifest import Build, Manifest, generations, newest_manifest, write_manifest
from citadel.index.storage import LOCK, TEMPORARY, Storage, resource_errors
from citadel.settings import Settings
from citadel.text.parse import shorten


def create_index(storage: Storage, settings: Settings, overwrite: bool = False, build: Build | None = None) -> None:
    """Write the first, empty generation; `overwrite` numbers it after the last one of an existing index."""
    with resource_errors(storage.location), contextlib.ExitStack() as stack:
        _refuse_foreign(storage)  # before the lock, which leaves a file
        storage.make()
        stack.callback(storage.lock().release)
        numbers = generations(storage)
        if numbers and not overwrite:
            newest_manifest(storage)
            raise UsageError(f"{storage.location}: there is an index already; open it, or pass overwrite to replace it")
        manifest = Manifest(uuid.uuid4().hex, (numbers[-1] if numbers else 0) + 1, settings, build=build)
        storage.remove(manifest.name + TEMPORARY)  # left by one who died or found no room here
        write_manifest(storage, manifest)


def _refuse_foreign(storage: Storage) -> None:
    """An index has its folder to itself: never put one among the files of others."""
    names = storage.names()
    foreign = [name for name in names if not name.startswith((".", *PREFIXES)) and not _ours(name)]
    if foreign and not generations(storage):
        raise InputError(
            f"the folder holds {shorten(foreign[0])} and is no index: name a new or an empty folder", storage.location
        )


def _ours(name: str) -> bool:
    return name == LOCK or unfinished(name)
