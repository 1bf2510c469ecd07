"""Readers that several training formats share: passages, judgements and the paths in [data]."""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterator

from citadel.errors import InputError
from citadel.text.corpus import COMPRESSIONS, read_corpus
from citadel.train.config import expand
from citadel.train.config_tables import DataPart
from citadel.train.source import ErrorLocation, PairList, PassageList, Passages, numbered_lines

FORBIDDEN = "scifact"


def file_of(part: DataPart, key: str, in_folder: str = "") -> str:
    """Path of a [data] key, or its default name in `folder`; missing and forbidden files are errors."""
    given = expand(getattr(part, key))
    if not given and part.folder and in_folder:
        given = os.path.join(expand(part.folder), in_folder)
        for suffix in COMPRESSIONS:
            if os.path.exists(given + suffix):
                given += suffix
                break
    if not given:
        or_folder = " or data.folder" if in_folder else ""
        raise InputError(f"data.{key} is missing: the format {part.format!r} needs it{or_folder}")
    return checked(given, f"data.{key}")


def checked(path: str, key: str) -> str:
    """Check that a path exists and may be trained on; return it.

    >>> checked("data/scifact/corpus.jsonl", "data.folder")
    Traceback (most recent call last):
    citadel.errors.InputError: data/scifact/corpus.jsonl: data.folder: SciFact is a test collection ...
    """
    for name in (path, os.path.realpath(path)):
        if any(part.lower().split(".")[0] == FORBIDDEN for part in name.split(os.sep)):
            reason = (
                "SciFact is a test collection and must not be used for training, not even its train split"
            )
            raise InputError(f"{key}: {reason}: name other data", path)
    if not os.path.exists(path):
        raise InputError(f"{key}: no such file: check the path, or set CITADEL_DATA", path)
    return path


def read_passages(file: str) -> Passages:
    """Read a collection, JSONL or TSV, compressed or not; the field `source` is kept."""
    passages = PassageList()
    lines = array("q")
    with read_corpus(file) as corpus:
        for document, position in corpus:
            passages.add(document.id, document.title, document.text, str(document.metadata.get("source", "")))
            lines.append(position.line)
    return passages.done(file, lines)


def judged_pairs(file: str, queries: dict[str, str]) -> PairList:
    """Make one pair per judgement above 0."""
    pairs, location = PairList(), ErrorLocation(file)
    for number, query, passage, grade in read_judgements(file):
        with location.at(number):
            if query not in queries:
                raise InputError(
                    f"the query id {query!r} is not among the queries: correct the id or add the query"
                )
            if grade > 0:
                pairs.add(queries[query], passage, number)
    return pairs


def read_judgements(file: str) -> Iterator[tuple[int, str, str, float]]:
    """Yield (line, query id, passage id, grade) from TREC's four or BEIR's three columns."""
    for number, line in numbered_lines(file):
        columns = line.split("\t") if line.count("\t") == 2 else line.split()
        if columns[0] == "query-id" and number == 1:
            continue
        if len(columns) not in (3, 4):
            expected = "write query, 0, passage and grade, or query, passage and grade"
            raise InputError(f"{len(columns)} columns: {expected}", file, number)
        try:
            grade = float(columns[-1])
        except ValueError:
            raise InputError(f"the grade {columns[-1][:40]!r} is not a number", file, number) from None
        yield number, columns[0], columns[-2], grade
