"""Cut a corpus into units: documents of one shard that a worker encodes at a time."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from citadel.cluster.job import Job, digest
from citadel.index.id_table import id_hashes
from citadel.index.sharded import shard_of
from citadel.types import Document

_GROUP = 1_000  # ids hashed at a time


class Unit(NamedTuple):
    """Documents of one shard, and their positions in the corpus; `key` identifies job and contents."""

    key: str
    shard: int
    documents: list[Document]
    positions: list[int]


class _OpenUnit:
    """A unit that still grows. A later document replaces one with the same id."""

    def __init__(self) -> None:
        self.documents: dict[str, tuple[int, Document]] = {}
        self.bytes = 0

    def add(self, position: int, document: Document) -> None:
        self.documents.pop(document.id, None)
        self.documents[document.id] = (position, document)
        self.bytes += len(document.text) + len(document.title)

    def close(self, job: Job, shard: int) -> Unit:
        positions = [position for position, _ in self.documents.values()]
        documents = [document for _, document in self.documents.values()]
        fields = [[d.id, d.title, d.text, dict(d.metadata)] for d in documents]
        key = digest(job.key, str(shard), json.dumps(positions), json.dumps(fields))
        return Unit(key, shard, documents, positions)


def cut_units(documents: Iterable[Document], job: Job) -> Iterator[Unit]:
    """Yield full units as the corpus is read, then the rest. Equal corpora give equal units."""
    waiting = [_OpenUnit() for _ in range(job.shards)]
    numbered = enumerate(documents)
    while group := list(itertools.islice(numbered, _GROUP)):
        shards = shard_of(id_hashes([document.id for _, document in group]), job.shards)
        for shard, (position, document) in zip(shards.tolist(), group, strict=True):
            unit = waiting[shard]
            unit.add(position, document)
            if len(unit.documents) >= job.unit_documents or unit.bytes >= job.unit_bytes:
                yield unit.close(job, shard)
                waiting[shard] = _OpenUnit()
    for shard, unit in enumerate(waiting):
        if unit.documents:
            yield unit.close(job, shard)
