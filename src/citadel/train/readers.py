"""Training data in the formats people have it in, read into one shape: pairs and BEIR folders here, others beside."""

from __future__ import annotations

import os
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np

from citadel.errors import InputError
from citadel.text.corpus import find_file, read_corpus
from citadel.text.parse import find_id, parse_object
from citadel.text.queries import read_queries
from citadel.train.config import expand
from citadel.train.config_tables import DataPart
from citadel.train.source import Names, PassageList, Passages, Place, QueryList, Source, numbered_lines
from citadel.train.texts import Texts, rows_or_fail

NEVER = "scifact"


def read_source(part: DataPart) -> Source:
    """The data a config names; a bad line is an InputError with file and line.

    >>> import pathlib, tempfile
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> _ = (folder / "passages.jsonl").write_text('{"id": "d1", "text": "E = mc²"}')
    >>> _ = (folder / "pairs.jsonl").write_text('{"query": "relativity", "positive": "d1"}')
    >>> source = read_source(DataPart(folder=str(folder)))
    >>> source.queries[source.query[0]], source.passages.texts[source.positive[0]]
    ('relativity', 'E = mc²')
    """
    from citadel.train.msmarco import read_msmarco
    from citadel.train.tevatron import read_tevatron

    readers: dict[str, Callable[[DataPart], Source]] = {
        "pairs": read_pairs,
        "beir": read_beir,
        "msmarco": read_msmarco,
        "tevatron": read_tevatron,
    }
    source = readers[part.format](part)
    if not len(source.query):
        raise InputError("the data holds no pair of query and passage: name other files under [data]")
    return source


def file_of(part: DataPart, key: str, in_folder: str = "") -> str:
    """The file a key of [data] names, or its usual place in `folder`; missing and forbidden ones are refused."""
    given = expand(getattr(part, key))
    if not given and part.folder and in_folder:
        given = os.path.join(expand(part.folder), in_folder)
        for suffix in ("", ".gz", ".xz", ".zst"):
            if os.path.exists(given + suffix):
                given += suffix
                break
    if not given:
        or_folder = " or data.folder" if in_folder else ""
        raise InputError(f"data.{key} is missing: the format {part.format!r} needs it{or_folder}")
    return checked(given, f"data.{key}")


def checked(path: str, key: str) -> str:
    """The path itself, where it exists and may be trained on.

    >>> checked("data/scifact/corpus.jsonl", "data.folder")
    Traceback (most recent call last):
    citadel.errors.InputError: data/scifact/corpus.jsonl: data.folder: SciFact is what models are measured ...
    """
    for name in (path, os.path.realpath(path)):
        if any(part.lower().split(".")[0] == NEVER for part in name.split(os.sep)):
            reason = "SciFact is what models are measured on, so nothing is trained on it, its train split included"
            raise InputError(f"{key}: {reason}: name other data", path)
    if not os.path.exists(path):
        raise InputError(f"{key}: there is no such file: check the path, or set CITADEL_DATA", path)
    return path


@dataclass(slots=True)
class Pairs:
    """Gathers pairs; passage ids are looked up at the end, all at once."""

    queries: QueryList = field(default_factory=QueryList)
    kinds: Names = field(default_factory=Names)
    query: array[int] = field(default_factory=lambda: array("q"))
    positive: Texts = field(default_factory=Texts)
    kind: array[int] = field(default_factory=lambda: array("H"))
    lines: array[int] = field(default_factory=lambda: array("q"))

    def add(self, query: object, positive: str, line: int, kind: str = "") -> None:
        self.query.append(self.queries.add(query))
        self.positive.append(positive)
        self.kind.append(self.kinds(kind))
        self.lines.append(line)

    def done(self, passages: Passages, file: str) -> Source:
        positive = rows_or_fail(passages.ids, self.positive, self.lines, file)
        query = np.array(self.query, np.int64)
        kind = np.array(self.kind, np.uint16)
        return Source(passages, self.queries.done(), query, positive, kind, self.kinds.all)


# ---- pairs: passages.jsonl with id, source, title, text; pairs.jsonl with query, positive, kind ----------------------


def read_pairs(part: DataPart) -> Source:
    """Two JSONL files: passages, and pairs of a query and a passage id."""
    file = file_of(part, "pairs", "pairs.jsonl")
    passages = read_passages(file_of(part, "passages", "passages.jsonl"))
    pairs, place = Pairs(), Place(file)
    for number, line in numbered_lines(file):
        with place.at(number):
            fields = parse_object(line)
            positive = find_id({"id": fields["positive"]}) if "positive" in fields else _no("positive")
            pairs.add(fields.get("query", ""), positive, number, str(fields.get("kind", "")))
    return pairs.done(passages, file)


def read_passages(file: str) -> Passages:
    """A collection: JSONL or TSV, compressed or not; a field `source` is kept."""
    found = PassageList()
    lines = array("q")
    with read_corpus(file) as corpus:
        for document, position in corpus:
            found.add(document.id, document.title, document.text, str(document.metadata.get("source", "")))
            lines.append(position.line)
    return found.done(file, lines)


def _no(key: str) -> str:
    raise InputError(f"there is no {key!r}: a pair has query and positive")


# ---- beir ------------------------------------------------------------------------------------------------------------


def read_beir(part: DataPart) -> Source:
    """A BEIR folder: corpus.jsonl, queries.jsonl, qrels/train.tsv."""
    folder = file_of(part, "folder")
    judgements = checked(expand(part.qrels) or os.path.join(folder, "qrels", "train.tsv"), "data.qrels")
    queries = dict(read_queries(find_file(folder, "queries.jsonl")))
    passages = read_passages(find_file(folder, "corpus.jsonl"))
    return judged_pairs(judgements, queries).done(passages, judgements)


def judged_pairs(file: str, queries: dict[str, str]) -> Pairs:
    """A pair for each judgement above 0."""
    pairs, place = Pairs(), Place(file)
    for number, query, passage, grade in read_judgements(file):
        with place.at(number):
            if query not in queries:
                raise InputError(f"the query id {query!r} is not among the queries: correct the id or add the query")
            if grade > 0:
                pairs.add(queries[query], passage, number)
    return pairs


def read_judgements(file: str) -> Iterator[tuple[int, str, str, float]]:
    """(line, query id, passage id, grade) from TREC's four columns, or BEIR's three with or without their header."""
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
