"""`citadel facets INDEX FIELD`: print the values of a metadata field and how many documents have each."""

from __future__ import annotations

import json as json_text
from typing import Annotated, Any

import typer

from citadel.cli.support.options import FilterText, IndexFolder, Json, parse_filter_option
from citadel.cli.support.output import one_line, print_json
from citadel.cli.support.unknown_fields import report_unknown_fields


def facets(
    index: IndexFolder,
    field: Annotated[str, typer.Argument(metavar="FIELD", help="Name of a metadata field.")],
    filter: FilterText = None,
    limit: Annotated[int, typer.Option("--limit", min=1, help="Print the N most frequent values.")] = 100,
    json: Json = False,
) -> None:
    """Print the values of a metadata field with the number of documents, most frequent first."""
    from citadel.api import Index

    chosen = parse_filter_option(filter)
    with Index.open(index) as opened:
        report_unknown_fields(opened, chosen, [field])
        counts = opened.facets(field, chosen, limit)
        matching = opened.count(chosen)
    if json:
        rows = [{"value": value, "count": count} for value, count in counts]
        print_json({"field": field, "values": rows, "matching": matching})
        return
    width = max((len(f"{count:,}") for _, count in counts), default=0)
    for value, count in counts:
        print(f"{count:>{width},}  {_text(value)}")


def _text(value: Any) -> str:
    """A value on one line; booleans as in JSON.

    >>> _text("en"), _text(True), _text(1905)
    ('en', 'true', '1905')
    """
    return one_line(value) if isinstance(value, str) else json_text.dumps(value)
