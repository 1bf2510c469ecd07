"""`citadel stats INDEX`: print the figures of an index."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from citadel.cli.support.options import IndexFolder, Json
from citadel.cli.support.output import one_line, print_json


def stats(index: IndexFolder, json: Json = False) -> None:
    """Print documents, postings, lists, bytes per section, and counts of replaced and skipped documents."""
    from citadel.api import Index

    with Index.open(index) as opened:
        figures = opened.stats()
    if json:
        print_json(figures)
        return
    rows = list(_rows(figures))
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        print(f"{name:<{width}}  {one_line(value)}")


def _rows(figures: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for name, value in figures.items():
        words = name.replace("_", " ")
        if isinstance(value, dict):
            yield from ((f"{words}: {part}", _text(inner)) for part, inner in value.items())
        else:
            yield words, _text(value)


def _text(value: Any) -> str:
    """Format a value.

    >>> _text(12345), _text(None), _text([("fox", 3), ("dog", 2)])
    ('12,345', '–', 'fox 3, dog 2')
    """
    if value is None:
        return "–"
    if isinstance(value, list | tuple):
        return ", ".join(
            " ".join(map(_text, item)) if isinstance(item, list | tuple) else _text(item) for item in value
        )
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
