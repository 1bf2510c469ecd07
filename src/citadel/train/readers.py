"""Read training data in any supported format into one structure."""

from __future__ import annotations

import os
from collections.abc import Callable

from citadel.errors import InputError
from citadel.text.corpus import find_file
from citadel.text.parse import find_id, parse_object
from citadel.text.queries import read_queries
from citadel.train.config import expand
from citadel.train.config_tables import DataPart
from citadel.train.data_files import checked, file_of, judged_pairs, read_passages
from citadel.train.msmarco import read_msmarco
from citadel.train.source import ErrorLocation, PairList, SourceData, numbered_lines
from citadel.train.tevatron import read_tevatron


def read_source(part: DataPart) -> SourceData:
    """Read the data of a config; a bad line is an InputError with file and line.

    >>> import pathlib, tempfile
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> _ = (folder / "passages.jsonl").write_text('{"id": "d1", "text": "E = mc²"}')
    >>> _ = (folder / "pairs.jsonl").write_text('{"query": "relativity", "positive": "d1"}')
    >>> source = read_source(DataPart(folder=str(folder)))
    >>> source.queries[source.query[0]], source.passages.texts[source.positive[0]]
    ('relativity', 'E = mc²')
    """
    source = READERS[part.format](part)
    if not len(source.query):
        raise InputError("the data has no pair of query and passage: name other files under [data]")
    return source


def read_pairs(part: DataPart) -> SourceData:
    """Read two JSONL files: passages, and pairs of a query and a passage id."""
    file = file_of(part, "pairs", "pairs.jsonl")
    passages = read_passages(file_of(part, "passages", "passages.jsonl"))
    pairs, location = PairList(), ErrorLocation(file)
    for number, line in numbered_lines(file):
        with location.at(number):
            fields = parse_object(line)
            positive = find_id({"id": fields["positive"]}) if "positive" in fields else _missing("positive")
            pairs.add(fields.get("query", ""), positive, number, str(fields.get("kind", "")))
    return pairs.done(passages, file)


def _missing(key: str) -> str:
    raise InputError(f"{key!r} is missing: a pair has query and positive")


def read_beir(part: DataPart) -> SourceData:
    """Read a BEIR folder: corpus.jsonl, queries.jsonl, qrels/train.tsv."""
    folder = file_of(part, "folder")
    judgements = checked(expand(part.qrels) or os.path.join(folder, "qrels", "train.tsv"), "data.qrels")
    queries = dict(read_queries(find_file(folder, "queries.jsonl")))
    passages = read_passages(find_file(folder, "corpus.jsonl"))
    return judged_pairs(judgements, queries).done(passages, judgements)


READERS: dict[str, Callable[[DataPart], SourceData]] = {
    "pairs": read_pairs,
    "beir": read_beir,
    "msmarco": read_msmarco,
    "tevatron": read_tevatron,
}
