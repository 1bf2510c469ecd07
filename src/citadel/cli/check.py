"""`citadel check INDEX`: verify an index, report damage, and repair it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from citadel.cli.support.options import IndexFolder, Model
from citadel.cli.support.output import plural, say
from citadel.errors import CorruptIndexError, FingerprintError, InputError, UsageError

if TYPE_CHECKING:
    from citadel.index.repair import EncodeDocuments
    from citadel.index.snapshot import Snapshot
    from citadel.index.storage import Storage
    from citadel.settings import Settings


def check(
    index: IndexFolder,
    deep: Annotated[bool, typer.Option("--deep", help="Read every byte and every document.")] = False,
    repair: Annotated[
        bool, typer.Option("--repair", help="If it is damaged, keep every document that can be read.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Repair even if documents are lost.")] = False,
    model: Model = None,
) -> None:
    """Verify an index and report damage."""
    from citadel.index.root_manifest import is_root
    from citadel.index.storage import as_storage

    storage = as_storage(index)
    if repair and is_root(storage):
        raise UsageError(
            f"{index}: a sharded index is not repaired in place; repair the original "
            "and run `citadel shard` again"
        )
    try:
        snapshot = _check(storage, deep or repair)
    except CorruptIndexError as error:
        if not repair:
            _print_generations(storage, model)
            raise _reported(error) from None
        snapshot = _repair(storage, yes, model)
    state = "is whole" if deep or repair else "opens"
    print(
        f"{index}: generation {snapshot.manifest.generation} {state}: {_contents(snapshot, deep or repair)}"
    )
    if deep:
        older = _check_older_roots if is_root(storage) else _check_older
        older(storage, snapshot.manifest.generation)


def _reported(error: CorruptIndexError) -> typer.Exit:
    """Print a damage without the advice to run this command."""
    say(f"{error.file}: {error.section}: {error.problem}")
    return typer.Exit(error.exit_code)


def _check(storage: Storage, deep: bool) -> Snapshot:
    from citadel.index import check as checking
    from citadel.progress import Progress

    with Progress("Checking") as progress:
        return checking.check(storage, deep, lambda name: progress(0, what=f"Checking {name}"))


def _check_older(storage: Storage, newest: int) -> None:
    """Report damage of older generations, which a repair could return to."""
    from citadel.index.check import is_whole
    from citadel.index.manifest import generations

    for number in generations(storage):
        if number < newest and not is_whole(storage, number):
            say(f"{storage.location}: generation {number}, which a repair could return to, is damaged")


def _check_older_roots(storage: Storage, newest: int) -> None:
    """Report older generations of a sharded index that cannot be opened."""
    from citadel.index.root_manifest import read_root, root_generations
    from citadel.index.sharded import ShardedSnapshot

    for number in root_generations(storage):
        if number < newest:
            try:
                ShardedSnapshot(storage, read_root(storage, number))
            except (CorruptIndexError, FileNotFoundError):
                say(f"{storage.location}: generation {number}, which is not used any more, is damaged")


def _contents(snapshot: Snapshot, deep: bool) -> str:
    manifest = snapshot.manifest
    size = sum(record.length for record in manifest.files())
    how = "every byte read" if deep else "structure only, --deep reads every byte"
    segments = plural(len(manifest.segments), "segment")
    return f"{plural(manifest.documents, 'document')}, {segments}, {plural(size, 'byte')} ({how})"


def _print_generations(storage: Storage, model: str | None) -> None:
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
        plan = plan_repair(storage, _encode(storage, model))
    except FingerprintError as error:  # the damage is still what is reported
        print(error)
        return
    if plan.action == "impossible":
        advice = "rebuild it with `citadel index CORPUS … --overwrite`"
        print(f"{storage.location}: nothing can be saved: {advice}")
    else:
        options = "--repair --yes" if plan.loses_documents else "--repair"
        print(f"{storage.location}: `citadel check {storage.location} {options}`: {loss_message(plan)}")


def _repair(storage: Storage, yes: bool, model: str | None) -> Snapshot:
    from citadel.index.repair import loss_message, repair

    try:
        plan = repair(storage, yes, _encode(storage, model))
    except CorruptIndexError as error:
        raise _reported(error) from None
    print(f"{storage.location}: generation {plan.generation} was damaged; {loss_message(plan)}")
    for id in plan.lost_ids:
        print(f"lost: {id}")
    return _check(storage, deep=True)


def _encode(storage: Storage, model: str | None) -> EncodeDocuments | None:
    """Return the encoder that rebuilds damaged lists; None if there is none or it is not installed."""
    from citadel.encode.batches import encoded_batches
    from citadel.index.manifest import newest_manifest
    from citadel.settings import DEFAULT_MEMORY

    try:
        settings = newest_manifest(storage).settings
    except CorruptIndexError:
        return None
    folder = _model_folder(settings, model, storage.location) if settings.model is not None else None
    if folder is None:
        return None
    from citadel.encode.encoder import Encoder

    return lambda documents: encoded_batches(
        documents,
        Encoder(folder, tau=settings.tau),
        DEFAULT_MEMORY,
        lambda name, count: None,
        long=settings.long,
    )


def _model_folder(settings: Settings, given: str | None, location: str) -> str | None:
    """Return the folder of the index's model; None if it is neither given nor installed."""
    from citadel.encode.config import load_config
    from citadel.encode.locate import index_model, require_space, space_of

    try:
        folder = index_model(given, settings.model, settings.fingerprint, location)
    except InputError:
        if given is not None:
            raise
        return None
    if given is not None:
        require_space(load_config(folder), space_of(folder), settings, given)
    return folder if space_of(folder) == settings.fingerprint else None
