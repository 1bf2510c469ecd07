"""Garbage collection: remove files of old generations and of writers that died."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from citadel.errors import CorruptIndexError
from citadel.index.folder_lock import LOCK
from citadel.index.manifest import generations, read_manifest
from citadel.index.storage import TEMPORARY, Storage

PREFIXES = ("seg-", "docs-", "del-", "codebook-", "cols-", "graph-", "words-")
_UNFINISHED = (*PREFIXES, "gen.", "scratch-")


def unfinished(name: str) -> bool:
    """Whether a file is the unfinished output of a writer; other temporary files are never removed.

    >>> unfinished("gen.00000001.tmp"), unfinished("thesis.tmp")
    (True, False)
    """
    return name.endswith(TEMPORARY) and name.startswith(_UNFINISHED)


def collect(
    storage: Storage, keep: int, spare: Collection[str] = (), check: Callable[[], None] = lambda: None
) -> None:
    """Remove all but the newest `keep` generations, and files that belong to none.

    Manifests go first, so that none ever refers to a missing file. Files in `spare` stay: the next
    generation may need them. `check` is called between listing and removing files; it raises if another
    writer may have begun, whose files are not in the list.
    """
    numbers = generations(storage)
    for number in numbers[:-keep]:
        storage.remove(f"gen.{number:08d}")
    if numbers[:-keep]:
        storage.sync()
    needed = _needed(storage, numbers[-keep:]) | set(spare)
    names = storage.names()
    check()
    for name in names:
        if unfinished(name) or (name not in needed and name.startswith(PREFIXES)):
            storage.remove(name)


def _needed(storage: Storage, numbers: Sequence[int]) -> set[str]:
    """The files of these generations; a damaged older one keeps no files."""
    names = {LOCK}
    for number in numbers:
        try:
            names |= {record.name for record in read_manifest(storage, number).files()}
        except CorruptIndexError:
            if number == numbers[-1]:
                raise
    return names
