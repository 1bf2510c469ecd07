"""Build the graph of a segment: link its semantic vectors and map each row to its postings.

docs/how-it-works/search.md describes how it is searched, docs/reference/file-format.md how it is stored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from citadel.errors import Cancelled
from citadel.index.growable import ScratchArrays
from citadel.index.merge import Piece, Source
from citadel.index.quantize import decode
from citadel.index.segment import Segment
from citadel.index.snapshot import NOTHING_DELETED
from citadel.index.storage import Storage
from citadel.types import Floats

if TYPE_CHECKING:
    from citadel._native import Cancel

LINKS = 32  # per row
SEEDS = 48  # rows per list at which a search starts
NO_ROW = 0xFFFFFFFF  # in links and seeds, after the last
_WIDTH = 192  # rows that an insertion searches for
_REACH = 1.1
_ROWS = 8_192  # vectors in memory at a time
_BLOCK = 128  # dimensions per block of 4-bit codes

Progress = Callable[[int], Any]


@dataclass(frozen=True)
class BuiltGraph:
    """The contents of a graph file, in graph order."""

    mean: Floats  # [s]
    numbers: NDArray[np.uint32]  # [N]: graph row → row of the segment
    codes: NDArray[np.uint8]  # [N, bytes per row], in build order
    links: NDArray[np.uint32]  # [N, BUILD_LINKS], build rows, in build order
    layout: NDArray[np.uint32]  # [N]: graph row → build row
    entries: NDArray[np.uint32]  # graph rows
    seeds: NDArray[np.uint32]  # [K, SEEDS]: graph rows
    starts: NDArray[np.uint64]  # [N + 1]: first posting of each graph row
    postings: NDArray[np.uint32]  # [P], by graph row
    signatures: NDArray[np.uint8]  # [N, SIGNATURE_BYTES], by row of the segment


@dataclass(frozen=True)
class KeptGraph:
    """The finished graph of a segment that becomes part of a merged one."""

    links: NDArray[np.uint32]  # [n, l]: rows of this graph, NO_ROW after the last
    numbers: NDArray[np.uint32]  # [n]: passage number in the merged segment; NO_ROW if deleted


def build_graph(
    storage: Storage,
    segment: Segment,
    memory: int,
    threads: int,
    progress: Progress = lambda done: None,
    cancel: Cancel | None = None,
    kept: KeptGraph | None = None,
) -> BuiltGraph:
    """Link the rows of a segment; `progress` is called with the number of rows done.

    With `kept`, rows of another graph keep their links and the other rows are inserted. The result depends
    on the segment and on `kept`, not on the number of threads."""
    from citadel._native import BUILD_LINKS, CancelledError, GraphBuilder, nibble_row_bytes

    rows, dimension = segment.passages, segment.meta.semantic_dimension
    arrays = ScratchArrays(storage, memory)
    codes = arrays.zeros((rows, nibble_row_bytes(dimension)), np.uint8)
    links = arrays.zeros((rows, BUILD_LINKS), np.uint32)
    whole = arrays.zeros((rows, -(-dimension // _BLOCK) * _BLOCK), np.int8)
    scales, sums, norms = (arrays.zeros((rows,), dtype) for dtype in (np.float32, np.int32, np.float32))
    builder = GraphBuilder(dimension, codes, whole, scales, sums, norms, links, LINKS, _WIDTH, _REACH)
    order = _build_order(rows, kept)
    mean = _put_vectors(builder, segment, order)
    try:
        if kept is not None:
            builder.adopt(kept.links, _new_rows(kept), threads, cancel)
            progress(builder.inserted)
        while builder.inserted < rows:
            builder.insert_batch(threads, cancel)
            progress(builder.inserted)
        builder.finish(threads, cancel)
    except CancelledError as error:
        raise Cancelled("building the graph was cancelled") from error
    layout = builder.layout()
    entries = _inverse(layout)[builder.entries()]
    numbers = order[layout]
    starts, postings = _postings_by_row(storage, segment, numbers, arrays)
    signatures = sign_lists(storage, segment, arrays)
    seeds = _seeds(storage, segment, _inverse(numbers))
    return BuiltGraph(mean, numbers, codes, links, layout, entries, seeds, starts, postings, signatures)


def _build_order(rows: int, kept: KeptGraph | None) -> NDArray[np.uint32]:
    """Build row → segment row: kept rows in the order of their graph, then a pseudo-random order."""
    order = np.random.default_rng(rows).permutation(rows).astype(np.uint32)
    if kept is None:
        return order
    first = kept.numbers[kept.numbers != NO_ROW]
    is_kept = np.zeros(rows, np.bool_)
    is_kept[first] = True
    return np.concatenate([first, order[~is_kept[order]]])


def _new_rows(kept: KeptGraph) -> NDArray[np.uint32]:
    """Row of the kept graph → build row, or NO_ROW."""
    is_alive = kept.numbers != NO_ROW
    return np.where(is_alive, np.cumsum(is_alive) - 1, NO_ROW).astype(np.uint32)


def can_have_graph(segment: Segment) -> bool:
    """Whether a segment has semantic vectors and fits the 32-bit numbers of a graph file."""
    return segment.meta.semantic_dimension > 0 and max(segment.passages, segment.meta.postings) < NO_ROW


def graph_space(segment: Segment) -> int:
    """Estimate the disk space that building a graph needs until it is finished."""
    from citadel._native import BUILD_LINKS, SIGNATURE_BYTES, graph_row_bytes, nibble_row_bytes

    dimension = segment.meta.semantic_dimension
    scratch = nibble_row_bytes(dimension) + 4 * BUILD_LINKS + dimension + _BLOCK + 12 + SIGNATURE_BYTES
    kept = graph_row_bytes(dimension) + 4 * LINKS + 4
    return segment.passages * (scratch + kept) + 8 * segment.meta.postings + 4 * SEEDS * segment.lists


def _inverse(permutation: NDArray[np.uint32]) -> NDArray[np.uint32]:
    ranks = np.empty(len(permutation), np.uint32)
    ranks[permutation] = np.arange(len(permutation), dtype=np.uint32)
    return ranks


def _postings_by_row(
    storage: Storage, segment: Segment, numbers: NDArray[np.uint32], arrays: ScratchArrays
) -> tuple[NDArray[np.uint64], NDArray[np.uint32]]:
    """First posting of each graph row [N + 1], and the postings [P]."""
    from citadel._native import scatter_postings

    counts, postings = (
        np.zeros(segment.passages, np.int64),
        arrays.zeros((segment.meta.postings,), np.uint32),
    )
    for piece in _pieces(storage, segment):
        counts += np.bincount(piece.documents(), minlength=segment.passages)
    starts = np.zeros(segment.passages + 1, np.uint64)
    np.cumsum(counts[numbers], out=starts[1:])
    cursors = np.empty(segment.passages, np.uint64)
    cursors[numbers] = starts[:-1]
    for piece in _pieces(storage, segment):
        scatter_postings(piece.documents(), piece.start, cursors, postings)
    return starts, postings


def sign_lists(storage: Storage, segment: Segment, arrays: ScratchArrays) -> NDArray[np.uint8]:
    """The signature of the lists of each row of the segment [N, SIGNATURE_BYTES]."""
    from citadel._native import SIGNATURE_BYTES, sign_documents

    signatures = arrays.zeros((segment.passages, SIGNATURE_BYTES), np.uint8)
    for piece in _pieces(storage, segment):
        sign_documents(piece.documents(), piece.lists, signatures)
    return signatures


def _pieces(storage: Storage, segment: Segment) -> Iterator[Piece]:
    if segment.meta.kind != "none":
        yield from Source(segment, NOTHING_DELETED, 0, storage).pieces(0, segment.lists)


def _seeds(storage: Storage, segment: Segment, rows: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """The graph rows with the heaviest postings of each list [K, SEEDS]; ties go to the lower document."""
    seeds = np.full((segment.lists, SEEDS), NO_ROW, np.uint32)
    heaviest = np.full((segment.lists, SEEDS), -1.0, np.float32)
    for piece in _pieces(storage, segment):
        documents, weights = piece.documents(), _weights(segment, piece)
        order = np.lexsort((documents, -weights, piece.lists))
        lists = piece.lists[order]
        ranks = np.arange(len(lists)) - np.searchsorted(lists, lists)
        chosen = ranks < SEEDS
        own = np.full_like(seeds[: len(names := np.unique(lists))], NO_ROW)
        weight = np.full(own.shape, -1.0, np.float32)
        at = (np.searchsorted(names, lists[chosen]), ranks[chosen])
        own[at], weight[at] = rows[documents[order][chosen]], weights[order][chosen]
        # A long list comes in several pieces: keep the heaviest of what there was and what is new.
        both = np.concatenate([heaviest[names], weight], axis=1)
        best = np.argsort(-both, axis=1, kind="stable")[:, :SEEDS]
        seeds[names] = np.take_along_axis(np.concatenate([seeds[names], own], axis=1), best, axis=1)
        heaviest[names] = np.take_along_axis(both, best, axis=1)
    return seeds


def _weights(segment: Segment, piece: Piece) -> NDArray[np.float32]:
    """How much each posting can add to a score, as far as the file says without decoding vectors."""
    for name, dtype in (("WEIGHTS", np.uint8), ("VALUES", np.float16), ("SCALES", np.float16)):
        if name in segment.file:
            return segment.file[name].array(dtype, piece.start, piece.stop).astype(np.float32)
    return np.zeros(piece.stop - piece.start, np.float32)


def _put_vectors(builder: Any, segment: Segment, order: NDArray[np.uint32]) -> Floats:
    """Give the builder the vectors minus their mean, and return the mean."""
    total = np.zeros(segment.meta.semantic_dimension, np.float64)
    for start in range(0, segment.passages, _ROWS):
        total += _vectors(segment, start).sum(axis=0, dtype=np.float64)
    mean = (total / max(segment.passages, 1)).astype(np.float32)
    build_rows = np.empty(segment.passages, np.uint32)
    build_rows[order] = np.arange(segment.passages, dtype=np.uint32)
    for start in range(0, segment.passages, _ROWS):
        vectors = _vectors(segment, start) - mean
        builder.put(build_rows[start : start + _ROWS], vectors, segment.meta.semantic_dimension)
    return mean


def _vectors(segment: Segment, start: int) -> Floats:
    return decode(segment.semantic(start, min(start + _ROWS, segment.passages)))
