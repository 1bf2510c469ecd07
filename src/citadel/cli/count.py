"""`citadel count INDEX`: print the number of documents that match a filter."""

from __future__ import annotations

from citadel.cli.support.options import FilterText, IndexFolder, parse_filter_option
from citadel.cli.support.unknown_fields import report_unknown_fields


def count(index: IndexFolder, filter: FilterText = None) -> None:
    """Print the number of documents, or of those whose metadata match a filter."""
    from citadel.api import Index

    chosen = parse_filter_option(filter)
    with Index.open(index) as opened:
        report_unknown_fields(opened, chosen)
        print(opened.count(chosen))
