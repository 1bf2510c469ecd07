"""Read and write TREC runs, and qrels in TREC or BEIR format."""

from __future__ import annotations

import gzip
import lzma
import math
import os
import re
from collections.abc import Iterable, Iterator

from citadel.errors import InputError
from citadel.files import write_whole, write_whole_bytes
from citadel.text.files import open_lines
from citadel.types import Hit, Ranking

MAX_LINE = 1 << 20  # bytes
MAX_RANK = 999_999_999
MAX_GRADE = 1_000_000  # trec_eval allocates an array as long as the highest grade
BEIR_HEADER = "query-id\tcorpus-id\tscore"
BOM = b"\xef\xbb\xbf"

Qrels = dict[str, dict[str, int]]
_COMPRESS = {
    ".gz": lambda data: gzip.compress(data, mtime=0),
    ".xz": lambda data: lzma.compress(data, preset=9),
}


def read_run(path: str | os.PathLike[str]) -> Ranking:
    """Read a TREC run, sorted by score; ties are broken by the rank column, not by document id.

    >>> import pathlib, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = pathlib.Path(folder, "run.trec")
    ...     written = file.write_text("q1 Q0 d2 2 0.5 demo", encoding="utf-8")
    ...     read_run(file)
    Ranking(query_ids=('q1',), hits=((Hit(id='d2', score=0.5, rank=1),),))
    """
    with open_lines(path) as lines:
        return parse_run(((line.number, line.text) for line in lines), lines.source)


def write_run(path: str | os.PathLike[str], ranking: Ranking, tag: str = "citadel") -> None:
    """Write a TREC run atomically, compressed if the name ends in .gz or .xz.

    Ids with white space are rejected.

    >>> import pathlib, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = pathlib.Path(folder, "run.trec")
    ...     write_run(file, Ranking(("q1",), ((Hit("d2", 0.5, 1),),)), "demo")
    ...     file.read_text(encoding="utf-8").split()
    ['q1', 'Q0', 'd2', '1', '0.5', 'demo']
    """
    if (compress := _COMPRESS.get(os.path.splitext(path)[1])) is None:
        ranking.to_trec(path, tag)
    else:
        write_whole_bytes(os.fspath(path), [compress(ranking.trec(tag).encode())])


def write_qrels(path: str | os.PathLike[str], qrels: Qrels) -> None:
    """Write judgements in TREC format, atomically; ids with white space are rejected.

    >>> import pathlib, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = pathlib.Path(folder, "qrels.txt")
    ...     write_qrels(file, {"q1": {"d2": 1}})
    ...     file.read_text(encoding="utf-8").split()
    ['q1', '0', 'd2', '1']
    """
    for name in (name for query, grades in qrels.items() for name in (query, *grades)):
        if name.split() != [name]:
            raise InputError(f"the id {name!r} has white space, which TREC qrels do not allow: rename it")
    lines = (
        f"{query} 0 {document} {grade}\n"
        for query, grades in qrels.items()
        for document, grade in grades.items()
    )
    write_whole(os.fspath(path), lines)


def read_qrels(path: str | os.PathLike[str]) -> Qrels:
    """Read judgements, query → document → grade: TREC (four columns) or BEIR (three and a header).

    >>> import pathlib, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = pathlib.Path(folder, "qrels.txt")
    ...     written = file.write_text("q1 0 d2 1", encoding="utf-8")
    ...     read_qrels(file)
    {'q1': {'d2': 1}}
    """
    with open_lines(path) as lines:
        return parse_qrels(((line.number, line.text) for line in lines), lines.source)


def parse_run(lines: Iterable[tuple[int, bytes]], source: str) -> Ranking:
    """Parse the numbered lines of a TREC run.

    >>> parse_run([(1, b"q1 Q0 d2 1 0.5 demo")], "run.trec").query_ids
    ('q1',)
    """
    run: dict[str, dict[str, tuple[float, int]]] = {}  # query → document → sort key (-score, rank)
    for number, line in text_lines(lines, source):
        columns = line.split()
        if len(columns) != 6:
            expected = "a run line is `query Q0 document rank score tag`"
            raise InputError(f"{len(columns)} columns where 6 are needed: {expected}", source, number)
        query, _, document, rank, score, _ = columns
        documents = run.setdefault(query, {})
        if document in documents:
            raise InputError(
                f"document {document!r} is listed twice under query {query!r}: keep one", source, number
            )
        documents[document] = (
            -_score(score, source, number),
            _integer(rank, "rank", MAX_RANK, source, number),
        )
    return Ranking(tuple(run), tuple(_hits(documents) for documents in run.values()))


def parse_qrels(lines: Iterable[tuple[int, bytes]], source: str) -> Qrels:
    """Parse numbered lines of judgements; a document judged twice must have the same grade.

    >>> parse_qrels([(1, b"query-id\\tcorpus-id\\tscore"), (2, b"q1\\td2\\t1")], "test.tsv")
    {'q1': {'d2': 1}}
    """
    qrels: Qrels = {}
    for number, line in text_lines(lines, source):
        if line == BEIR_HEADER:
            continue
        query, document, text = _judgement(line, source, number)
        grade = _integer(text, "grade", MAX_GRADE, source, number)
        if qrels.setdefault(query, {}).setdefault(document, grade) != grade:
            raise InputError(
                f"document {document!r} is judged twice for {query!r}: keep one grade", source, number
            )
    if not qrels:
        raise InputError("no judgement in this file: name a qrels file in the TREC or BEIR format", source)
    return qrels


def text_lines(lines: Iterable[tuple[int, bytes]], source: str) -> Iterator[tuple[int, str]]:
    """Decode the lines that are not blank, without line ends."""
    for number, line in lines:
        if len(line) > MAX_LINE:
            raise InputError(
                f"the line is longer than {MAX_LINE} bytes: is this a run or qrels file?", source, number
            )
        try:
            text = (line.removeprefix(BOM) if number == 1 else line).decode().rstrip("\r\n")
        except UnicodeDecodeError:
            raise InputError("the line is not UTF-8: convert the file", source, number) from None
        if text.strip():
            yield number, text


def _judgement(line: str, source: str, number: int) -> tuple[str, str, str]:
    beir, trec = line.split("\t"), line.split()
    if len(beir) == 3 and beir[0] and beir[1]:  # BEIR ids may contain spaces
        return beir[0], beir[1], beir[2]
    if len(trec) == 4:
        return trec[0], trec[2], trec[3]
    expected = "a qrels line is `query 0 document grade`, or query, document and grade separated by tabs"
    raise InputError(f"{len(trec)} columns: {expected}", source, number)


def _hits(documents: dict[str, tuple[float, int]]) -> tuple[Hit, ...]:
    best_first = sorted(documents.items(), key=lambda item: item[1])
    return tuple(Hit(document, -key[0], rank) for rank, (document, key) in enumerate(best_first, 1))


def _score(text: str, source: str, number: int) -> float:
    try:
        score = float(text)
    except ValueError:
        score = math.nan
    if not math.isfinite(score):
        raise InputError(f"score {text[:40]!r} is not a finite number: write it in decimal", source, number)
    return score


def _integer(text: str, what: str, limit: int, source: str, number: int) -> int:
    if re.fullmatch(r"[+-]?[0-9]{1,9}", text) is None or abs(int(text)) > limit:
        reason = f"{what} {text[:40]!r} is not an integer of at most {limit}"
        raise InputError(f"{reason}: correct the line", source, number)
    return int(text)
