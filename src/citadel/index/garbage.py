"""Clean-up: what no kept generation names, and what a writer that died left behind, is removed."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from citadel.errors import CorruptIndexError
from citadel.index.manifest import generations, read_manifest
from citadel.index.storage import LOCK, TEMPORARY, Storage

KEPT_GENERATIONS = 2  # the newest and, for `check --repair`, the one before
PREFIXES = ("seg-", "docs-", "del-", "codebook-")
_UNFINISHED = (*PREFIXES, "gen.", "scratch-")


def unfinished(name: str) -> bool:
    """Whether a file is one that a writer had not finished: no other is removed, whatever it is called.

    >>> unfinished("gen.00000001.tmp"), unfinished("thesis.tmp")
    (True, False)
    """
    return name.endswith(TEMPORARY) and name.startswith(_UNFINISHED)


def collect(storage: Storage, keep: int, spare: Collection[str] = ()) -> None:
    """Remove old manifests first, then the files that no kept one names, so that no manifest ever lacks a file.

    `spare` names files that the next generation may need."""
    numbers = generations(storage)
    for number in numbers[:-keep]:
        storage.remove(f"gen.{number:08d}")
    if numbers[:-keep]:
        storage.sync()
    needed = _needed(storage, numbers[-keep:]) | set(spare)
    for name in storage.names():
        if unfinished(name) or (name not in needed and name.startswith(PREFIXES)):
            storage.remove(name)


def _needed(storage: Storage, numbers: Sequence[int]) -> set[str]:
    """The files that these generations are made of; an older one that is damaged keeps nothing alive."""
    names = {LOCK}
    for number in numbers:
        try:
            names |= {record.name for record in read_manifest(storage, number).files()}
        except CorruptIndexError:
            if number == numbers[-1]:
                raise
    return names
