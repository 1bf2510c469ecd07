"""The graph of a segment as a file: written once, read by the native engine."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from citadel.index.container import CitFile, CitWriter, FileRecord
from citadel.index.graph_build import LINKS, NO_ROW, SEEDS, BuiltGraph, sign_lists
from citadel.index.growable import ScratchArrays
from citadel.index.merge import Source
from citadel.index.segment import Segment
from citadel.index.snapshot import NOTHING_DELETED
from citadel.index.storage import Storage

SECTIONS = (
    *("META", "GRAPH_MEAN", "GRAPH_NUMBERS", "GRAPH_ROWS"),
    *("GRAPH_LINKS", "GRAPH_ENTRIES", "GRAPH_SEEDS", "GRAPH_POSTINGS"),
)
_ROWS = 1 << 16  # in memory at a time
_POSTINGS = 1 << 18
_SIGNATURE_MEMORY = 1 << 28


@dataclass(frozen=True)
class GraphMeta:
    """Counts of a graph, and the segment that it belongs to, from its META section."""

    segment: str  # file id
    rows: int
    postings: int
    lists: int
    dimension: int
    links: int  # per row
    seeds: int  # per list


@dataclass(frozen=True)
class GraphFile:
    """An open graph file; its contents are checked when they are read."""

    file: CitFile
    meta: GraphMeta


def write_graph(storage: Storage, index_id: str, segment: Segment, graph: BuiltGraph) -> FileRecord:
    """Write the graph of a segment under a new id."""
    meta = _expected(segment)
    writer = CitWriter(storage, "graph", index_id, uuid.uuid4().hex, sections=len(SECTIONS))
    try:
        writer.section("META", json.dumps(asdict(meta)).encode())
        writer.section("GRAPH_MEAN", graph.mean)
        writer.section("GRAPH_NUMBERS", graph.numbers)
        writer.stream("GRAPH_ROWS", _rows(graph))
        writer.stream("GRAPH_LINKS", _links(graph))
        writer.section("GRAPH_ENTRIES", graph.entries)
        writer.section("GRAPH_SEEDS", graph.seeds)
        writer.section("GRAPH_POSTINGS", graph.postings)
        return writer.finish()
    except BaseException:
        writer.file.abandon()
        raise


def _expected(segment: Segment) -> GraphMeta:
    meta = segment.meta
    counts = (segment.passages, meta.postings, segment.lists, meta.semantic_dimension)
    return GraphMeta(segment.file_id, *counts, LINKS, SEEDS)


def _rows(graph: BuiltGraph) -> Iterator[NDArray[np.uint8]]:
    """The rows in graph order, with the bounds of their postings in the header and their signatures."""
    from citadel._native import graph_row_bytes

    coded, width = graph.codes.shape[1], graph_row_bytes(len(graph.mean))
    for start in range(0, len(graph.layout), _ROWS):
        chosen = slice(start, start + _ROWS)
        rows = np.zeros((len(graph.layout[chosen]), width), np.uint8)
        rows[:, :coded] = graph.codes[graph.layout[chosen]]
        bounds = np.stack([graph.starts[:-1][chosen], graph.starts[1:][chosen]], axis=1)
        rows[:, 4:12] = bounds.astype("<u4").view(np.uint8)
        signatures = graph.signatures[graph.numbers[chosen]]
        rows[:, coded : coded + signatures.shape[1]] = signatures
        yield rows


def _links(graph: BuiltGraph) -> Iterator[NDArray[np.uint32]]:
    ranks = np.empty(len(graph.layout) + 1, np.uint32)  # build row → graph row; the last entry is for NO_ROW
    ranks[graph.layout] = np.arange(len(graph.layout), dtype=np.uint32)
    ranks[-1] = NO_ROW
    for start in range(0, len(graph.layout), _ROWS):
        targets = graph.links[graph.layout[start : start + _ROWS], :LINKS]
        yield ranks[np.minimum(targets, np.uint32(len(graph.layout)))]


def read_graph(storage: Storage, record: FileRecord, index_id: str, segment: Segment) -> GraphFile:
    """Open the graph of a segment; raises CorruptIndexError if it is damaged or of another segment."""
    file = CitFile(storage, record, "graph", index_id)
    data = file["META"].json()
    try:
        meta = GraphMeta(**data)
    except TypeError:
        raise file["META"].corrupt("a field is missing or unknown") from None
    if any(type(value) is not int or not 0 <= value < 1 << 32 for value in list(data.values())[1:]):
        raise file["META"].corrupt("a number is of the wrong kind")
    expected = _expected(segment)
    if (meta.segment, meta.rows, meta.postings, meta.lists, meta.dimension) != (
        expected.segment, expected.rows, expected.postings, expected.lists, expected.dimension
    ):  # fmt: skip
        raise file["META"].corrupt("it belongs to another segment")
    return GraphFile(file, meta)


def check_graph(storage: Storage, segment: Segment, index_id: str) -> None:
    """Read the whole graph of a segment, if it has one; raises CorruptIndexError at the first damage."""
    if segment.record.graph_file is None:
        return
    graph = read_graph(storage, segment.record.graph_file, index_id, segment)
    graph.file.check()
    rows = graph.meta.rows
    numbers = graph.file["GRAPH_NUMBERS"].sized("<u4", rows)
    if not np.array_equal(np.sort(numbers), np.arange(rows)):
        raise graph.file["GRAPH_NUMBERS"].corrupt("a row is missing or listed twice")
    _check_rows(graph, "GRAPH_LINKS", rows * graph.meta.links)
    _check_rows(graph, "GRAPH_SEEDS", graph.meta.lists * graph.meta.seeds)
    _check_rows(graph, "GRAPH_ENTRIES", len(graph.file["GRAPH_ENTRIES"].data) // 4, padded=False)
    _check_postings(storage, graph, segment, numbers)


def _check_rows(graph: GraphFile, name: str, count: int, padded: bool = True) -> None:
    section = graph.file[name]
    values = section.sized("<u4", count)
    for start in range(0, count, _POSTINGS):
        part = values[start : start + _POSTINGS]
        if ((part >= graph.meta.rows) & ((part != NO_ROW) | (not padded))).any():
            raise section.corrupt("a row does not exist")


def _check_postings(
    storage: Storage, graph: GraphFile, segment: Segment, numbers: NDArray[np.uint32]
) -> None:
    """Check that each row has the postings of its document, by adding up what the lists say."""
    bounds = _bounds(graph)
    postings = graph.file["GRAPH_POSTINGS"].sized("<u4", graph.meta.postings)
    wrong = graph.file["GRAPH_POSTINGS"].corrupt("a row has postings of another document")
    if not np.array_equal(bounds[1:, 0], bounds[:-1, 1]) or (
        len(bounds) and (bounds[0, 0], bounds[-1, 1]) != (0, len(postings))
    ):
        raise graph.file["GRAPH_ROWS"].corrupt("the postings of the rows do not follow each other")
    if segment.meta.kind == "none":
        return
    owners = np.empty(len(postings), np.uint32)  # by posting
    if len(postings) and int(postings.max()) >= len(postings):
        raise wrong
    for start in range(0, len(bounds), _ROWS):
        part = bounds[start : start + _ROWS]
        own = postings[int(part[0, 0]) : int(part[-1, 1])]
        owners[own] = np.repeat(numbers[start : start + _ROWS], part[:, 1] - part[:, 0])
    for piece in Source(segment, NOTHING_DELETED, 0, storage).pieces(0, segment.lists, _POSTINGS):
        if not np.array_equal(owners[piece.start : piece.stop], piece.documents()):
            raise wrong
    _check_signatures(storage, graph, segment, numbers)


def _check_signatures(
    storage: Storage, graph: GraphFile, segment: Segment, numbers: NDArray[np.uint32]
) -> None:
    from citadel._native import SIGNATURE_BYTES, nibble_row_bytes

    rows, first = _row_bytes(graph), nibble_row_bytes(graph.meta.dimension)
    if rows.shape[1] == first:  # a file from before there were signatures
        return
    signatures = sign_lists(storage, segment, ScratchArrays(storage, _SIGNATURE_MEMORY))
    for start in range(0, len(rows), _ROWS):
        own = rows[start : start + _ROWS, first : first + SIGNATURE_BYTES]
        if not np.array_equal(own, signatures[numbers[start : start + _ROWS]]):
            raise graph.file["GRAPH_ROWS"].corrupt("a row has the signature of other lists")


def _row_bytes(graph: GraphFile) -> NDArray[np.uint8]:
    """The bytes of each row [N, width]."""
    from citadel._native import graph_row_bytes, nibble_row_bytes

    section, dimension = graph.file["GRAPH_ROWS"], graph.meta.dimension
    unsigned = nibble_row_bytes(dimension)
    width = unsigned if len(section.data) == graph.meta.rows * unsigned else graph_row_bytes(dimension)
    rows: NDArray[np.uint8] = section.sized(np.uint8, graph.meta.rows * width)
    return rows.reshape(-1, width)


def _bounds(graph: GraphFile) -> NDArray[np.int64]:
    """First posting and end of the postings of each row [N, 2]."""
    return _row_bytes(graph)[:, 4:12].copy().view("<u4").astype(np.int64)
