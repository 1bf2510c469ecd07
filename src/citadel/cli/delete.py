"""`citadel delete INDEX ID…`: delete documents by id or by filter."""

from __future__ import annotations

from typing import Annotated

import typer

from citadel.cli.support.options import FilterText, IndexFolder, parse_filter_option
from citadel.cli.support.output import plural
from citadel.errors import InputError, UsageError


def delete(
    index: IndexFolder,
    ids: Annotated[list[str] | None, typer.Argument(metavar="[ID]...", help="Document ids.")] = None,
    file: Annotated[
        str | None,
        typer.Option("--ids", metavar="FILE", help="A file with one id per line; - reads standard input."),
    ] = None,
    filter: FilterText = None,
) -> None:
    """Delete documents by id or by filter, in one commit. Unknown ids are counted and ignored."""
    is_by_id = bool(ids) or file is not None
    if not is_by_id and filter is None:
        raise UsageError("nothing to delete: name ids, a file of ids with --ids, or a --filter")
    if is_by_id and filter is not None:
        raise UsageError("name the documents to delete either by id or with --filter")
    from citadel.api import Index

    chosen = parse_filter_option(filter)
    unique = _unique_ids(ids or [], file)
    with Index.open(index) as opened:
        deleted = opened.delete(unique) if chosen is None else opened.delete(filter=chosen)
        opened.commit()
        unknown = f", {plural(len(unique) - deleted, 'id')} not found" if deleted < len(unique) else ""
        print(f"{index}: {deleted:,} deleted{unknown}, {plural(len(opened), 'document')} left")


def _unique_ids(ids: list[str], file: str | None) -> list[str]:
    from citadel.text.parse import check_text

    named = [check_text(id, "the id") for id in ids]
    return list(dict.fromkeys([*named, *(_read_ids(file) if file is not None else [])]))


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
