"""`citadel delete INDEX ID…`: delete documents by id."""

from __future__ import annotations

from typing import Annotated

import typer

from citadel.cli.support.options import IndexFolder
from citadel.cli.support.output import plural
from citadel.errors import InputError, UsageError


def delete(
    index: IndexFolder,
    ids: Annotated[list[str] | None, typer.Argument(metavar="[ID]...", help="Document ids.")] = None,
    file: Annotated[
        str | None,
        typer.Option("--ids", metavar="FILE", help="A file with one id per line; - reads standard input."),
    ] = None,
) -> None:
    """Delete documents by id, in one commit. Unknown ids are counted and ignored."""
    if not ids and file is None:
        raise UsageError("nothing to delete: name ids, or a file of ids with --ids")
    from citadel.api import Index
    from citadel.text.parse import check_text

    unique = list(
        dict.fromkeys(
            [*(check_text(id, "the id") for id in ids or []), *(_read_ids(file) if file is not None else [])]
        )
    )
    with Index.open(index) as opened:
        deleted = opened.delete(unique)
        opened.commit()
        unknown = f", {plural(len(unique) - deleted, 'id')} not found" if deleted < len(unique) else ""
        print(f"{index}: {deleted:,} deleted{unknown}, {plural(len(opened), 'document')} left")


def _read_ids(file: str) -> list[str]:
    """Read one id per line; blank lines are ignored."""
    from citadel.text.files import open_lines
    from citadel.text.parse import decode

    ids = []
    with open_lines(file) as lines:
        for number, _, line in lines:
            try:
                ids.append(decode(line, number))
            except InputError as error:
                raise InputError(error.reason, lines.source, number) from None
    return [id for id in ids if id.strip()]
