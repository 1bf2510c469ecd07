"""`citadel update INDEX --set JSON`: change metadata by id or by filter."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from citadel.cli.support.options import FilterText, IndexFolder, parse_filter_option
from citadel.cli.support.output import plural
from citadel.errors import InputError, UsageError

_EXAMPLE = """'{"year": 1905}'"""


def update(
    index: IndexFolder,
    values: Annotated[
        str, typer.Option("--set", metavar="JSON", help=f"Fields to change, e.g. {_EXAMPLE}; null removes.")
    ],
    ids: Annotated[
        list[str] | None, typer.Option("--id", metavar="ID", help="A document to change; repeatable.")
    ] = None,
    filter: FilterText = None,
) -> None:
    """Change metadata of documents by id or by filter, in one commit. Texts are not encoded again."""
    if bool(ids) == (filter is not None):
        raise UsageError("name the documents to change either with --id or with --filter")
    from citadel.api import Index

    chosen = parse_filter_option(filter)
    fields = _parse_values(values)
    unique = list(dict.fromkeys(ids or ()))
    with Index.open(index) as opened:
        updated = opened.update_metadata(unique if chosen is None else chosen, fields)
    unknown = len(unique) - updated if chosen is None else 0
    missing = f", {plural(unknown, 'id')} not found" if unknown else ""
    print(f"{index}: {plural(updated, 'document')} updated{missing}")


def _parse_values(text: str) -> dict[str, Any]:
    """The fields of --set.

    >>> _parse_values('{"year": 1905}')
    {'year': 1905}
    """
    from citadel.text.parse import parse_object

    try:
        fields = parse_object(text)
    except InputError as error:
        raise UsageError(f"--set: {error}; write an object such as {_EXAMPLE}") from None
    if not fields:
        raise UsageError(f"--set names no field: write an object such as {_EXAMPLE}")
    return fields
