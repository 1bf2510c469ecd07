"""MS MARCO passages in their published files, with dev-small or TREC Deep Learning 2019 and 2020."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from citadel.errors import InputError
from citadel.eval.datasets import Dataset, documents_of, find_one
from citadel.eval.runs import read_qrels
from citadel.text.queries import read_queries

COLLECTION = ("collection.tsv",)


class Split(NamedTuple):
    """Published file names of a split, and the lowest grade that counts as relevant."""

    queries: tuple[str, ...]
    qrels: tuple[str, ...]
    relevant: int = 1


SPLITS = {
    "dev-small": Split(
        ("queries.dev.small.tsv", "queries.dev.tsv"),
        ("qrels.dev.small.tsv", "qrels.msmarco-passage.dev-subset.txt"),
    ),
    # TREC uses grade 2 for binary measures: grade 1 is "related", not an answer.
    "dl19": Split(("msmarco-test2019-queries.tsv",), ("2019qrels-pass.txt",), 2),
    "dl20": Split(("msmarco-test2020-queries.tsv",), ("2020qrels-pass.txt",), 2),
}
DEFAULT_SPLIT = "dev-small"


def is_msmarco(folder: str | os.PathLike[str]) -> bool:
    """Whether a folder holds MS MARCO files.

    >>> is_msmarco("no-such-folder")
    False
    """
    names = {name for split in SPLITS.values() for name in (*split.queries, *split.qrels)}
    return any(any(Path(folder).glob(f"{name}*")) for name in (*COLLECTION, *names))


def msmarco_folder(folder: str | os.PathLike[str], split: str = DEFAULT_SPLIT) -> Dataset:
    """Open a folder with collection, queries and qrels under their published names."""
    if split not in SPLITS:
        raise InputError(f"unknown split {split!r}: MS MARCO has {', '.join(SPLITS)}", os.fspath(folder))
    chosen, path = SPLITS[split], Path(folder)
    queries, qrels = find_one(path, chosen.queries), find_one(path, chosen.qrels)
    return Dataset(
        f"msmarco-{split}",
        dict(read_queries(queries)),
        read_qrels(qrels),
        lambda: documents_of(find_one(path, COLLECTION)),
        relevant=chosen.relevant,
    )
