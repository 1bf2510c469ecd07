"""`citadel list INDEX`: print documents as JSONL, or their ids."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from citadel.cli.support.options import FilterText, IndexFolder, parse_filter_option
from citadel.cli.support.output import print_json
from citadel.cli.support.unknown_fields import report_unknown_fields

if TYPE_CHECKING:
    from citadel.types import Document


def list_documents(
    index: IndexFolder,
    filter: FilterText = None,
    ids: Annotated[bool, typer.Option("--ids", help="Print ids only, one per line.")] = False,
) -> None:
    """Print documents in commit order, one JSON object per line, as `citadel index -` reads them."""
    from citadel.api import Index

    chosen = parse_filter_option(filter)
    with Index.open(index) as opened:
        report_unknown_fields(opened, chosen)
        if ids:
            for id in opened.ids(chosen):
                print(id)
        else:
            for document in opened.documents(chosen):
                print_json(corpus_fields(document))


def corpus_fields(document: Document) -> dict[str, Any]:
    """A document as a line of a corpus; metadata are nested, so that no name can collide.

    >>> from citadel.types import Document
    >>> corpus_fields(Document("d1", "E = mc²", metadata={"year": 1905}))
    {'id': 'd1', 'text': 'E = mc²', 'metadata': {'year': 1905}}
    """
    fields: dict[str, Any] = {"id": document.id}
    if document.title:
        fields["title"] = document.title
    fields["text"] = document.text
    if document.metadata:
        fields["metadata"] = dict(document.metadata)
    return fields
