"""Test collections: documents, queries and relevance judgements."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from citadel.errors import InputError
from citadel.eval.runs import Qrels, read_qrels
from citadel.text.corpus import COMPRESSIONS, find_file, read_corpus
from citadel.text.queries import read_queries
from citadel.types import Document, Hit, Ranking

SAME_ID = ("arguana", "quora")  # BEIR sets whose queries are documents with the same id
SPLIT = "test"


@dataclass(frozen=True)
class Dataset:
    """One test collection; each call of `documents` reads the corpus from the start.

    >>> documents = [Document("d1", "E = mc²")]
    >>> dataset = Dataset("tiny", {"q1": "relativity"}, {"q1": {"d1": 1}}, lambda: iter(documents))
    >>> dataset.judged
    [('q1', 'relativity')]
    """

    name: str
    queries: dict[str, str]
    qrels: Qrels
    documents: Callable[[], Iterator[Document]]
    drop_same_id: bool = False
    relevant: int = 1  # lowest grade that counts as relevant for recall, RR and AP

    @property
    def judged(self) -> list[tuple[str, str]]:
        """Id and text of the queries that have judgements."""
        return [(id, text) for id, text in self.queries.items() if id in self.qrels]


def beir_folder(folder: str | os.PathLike[str], split: str = SPLIT) -> Dataset:
    """Open a folder with corpus.jsonl, queries.jsonl (both may be compressed) and qrels/SPLIT.tsv."""
    path = Path(folder)
    if not path.is_dir():
        raise InputError("no such folder: name one with corpus.jsonl, queries.jsonl and qrels/", str(path))
    find_file(path, "corpus.jsonl")  # fail early
    name = path.resolve().name
    qrels = read_qrels(qrels_file(path, split))
    return Dataset(
        name, dict(read_queries(path)), qrels, lambda: documents_of(path), has_query_documents(name)
    )


def qrels_file(folder: str | os.PathLike[str], split: str = SPLIT) -> str:
    """Path of the judgements of a BEIR folder.

    >>> qrels_file("scifact").endswith("test.tsv")
    True
    """
    inner = os.path.join(folder, "qrels")
    return os.path.join(inner if os.path.isdir(inner) else folder, f"{split}.tsv")


def has_query_documents(name: str) -> bool:
    """Whether a BEIR set's queries are documents of its own corpus.

    >>> has_query_documents("ArguAna"), has_query_documents("scifact")
    (True, False)
    """
    return name.lower() in SAME_ID


def find_one(folder: Path, names: Sequence[str]) -> str:
    """Find the first of these files in a folder, compressed or not."""
    for name in names:
        for suffix in COMPRESSIONS:
            if (file := folder / (name + suffix)).is_file():
                return str(file)
    raise InputError(
        f"no {' or '.join(names)} (or .gz, .xz, .zst) in this folder: put the file there", str(folder)
    )


def documents_of(path: str | os.PathLike[str]) -> Iterator[Document]:
    """Yield the documents of a corpus file or BEIR folder."""
    with read_corpus(path) as corpus:
        for document, _ in corpus:
            yield document


def drop_same_id(ranking: Ranking, k: int | None = None) -> Ranking:
    """Remove the document with the query's own id from each ranking, then cut at k.

    >>> ranking = Ranking(("q1",), ((Hit("q1", 3.0, 1), Hit("d2", 2.0, 2)),))
    >>> drop_same_id(ranking).hits
    ((Hit(id='d2', score=2.0, rank=1),),)
    """
    return Ranking(ranking.query_ids, tuple(_without(query, hits, k) for query, hits in ranking))


def _without(query: str, hits: Sequence[Hit], k: int | None) -> tuple[Hit, ...]:
    kept = [hit for hit in hits if hit.id != query][:k]
    return tuple(Hit(hit.id, hit.score, rank) for rank, hit in enumerate(kept, 1))
