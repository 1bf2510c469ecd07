"""Hits on a terminal: rank, score, id and title, then the best part of the text."""

from __future__ import annotations

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from citadel.cli.support.batch_search import QueryHits
from citadel.cli.support.output import plain
from citadel.text.analyser import Analyser
from citadel.text.snippet import MAX_ANALYSED, best_part, term_snippet
from citadel.types import Hit

SNIPPET = 240  # characters
INDENT = 4


def show(result: QueryHits, analyser: Analyser, console: Console, named: bool) -> None:
    """Print the hits of one query; `analyser` finds its words in a text, `named` prints the query first."""
    if named:
        query = "" if result.query is None else f": {plain(result.query)}"
        _print(console, Text.assemble("? ", (f"{plain(result.query_id)}{query}", "bold")))
    if not result.hits:
        _print(console, Text("no document matches"))
    for hit in result.hits:
        _print(console, _title(hit))
        body = _body(hit, result.query, analyser)
        if body.plain:
            _print(console, body, INDENT)


def _print(console: Console, text: Text, indent: int = 0) -> None:
    """Wrap a long line under itself on a terminal; keep it one line in a file."""
    if console.is_terminal:
        console.print(Padding(text, (0, 0, 0, indent), expand=False))
    else:
        console.print(Text(" " * indent) + text, soft_wrap=True)


def _title(hit: Hit) -> Text:
    title = f"  {plain(hit.title)}" if hit.title else ""
    return Text.assemble(
        (f"{hit.rank:>2}.", "cyan"),
        (f" {hit.score:8.4f}  ", "dim"),
        (plain(hit.id), "bold"),
        (title, "green"),
    )


def _body(hit: Hit, query: str | None, analyser: Analyser) -> Text:
    """The part of the best passage with most words of the query."""
    passage = hit.passage
    whole = passage.text
    if query is None:
        text = plain(whole[:MAX_ANALYSED])
        return Text(text if len(text) <= SNIPPET else f"{text[:SNIPPET].rstrip()} …")
    terms = analyser.terms(query)
    before, after = best_part(whole, terms, analyser)
    text = plain(whole[before:after])
    part = term_snippet(text, terms, analyser, SNIPPET)
    body = Text(part.text)
    for span in part.spans:
        body.stylize("bold yellow", span.start, span.end)
    is_end = part.end == len(text) and after == len(whole) and passage.end == len(hit.text)
    return Text.assemble("… " if passage.start + before + part.start else "", body, "" if is_end else " …")
