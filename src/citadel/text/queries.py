"""Read queries from JSONL, TSV, a BEIR folder or standard input."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from citadel.errors import InputError, UsageError
from citadel.text.corpus import find_file, find_format
from citadel.text.files import open_lines
from citadel.text.parse import check_id, check_text, decode, find_id, parse_object, shorten
from citadel.text.values import plain_value

Query = tuple[str, str]


def read_queries(path: str | os.PathLike[str], *, format: str | None = None) -> list[Query]:
    """Read (id, text) of each query in file order; a bad line or repeated id is an InputError.

    >>> import pathlib, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "queries.jsonl")
    ...     size = path.write_text('{"_id": 1, "text": "who proposed relativity"}')
    ...     read_queries(path)
    [('1', 'who proposed relativity')]
    """
    file = find_file(path, "queries.jsonl")
    parse = _parse_tsv if find_format(file, format) == "tsv" else parse_query
    queries: dict[str, str] = {}
    with open_lines(file) as lines:
        for number, _, line in lines:
            try:
                text = decode(line, number)
                if text.strip():
                    _add(queries, *parse(text))
            except InputError as error:
                raise InputError(error.reason, lines.source, number) from None
    return list(queries.items())


def named_queries(queries: Sequence[str] | Sequence[Query] | Mapping[str, str]) -> list[Query]:
    """(id, text) of queries as passed to `search_batch`; without ids, they are numbered from 1.

    >>> named_queries(["relativity", "evolution"])
    [('1', 'relativity'), ('2', 'evolution')]
    """
    if isinstance(queries, str):
        raise UsageError("search_batch takes several queries; use search for one")
    if isinstance(queries, Mapping):
        pairs = list(queries.items())
    else:
        pairs = [
            (str(position), query) if isinstance(query, str) else (query[0], query[1])
            for position, query in enumerate(queries, 1)
        ]
    named: dict[str, str] = {}
    for id, text in pairs:
        _add(named, query_id(id), text)
    return list(named.items())


def query_id(id: object) -> str:
    """The id of a query; integers and UUIDs become strings, as the ids of documents do.

    >>> query_id(7), query_id("q1")
    ('7', 'q1')
    """
    if isinstance(plain := plain_value(id), str):
        return plain
    if isinstance(plain, int) and not isinstance(plain, bool):
        return str(plain)
    raise UsageError(f"the id of a query is a string or an integer, not {type(id).__name__}")


def parse_query(line: str) -> Query:
    """Parse a query from a line of JSON; fields other than id and text are ignored.

    >>> parse_query('{"id": "q1", "text": "relativity", "lang": "en"}')
    ('q1', 'relativity')
    """
    fields = parse_object(line)
    identifier = find_id(fields)
    if "text" not in fields:
        raise InputError("no text: give the query as `text`")
    return identifier, check_text(fields["text"], "text")


def _parse_tsv(line: str) -> Query:
    columns = line.split("\t")
    if len(columns) != 2:
        raise InputError(f"{len(columns)} tab-separated columns: write id, text")
    return check_id(columns[0]), columns[1]


def _add(queries: dict[str, str], identifier: str, text: str) -> None:
    if identifier in queries:
        raise InputError(f"the query id {shorten(identifier)} occurs twice: give each query its own id")
    queries[identifier] = text
