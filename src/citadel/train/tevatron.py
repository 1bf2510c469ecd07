"""Read Tevatron's JSONL: each line has a query and the full text of its passages."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from citadel.errors import InputError
from citadel.text.parse import find_id, parse_object
from citadel.train.config_tables import DataPart
from citadel.train.data_files import file_of
from citadel.train.ragged import RaggedBuilder
from citadel.train.source import ErrorLocation, PairList, PassageList, SourceData, numbered_lines
from citadel.train.texts import UniqueTexts


class _UniquePassages:
    """Distinct passages in order of appearance."""

    def __init__(self) -> None:
        self.list = PassageList()
        self._ids = UniqueTexts()

    def row(self, fields: Any) -> int:
        if not isinstance(fields, dict) or "docid" not in fields:
            raise InputError("a passage is not an object with docid, title and text")
        id = find_id({"id": fields["docid"]})
        if (row := self._ids.add(id)) == len(self.list.ids):
            self.list.add(id, str(fields.get("title") or ""), str(fields.get("text") or ""))
        return row


def read_tevatron(part: DataPart) -> SourceData:
    """Make one pair per positive passage; the negatives of a line belong to all of its pairs."""
    file = file_of(part, "pairs", "train.jsonl")
    pairs, passages, location = PairList(), _UniquePassages(), ErrorLocation(file)
    negatives = RaggedBuilder(np.int32)
    for number, line in numbered_lines(file):
        with location.at(number):
            fields = parse_object(line)
            rows = [passages.row(passage) for passage in _list(fields, "negative_passages")]
            positives = [find_id({"id": p["docid"]}) for p in _positives(fields, passages)]
            for id in positives:
                pairs.add(fields.get("query", ""), id, number)
                negatives.add(rows)
    source = pairs.done(passages.list.done(file), file)
    parts = (source.query, source.positive, source.kind)
    return SourceData(source.passages, source.queries, *parts, negatives=negatives.done())


def _positives(fields: dict[str, Any], passages: _UniquePassages) -> Iterator[dict[str, Any]]:
    listed = _list(fields, "positive_passages")
    if not listed:
        raise InputError("there is no positive passage: add one or remove the line")
    for passage in listed:
        passages.row(passage)
        yield passage


def _list(fields: dict[str, Any], key: str) -> list[Any]:
    value = fields.get(key, [])
    if not isinstance(value, list):
        raise InputError(f"{key} is not a list of passages")
    return value
