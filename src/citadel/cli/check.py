"""`citadel check INDEX`: verify an index, report damage, and repair it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from citadel.cli.support.options import IndexFolder
from citadel.cli.support.output import plural, say
from citadel.errors import CorruptIndexError, FingerprintError

if TYPE_CHECKING:
    from citadel.index.repair import EncodeDocuments
    from citadel.index.snapshot import Snapshot
    from citadel.index.storage import FolderStorage


def check(
    index: IndexFolder,
    deep: Annotated[bool, typer.Option("--deep", help="Read every byte and every document.")] = False,
    repair: Annotated[
        bool, typer.Option("--repair", help="If it is damaged, keep every document that can be read.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Repair even if documents are lost.")] = False,
) -> None:
    """Verify an index and report damage."""
    from citadel.index.storage import FolderStorage

    storage = FolderStorage(index)
    try:
        snapshot = _check(storage, deep or repair)
    except CorruptIndexError:
        if not repair:
            _print_generations(storage)
            raise
        snapshot = _repair(storage, yes)
    state = "is whole" if deep or repair else "opens"
    print(
        f"{index}: generation {snapshot.manifest.generation} {state}: {_contents(snapshot, deep or repair)}"
    )
    if deep:
        _check_older(storage, snapshot.manifest.generation)


def _check(storage: FolderStorage, deep: bool) -> Snapshot:
    from citadel.index import check as checking
    from citadel.progress import Progress

    with Progress("Checking") as progress:
        return checking.check(storage, deep, lambda name: progress(0, what=f"Checking {name}"))


def _check_older(storage: FolderStorage, newest: int) -> None:
    """Report damage of older generations, which a repair could return to."""
    from citadel.index.check import is_whole
    from citadel.index.manifest import generations

    for number in generations(storage):
        if number < newest and not is_whole(storage, number):
            say(f"{storage.location}: generation {number}, which a repair could return to, is damaged")


def _contents(snapshot: Snapshot, deep: bool) -> str:
    manifest = snapshot.manifest
    size = sum(record.length for record in manifest.files())
    how = "every byte read" if deep else "structure only, --deep reads every byte"
    segments = plural(len(manifest.segments), "segment")
    return f"{plural(manifest.documents, 'document')}, {segments}, {plural(size, 'byte')} ({how})"


def _print_generations(storage: FolderStorage) -> None:
    from citadel.index.check import whole_generations
    from citadel.index.manifest import generations, read_manifest
    from citadel.index.repair import loss_message, plan_repair

    whole = {number: read_manifest(storage, number).documents for number in whole_generations(storage)}
    for number in generations(storage):
        state = f"whole: {plural(whole[number], 'document')}" if number in whole else "damaged"
        print(f"{storage.location}: generation {number} is {state}")
    if not generations(storage):
        return
    try:
        plan = plan_repair(storage, _encode(storage))
    except FingerprintError as error:  # the damage is still what is reported
        print(error)
        return
    if plan.action == "impossible":
        advice = "rebuild it with `citadel index CORPUS … --overwrite`"
        print(f"{storage.location}: nothing can be saved: {advice}")
    else:
        options = "--repair --yes" if plan.loses_documents else "--repair"
        print(f"{storage.location}: `citadel check {storage.location} {options}`: {loss_message(plan)}")


def _repair(storage: FolderStorage, yes: bool) -> Snapshot:
    from citadel.index.repair import loss_message, repair

    plan = repair(storage, yes, _encode(storage))
    print(f"{storage.location}: generation {plan.generation} was damaged; {loss_message(plan)}")
    for id in plan.lost_ids:
        print(f"lost: {id}")
    return _check(storage, deep=True)


def _encode(storage: FolderStorage) -> EncodeDocuments | None:
    """Return the encoder that rebuilds damaged lists; None if it is not needed or not installed."""
    from citadel.encode.batches import encoded_batches
    from citadel.encode.locate import fingerprint, index_model
    from citadel.errors import CitadelError
    from citadel.index.manifest import newest_manifest
    from citadel.settings import DEFAULT_MEMORY

    try:
        settings = newest_manifest(storage).settings
        if settings.model is None:
            return None
        folder = index_model(None, settings.model, settings.fingerprint, storage.location)
        if fingerprint(folder) != settings.fingerprint:
            return None
    except CitadelError:
        return None
    from citadel.encode.encoder import Encoder

    return lambda documents: encoded_batches(
        documents,
        Encoder(folder, tau=settings.tau),
        DEFAULT_MEMORY,
        lambda name, count: None,
        long=settings.long,
    )
