"""`citadel backup INDEX TARGET` and `citadel restore BACKUP INDEX`: copy one whole generation."""

from __future__ import annotations

from typing import Annotated

import typer

from citadel.cli.support.options import IndexFolder
from citadel.cli.support.output import plural

NewFolder = Annotated[str, typer.Argument(metavar="TARGET", help="A new folder.")]
Copy = Annotated[
    bool, typer.Option("--copy", help="Copy every byte; by default files are linked if possible.")
]


def backup(index: IndexFolder, target: NewFolder, copy: Copy = False) -> None:
    """Copy the newest generation of an index into a new folder and verify it; writers may go on."""
    print(f"{target}: {_copied(index, target, copy)}")


def restore(
    backup: Annotated[str, typer.Argument(metavar="BACKUP", help="A folder made by `citadel backup`.")],
    index: Annotated[str, typer.Argument(metavar="INDEX", help="The new index folder.")],
    copy: Copy = False,
) -> None:
    """Copy a backup into a new index folder and verify it. The backup stays as it is."""
    print(f"{index}: {_copied(backup, index, copy)}")


def _copied(source: str, target: str, copy: bool) -> str:
    from citadel.index.backup import backup as copy_generation
    from citadel.index.storage import as_storage
    from citadel.progress import Progress

    with Progress("Copying and verifying"):
        snapshot = copy_generation(as_storage(source), target, links=not copy)
    manifest = snapshot.manifest
    size = sum(record.length for record in manifest.files())
    contents = f"{plural(manifest.documents, 'document')}, {plural(size, 'byte')}"
    return f"generation {manifest.generation}, verified: {contents}"
