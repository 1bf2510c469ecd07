"""Read MS MARCO's published files: collection.tsv, queries.tsv, qrels.tsv and triples."""

from __future__ import annotations

from array import array

import numpy as np

from citadel.errors import InputError
from citadel.text.queries import read_queries
from citadel.train.config_tables import DataPart
from citadel.train.data_files import file_of, judged_pairs, read_passages
from citadel.train.ragged import Ragged, Rows
from citadel.train.source import ErrorLocation, PairList, PassageList, QueryList, SourceData, numbered_lines
from citadel.train.texts import TextStore, rows_or_fail


def read_msmarco(part: DataPart) -> SourceData:
    """Read pairs from judgements, or pairs with negatives from `triples`."""
    if part.triples and not part.collection and not part.folder:
        return read_text_triples(file_of(part, "triples"))
    triples = file_of(part, "triples") if part.triples else ""
    judgements = "" if triples else file_of(part, "qrels", "qrels.tsv")
    queries = dict(read_queries(file_of(part, "queries", "queries.tsv")))
    passages = read_passages(file_of(part, "collection", "collection.tsv"))
    if not triples:
        return judged_pairs(judgements, queries).done(passages, judgements)
    pairs, negative = id_triples(triples, queries)
    rows = rows_or_fail(passages.ids, negative, pairs.lines, triples)
    return with_negatives(pairs.done(passages, triples), rows)


def id_triples(file: str, queries: dict[str, str]) -> tuple[PairList, TextStore]:
    """Read lines of query id, positive id and negative id."""
    pairs, location = PairList(), ErrorLocation(file)
    negative = TextStore()
    for number, line in numbered_lines(file):
        columns = line.split()
        with location.at(number):
            if len(columns) != 3:
                raise InputError(f"{len(columns)} columns: write query id, positive id and negative id")
            if columns[0] not in queries:
                raise InputError(
                    f"the query id {columns[0]!r} is not among the queries: correct the id or add it"
                )
            pairs.add(queries[columns[0]], columns[1], number)
            negative.append(columns[2])
    return pairs, negative


def read_text_triples(file: str) -> SourceData:
    """Read lines of query, positive and negative as text; passages are numbered from 1 in file order."""
    pairs, texts, location = PairList(), QueryList(), ErrorLocation(file)
    negative = array("q")
    for number, line in numbered_lines(file):
        columns = line.split("\t")
        with location.at(number):
            if len(columns) != 3:
                raise InputError(f"{len(columns)} tab-separated columns: write query, positive and negative")
            if not columns[1].strip() or not columns[2].strip():
                raise InputError("a passage is empty: give it words or leave the line out")
            pairs.add(columns[0], str(texts.add(columns[1]) + 1), number)
            negative.append(texts.add(columns[2]))
    passages = PassageList()
    for row, text in enumerate(texts.done()):
        passages.add(str(row + 1), "", text)
    return with_negatives(pairs.done(passages.done(file), file), np.array(negative, np.int64))


def with_negatives(source: SourceData, negative: Rows) -> SourceData:
    """Merge the triples of a pair into one pair with several negatives, in order of appearance."""
    both = source.query * len(source.passages) + source.positive
    _, first, which = np.unique(both, return_index=True, return_inverse=True)
    order = np.argsort(first)  # unique pairs in order of appearance
    position = np.empty_like(order)
    position[order] = np.arange(len(order))
    lines = first[order]
    negatives = Ragged.grouped(position[which], negative, len(order))
    parts = (source.query[lines], source.positive[lines], source.kind[lines])
    return SourceData(source.passages, source.queries, *parts, source.kind_names, negatives)
