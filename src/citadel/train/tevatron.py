"""Tevatron's JSONL: a query with its positive and negative passages in full on each line."""

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
    """One pair for each positive passage; the line's negatives belong to all of its pairs."""
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
    found = _list(fields, "positive_passages")
    if not found:
        raise InputError("there is no positive passage: give one or leave the line out")
    for passage in found:
        passages.row(passage)
        yield passage


def _list(fields: dict[str, Any], key: str) -> list[Any]:
    found = fields.get(key, [])
    if not isinstance(found, list):
        raise InputError(f"{key} is not a list of passages")
    return found
