"""New metadata for stored documents: only the document file of a segment is written again."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citadel.index.columns_file import write_documents_and_columns
from citadel.index.document_limits import metadata_json
from citadel.index.documents import Row, row_of
from citadel.index.manifest import SegmentRecord
from citadel.index.segment import Segment
from citadel.index.storage import Storage
from citadel.text.parse import check_document
from citadel.types import Document


def updated_metadata(document: Document, values: Mapping[str, Any]) -> Document:
    """A document with other metadata: named fields change, None removes one, the others stay.

    >>> updated_metadata(Document("d1", "", metadata={"a": 1, "b": 2}), {"a": None, "c": 3}).metadata
    {'b': 2, 'c': 3}
    """
    merged = {**document.metadata, **values}
    kept = {name: value for name, value in merged.items() if name not in values or value is not None}
    return check_document(replace(document, metadata=kept))


def write_updated(
    storage: Storage, index_id: str, segment: Segment, chosen: NDArray[np.bool_], values: Mapping[str, Any]
) -> SegmentRecord:
    """Write the documents and columns of a segment again, with new metadata for the chosen documents."""
    documents, columns = write_documents_and_columns(
        storage, index_id, uuid.uuid4().hex, _rows(segment, chosen, values)
    )
    return replace(segment.record, documents_file=documents, columns_file=columns, has_columns=True)


def _rows(segment: Segment, chosen: NDArray[np.bool_], values: Mapping[str, Any]) -> Iterator[Row]:
    for row in segment.store.rows(range(segment.documents)):
        if not chosen[row[0]]:
            yield row
            continue
        [metadata] = segment.store.metadata([row[0]])
        document = updated_metadata(Document(row[1], row[3], row[2], metadata), values)
        yield row_of(row[0], document, metadata_json(document))
