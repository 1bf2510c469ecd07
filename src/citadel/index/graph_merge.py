"""Keep the largest graph of merged segments; the other documents are inserted into it."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from citadel.errors import CorruptIndexError
from citadel.index.graph_build import NO_ROW, KeptGraph
from citadel.index.graph_file import GraphFile, read_graph
from citadel.index.mapping import whole_files
from citadel.index.segment import Segment, deleted_passages
from citadel.index.storage import Storage
from citadel.index.tombstones import Deleted

REBUILD_SHARE = 0.5  # of deleted passages; above it a graph is built anew


def kept_graph(
    storage: Storage, index_id: str, segments: Sequence[Segment], deleted: Sequence[Deleted]
) -> KeptGraph | None:
    """The largest graph of segments that are merged; None if there is none worth keeping."""
    gone = [
        deleted_passages(segment, part.documents) for segment, part in zip(segments, deleted, strict=True)
    ]
    live = [segment.passages - len(part) for segment, part in zip(segments, gone, strict=True)]
    worthy = [
        position
        for position, segment in enumerate(segments)
        if segment.record.graph_file and live[position] > (1 - REBUILD_SHARE) * segment.passages
    ]
    if not worthy:
        return None
    largest = max(worthy, key=lambda position: live[position])
    try:
        return _read(storage, index_id, segments[largest], gone[largest], sum(live[:largest]))
    except CorruptIndexError as error:
        logging.getLogger("citadel").warning(
            "%s: a graph is damaged, so the graph of the merged segment is built anew (%s)",
            storage.location,
            error,
        )
        return None


def _read(
    storage: Storage, index_id: str, segment: Segment, gone: NDArray[np.uint32], base: int
) -> KeptGraph:
    """The links of a graph, and its rows' passage numbers in the merged segment."""
    assert segment.record.graph_file is not None
    graph = read_graph(storage, segment.record.graph_file, index_id, segment)
    with whole_files([graph.file]):
        alive = np.ones(segment.passages, np.bool_)
        alive[gone] = False
        new = np.where(alive, np.cumsum(alive) + (base - 1), NO_ROW).astype(np.uint32)
        numbers = _numbers(graph)
        links = graph.file["GRAPH_LINKS"].sized("<u4", graph.meta.rows * graph.meta.links)
        if ((links >= graph.meta.rows) & (links != NO_ROW)).any():
            raise graph.file["GRAPH_LINKS"].corrupt("a row does not exist")
        return KeptGraph(links.reshape(graph.meta.rows, graph.meta.links), new[numbers])


def _numbers(graph: GraphFile) -> NDArray[np.uint32]:
    """The passage number of each row, checked to be a permutation."""
    section = graph.file["GRAPH_NUMBERS"]
    numbers: NDArray[np.uint32] = section.sized("<u4", graph.meta.rows)
    is_listed = np.zeros(graph.meta.rows, np.bool_)
    is_listed[numbers[numbers < graph.meta.rows]] = True
    if not is_listed.all():
        raise section.corrupt("a row is missing or listed twice")
    return numbers
