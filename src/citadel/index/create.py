"""The first generation of an index: settings and nothing else."""

from __future__ import annotations

import contextlib
import uuid

from citadel.config import Settings
from citadel.errors import UsageError
from citadel.index.manifest import Build, Manifest, generations, newest_manifest, write_manifest
from citadel.index.storage import TEMPORARY, Storage, resource_errors


def create_index(storage: Storage, settings: Settings, overwrite: bool = False, build: Build | None = None) -> None:
    """Write the first, empty generation; `overwrite` puts it after the last one of the index that is there."""
    with resource_errors(storage.location), contextlib.ExitStack() as stack:
        stack.callback(storage.lock().release)
        numbers = generations(storage)
        if numbers and not overwrite:
            newest_manifest(storage)
            raise UsageError(f"{storage.location}: there is an index already; open it, or pass overwrite to replace it")
        manifest = Manifest(uuid.uuid4().hex, (numbers[-1] if numbers else 0) + 1, settings, build=build)
        storage.remove(manifest.name + TEMPORARY)  # left by one who died or found no room here
        write_manifest(storage, manifest)
