"""Products of one document's postings with each query token, by the engine's arithmetic."""

from __future__ import annotations

from bisect import bisect_left
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from citadel.index.packing import POSTINGS_PER_BLOCK, blocks_of
from citadel.index.segment import Segment
from citadel.index.snapshot import Snapshot
from citadel.search.plan import Plan
from citadel.search.reference import PostingProducts, PostingRun, dots
from citadel.types import Floats, Keys


class MatchedPostings(NamedTuple):
    """The document's postings with one query token's key, in token order."""

    products: Floats  # [m]
    weights: Floats  # [m], as stored
    counts: NDArray[np.int64]  # [m]; tf for bm25, else 1
    kept: NDArray[np.bool_]  # [m]; False if a raised τ prunes it


class DocumentPostings:
    """The stored postings of one document."""

    def __init__(self, snapshot: Snapshot, segment: Segment, number: int, norm: tuple[float, float]) -> None:
        self.segment, self.number = segment, number
        self._values = PostingProducts(norm, snapshot.codebook)
        self._runs: dict[int, PostingRun] = {}

    def match(self, plan: Plan, lists: NDArray[np.int64], weight_floor: int) -> list[MatchedPostings]:
        """The matching postings of each query token; `lists` [n] are those of this document's segment."""
        return [self._match(plan, token, list, weight_floor) for token, list in enumerate(lists.tolist())]

    def semantic(self, query: Floats) -> np.float32:
        """The product of the semantic vectors."""
        product: np.float32 = dots(query, self.segment.semantic(self.number, self.number + 1))[0]
        return product

    def _match(self, plan: Plan, token: int, list: int, weight_floor: int) -> MatchedPostings:
        run = self._run(list)
        products = (
            self._values(self.segment, plan, token, run) if len(run.documents) else np.zeros(0, np.float32)
        )
        counts = np.ones(len(products), np.int64) if run.counts is None else run.counts
        steps = self._steps(run)
        if steps is None:
            kind = self.segment.meta.kind
            unweighted = kind == "vectors" or not len(products)
            weights = (
                np.ones(len(products), np.float32) if unweighted else self._values.weights(self.segment, run)
            )
            return MatchedPostings(products, weights, counts, np.ones(len(products), np.bool_))
        weights = (steps * self.segment.meta.weight_step).astype(np.float32)
        return MatchedPostings(products, weights, counts, steps > weight_floor)

    def _steps(self, run: PostingRun) -> NDArray[np.uint8] | None:
        """The u8 weights of a run; None if the router has no weights."""
        if "WEIGHTS" not in self.segment.file:
            return None
        return self.segment.file["WEIGHTS"].array(np.uint8, run.start, run.stop)

    def _run(self, list: int) -> PostingRun:
        if list not in self._runs:
            self._runs[list] = _find(self.segment, list, self.number)
        return self._runs[list]


def _find(segment: Segment, list: int, number: int) -> PostingRun:
    """The postings of one document in a list; reads only the blocks that can contain them."""
    if list < 0:
        return PostingRun(list, 0, 0, np.zeros(0, np.int64))
    start, stop = segment.file["LIST_STARTS"].array("<i8", list, list + 2).tolist()
    first, last = segment.file["BLOCK_STARTS"].array("<i8", list, list + 2).tolist()
    if not 0 <= start <= stop <= segment.meta.postings or last - first != blocks_of(stop - start):
        raise segment.file["LIST_STARTS"].corrupt("the lists are not contiguous")
    firsts = segment.file["BLOCK_DOCUMENTS"].array("<u4", first, last)
    low = max(int(np.searchsorted(firsts, number)) - 1, 0)  # a document may begin in the block before
    high = int(np.searchsorted(firsts, number, side="right"))
    if low >= high:
        return PostingRun(list, 0, 0, np.zeros(0, np.int64))
    sizes = np.minimum(POSTINGS_PER_BLOCK, stop - start - POSTINGS_PER_BLOCK * np.arange(low, high))
    documents = segment.block_documents(first + low, first + high, sizes)
    mine = slice(*np.searchsorted(documents, [number, number + 1]).tolist())
    counts = None
    if segment.meta.kind == "bm25":
        counts = segment.block_counts(first + low, first + high, sizes)[mine]
    base = start + low * POSTINGS_PER_BLOCK
    return PostingRun(list, base + mine.start, base + mine.stop, documents[mine], counts)


def find_keys(segment: Segment, keys: Keys) -> NDArray[np.int64]:
    """The list of each key in a segment [n]; −1 for none."""
    known = segment.keys if segment.lists else np.zeros(0, np.uint32)
    positions = np.minimum(np.searchsorted(known, keys), max(len(known) - 1, 0))
    present = known[positions] == keys if len(known) else np.zeros(len(keys), np.bool_)
    return np.where(present, positions, -1)


def find_terms(segment: Segment, terms: list[bytes]) -> NDArray[np.int64]:
    """The list of each term in a bm25 segment [n]; −1 for none."""
    offsets, octets = segment.file["TERM_OFFSETS"].array("<u8"), segment.file["TERM_BYTES"].array(np.uint8)

    def term_of(list: int) -> bytes:
        return octets[int(offsets[list]) : int(offsets[list + 1])].tobytes()

    lists = []
    for term in terms:
        position = bisect_left(range(segment.lists), term, key=term_of)
        lists.append(position if position < segment.lists and term_of(position) == term else -1)
    return np.array(lists, np.int64)


def list_lengths(segment: Segment, lists: NDArray[np.int64]) -> NDArray[np.int64]:
    """Postings of each list [n]; 0 for −1."""
    if not segment.lists:
        return np.zeros(len(lists), np.int64)
    starts = segment.file["LIST_STARTS"].array("<i8")
    lengths: NDArray[np.int64] = np.where(lists < 0, 0, starts[lists + 1] - starts[lists])
    return lengths
