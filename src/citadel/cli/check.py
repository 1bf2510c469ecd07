"""`citadel check INDEX`: verify an index, report damage, and repair it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from citadel.cli.support.options import IndexFolder
from citadel.cli.support.output import plural
from citadel.errors import CorruptIndexError

if TYPE_CHECKING:
    from citadel.index.snapshot import Snapshot
    from citadel.index.storage import FolderStorage


def check(
    index: IndexFolder,
    deep: Annotated[bool, typer.Option("--deep", help="Read every byte and every document.")] = False,
    repair: Annotated[
        bool, typer.Option("--repair", help="If it is damaged, return to the newest intact generation.")
    ] = False,
) -> None:
    """Verify an index. Report damage and which generations are intact."""
    from citadel.index.storage import FolderStorage

    storage = FolderStorage(index)
    try:
        snapshot = _check(storage, deep or repair)
    except CorruptIndexError:
        if not repair:
            _print_generations(storage)
            raise
        snapshot = _repair(storage)
    state = "is whole" if deep or repair else "opens"
    print(f"{index}: generation {snapshot.manifest.generation} {state}: {_contents(snapshot, deep or repair)}")


def _check(storage: FolderStorage, deep: bool) -> Snapshot:
    from citadel.index import check as checking
    from citadel.progress import Progress

    with Progress("Checking") as progress:
        return checking.check(storage, deep, lambda name: progress(0, what=f"Checking {name}"))


def _contents(snapshot: Snapshot, deep: bool) -> str:
    manifest = snapshot.manifest
    size = sum(record.length for record in manifest.files())
    how = "every byte read" if deep else "structure only, --deep reads every byte"
    segments = plural(len(manifest.segments), "segment")
    return f"{plural(manifest.documents, 'document')}, {segments}, {plural(size, 'byte')} ({how})"


def _print_generations(storage: FolderStorage) -> None:
    from citadel.index.check import whole_generations
    from citadel.index.manifest import generations, read_manifest

    whole = {number: read_manifest(storage, number).documents for number in whole_generations(storage)}
    for number in generations(storage):
        state = f"whole: {plural(whole[number], 'document')}" if number in whole else "damaged"
        print(f"{storage.location}: generation {number} is {state}")
    if any(whole.values()):
        print(f"{storage.location}: `citadel check {storage.location} --repair` returns to generation {max(whole)}")
    else:
        print(f"{storage.location}: nothing to return to: build it anew with `citadel index CORPUS … --overwrite`")


def _repair(storage: FolderStorage) -> Snapshot:
    from citadel.index import check as checking

    number = checking.repair(storage)
    print(f"{storage.location}: returned to generation {number}; what was committed after it is gone")
    return _check(storage, deep=True)
