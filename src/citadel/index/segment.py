"""An open segment: the inverted lists, vectors and documents of one part of an index."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citadel.errors import CorruptIndexError
from citadel.index.columns_file import read_columns
from citadel.index.container import CitFile
from citadel.index.documents import DocumentStore
from citadel.index.id_table import IdTable
from citadel.index.manifest import SegmentRecord, WordsRecord
from citadel.index.packing import block_sizes, rises, unpack_documents, unpack_values
from citadel.index.quantize import Encoded
from citadel.index.segment_columns import SegmentColumns
from citadel.index.storage import Storage
from citadel.settings import CODECS, MAX_DIMENSION, RESIDUAL_BITS, SUBVECTOR

MAX_PASSAGES = (1 << 32) - 1
WHOLE_TEXT = np.array([[0, MAX_PASSAGES]], "<u4")  # span of a document with one passage
KINDS = ("vectors", "centroid", "sparse", "bm25", "none")
CODE_TYPE: dict[str, Any] = {"fp16": np.float16, "int8": np.int8, "pq2": np.uint8, "pq1": np.uint8}
CODE_TYPE |= dict.fromkeys(RESIDUAL_BITS, np.uint8)


@dataclass(frozen=True)
class Meta:
    """Counts and codecs of a segment, from its META section."""

    documents: int
    postings: int
    kind: str
    dimension: int
    codec: str
    weight_step: float
    semantic_dimension: int
    semantic_codec: str
    passages: int  # numbers in the lists and rows of semantic vectors; one or more per document
    has_centroids: bool = False  # the keys are centroids; false before they are trained. Not in the section

    @property
    def has_long_documents(self) -> bool:
        """Whether a document has several passages."""
        return self.passages > self.documents

    @property
    def code_width(self) -> int:
        """Codes per vector."""
        if self.codec in RESIDUAL_BITS:
            return self.dimension * RESIDUAL_BITS[self.codec] // 8
        return self.dimension // SUBVECTOR.get(self.codec, 1)

    @property
    def has_residuals(self) -> bool:
        """Whether vectors are residuals of centroids."""
        return self.codec in RESIDUAL_BITS


class Segment:
    """One segment of a generation; immutable, shared between threads."""

    def __init__(self, storage: Storage, record: SegmentRecord, index_id: str) -> None:
        self.record, self.name = record, record.file.name
        self.storage, self.index_id = storage, index_id
        self.file = CitFile(storage, record.file, "segment", index_id)
        self.meta = self._meta(self.file["META"].json())
        self.documents, self.passages = self.meta.documents, self.meta.passages
        self.store = DocumentStore(storage, record.documents_file, index_id, self.documents)
        file = record.columns_file
        columns = read_columns(storage, file, index_id, self.documents) if file else None
        self.columns = SegmentColumns(record, columns, self.store)
        self.id_table, self.file_id = IdTable(self.file, self.documents), self.name[4:-4]
        self._shape(self._id_sizes())
        self.words = WordLists(self, record.words) if record.words else None

    def _meta(self, data: dict[str, Any]) -> Meta:
        try:
            meta = Meta(**{"passages": data.get("documents"), **data})  # format 1 has no passages
            has_centroids = "TOKEN_CENTROIDS" in self.file or meta.codec in RESIDUAL_BITS
            meta = replace(meta, has_centroids=has_centroids)
        except TypeError:
            raise self._corrupt("META", "a field is missing or unknown") from None
        counts = (meta.documents, meta.postings, meta.dimension, meta.semantic_dimension, meta.passages)
        if any(type(value) is not int or value < 0 for value in counts) or not isinstance(
            meta.weight_step, float
        ):
            raise self._corrupt("META", "a number is of the wrong kind")
        if meta.kind not in KINDS or meta.codec not in CODECS or meta.semantic_codec not in CODECS:
            raise self._corrupt("META", "an unknown kind or codec")
        if max(meta.dimension, meta.semantic_dimension) > MAX_DIMENSION:
            raise self._corrupt("META", "a dimension is out of range")
        if (meta.documents, meta.postings) != (self.record.documents, self.record.postings):
            raise self._corrupt("META", "its counts differ from the manifest's")
        most = MAX_PASSAGES if meta.documents and meta.kind != "bm25" else meta.documents
        if not meta.documents <= meta.passages <= most:
            raise self._corrupt("META", "its passages do not fit its documents")
        return meta

    def _corrupt(self, section: str, problem: str) -> CorruptIndexError:
        return CorruptIndexError(self.name, section, problem)

    def _id_sizes(self) -> dict[str, int]:
        documents = self.meta.documents
        return {"ID_OFFSETS": 8 * (documents + 1), "ID_HASHES": 8 * documents, "ID_NUMBERS": 4 * documents}

    def _shape(self, sizes: dict[str, int]) -> None:
        """Check the size of every section; contents are verified on access."""
        meta, has_lists = self.meta, self.meta.kind != "none"
        self.lists = max(len(self.file["LIST_STARTS"].data) // 8 - 1, 0) if has_lists else 0
        blocks = len(self.file["BLOCK_DOCUMENTS"].data) // 4 if has_lists else 0
        if meta.has_long_documents:
            sizes |= {"PASSAGE_STARTS": 8 * (meta.documents + 1), "PASSAGE_SPANS": 8 * meta.passages}
        if has_lists:
            sizes |= {"LIST_STARTS": 8 * (self.lists + 1), "BLOCK_STARTS": 8 * (self.lists + 1)}
            sizes |= {"BLOCK_DOCUMENTS": 4 * blocks, "BLOCK_OFFSETS": 8 * (blocks + 1)}
            sizes |= self._row_sizes(blocks)
        if meta.semantic_dimension:
            width = np.dtype(CODE_TYPE[meta.semantic_codec]).itemsize
            sizes["SEMANTIC_CODES"] = meta.passages * meta.semantic_dimension * width
            sizes |= {"SEMANTIC_SCALES": 2 * meta.passages} if meta.semantic_codec == "int8" else {}
            sizes |= self._probe_sizes() if "PROBE_CENTROIDS" in self.file else {}
        for name, size in sizes.items():
            if len(self.file[name].data) != size:
                raise self._corrupt(name, f"it has {len(self.file[name].data)} bytes where {size} are needed")

    def _probe_sizes(self) -> dict[str, int]:
        centroids = max(len(self.file["PROBE_STARTS"].data) // 8 - 1, 0)
        return {
            "PROBE_CENTROIDS": 4 * centroids * self.meta.semantic_dimension,
            "PROBE_STARTS": 8 * (centroids + 1),
            "PROBE_DOCUMENTS": 4 * self.meta.passages,
        }

    def _row_sizes(self, blocks: int) -> dict[str, int]:
        meta, postings = self.meta, self.meta.postings
        if meta.kind == "bm25":
            return {
                "TERM_OFFSETS": 8 * (self.lists + 1),
                "LENGTHS": 4 * meta.documents,
                "COUNT_OFFSETS": 8 * (blocks + 1),
            }
        sizes = {"KEYS": 4 * self.lists} | ({"WEIGHTS": postings} if "WEIGHTS" in self.file else {})
        if meta.kind == "sparse":
            return sizes | {"VALUES": 2 * postings}
        if meta.kind == "centroid":
            return sizes | self._token_sizes()
        width = np.dtype(CODE_TYPE[meta.codec]).itemsize
        sizes["CODES"] = postings * meta.code_width * width
        return sizes | ({"SCALES": 2 * postings} if meta.codec == "int8" else {})

    def _token_sizes(self) -> dict[str, int]:
        sizes = {
            "TOKEN_STARTS": 8 * (self.meta.passages + 1),
            "CODES": self.tokens * self.meta.code_width,
        }
        sizes["SCALES"] = self.tokens if self.meta.has_residuals else 2 * self.tokens
        return sizes | ({"TOKEN_CENTROIDS": 2 * self.tokens} if self.meta.has_centroids else {})

    # -- documents

    def ids(self, numbers: Sequence[int] | NDArray[np.int64]) -> list[str]:
        """The ids of these documents."""
        return self.id_table.ids(numbers)

    def ids_with_white_space(self) -> Iterator[tuple[int, str]]:
        """Yield number and id of each document whose id has white space."""
        return self.id_table.with_white_space()

    def find(self, ids: Sequence[str], hashes: NDArray[np.uint64]) -> dict[str, int]:
        """The numbers of those ids that this segment holds."""
        return self.id_table.find(ids, hashes)

    # -- passages

    @cached_property
    def passage_starts(self) -> NDArray[np.int64]:
        """The first passage of each document [documents + 1]."""
        if not self.meta.has_long_documents:
            return np.arange(self.documents + 1)
        starts = self.file["PASSAGE_STARTS"].array("<i8")
        if starts[0] != 0 or starts[-1] != self.passages or not (starts[1:] > starts[:-1]).all():
            raise self._corrupt("PASSAGE_STARTS", "the passages do not follow each other")
        return starts.copy()  # a file that is truncated later must not change it

    def spread(self, values: NDArray[Any]) -> NDArray[Any]:
        """A value per document as a value per passage."""
        return np.repeat(values, np.diff(self.passage_starts)) if self.meta.has_long_documents else values

    def owners(self, passages: NDArray[np.int64]) -> NDArray[np.int64]:
        """The documents of these passages."""
        if not self.meta.has_long_documents:
            return passages
        return self.passage_starts.searchsorted(passages, "right") - 1  # half the overhead of np.searchsorted

    def passages_of(self, document: int) -> range:
        """The passages of a document."""
        if not self.meta.has_long_documents:
            return range(document, document + 1)
        return range(*self.passage_starts[document : document + 2].tolist())

    def span(self, passage: int) -> tuple[int, int] | None:
        """First character of a passage in its document's text and the one after its last; None: all of it."""
        if not self.meta.has_long_documents:
            return None
        start, end = self.file["PASSAGE_SPANS"].array("<u4", 2 * passage, 2 * passage + 2).tolist()
        if end == WHOLE_TEXT[0, 1]:
            return None
        if start > end:
            raise self._corrupt("PASSAGE_SPANS", f"passage {passage} ends before it begins")
        return start, end

    # -- lists

    @property
    def list_starts(self) -> NDArray[np.int64]:
        """First posting of each list [lists + 1]; raises unless they ascend to the number of postings."""
        starts = self.file["LIST_STARTS"].array("<i8")
        if len(starts) and (starts[0] != 0 or starts[-1] != self.meta.postings or not rises(starts)):
            raise self._corrupt("LIST_STARTS", "the lists do not follow each other")
        return starts

    @property
    def keys(self) -> NDArray[np.uint32]:
        """The sorted keys; for bm25 the ranks of the terms."""
        if self.meta.kind == "bm25":
            return np.arange(self.lists, dtype=np.uint32)
        return self.file["KEYS"].array("<u4")

    @property
    def terms(self) -> list[bytes]:
        """The sorted terms of a bm25 segment; `terms_between` reads a part of them."""
        return self.terms_between(0, self.lists)

    def terms_between(self, first: int, stop: int) -> list[bytes]:
        """The terms of lists first … stop − 1 of a bm25 segment."""
        offsets = self.file["TERM_OFFSETS"].array("<u8", first, stop + 1).tolist()
        octets = self.file["TERM_BYTES"].array(np.uint8, offsets[0], offsets[-1]).tobytes()
        return [octets[start - offsets[0] : end - offsets[0]] for start, end in itertools.pairwise(offsets)]

    @property
    def lengths(self) -> NDArray[np.uint32]:
        """Tokens per document (bm25)."""
        return self.file["LENGTHS"].array("<u4")

    def first_block(self, list: int) -> int:
        """The first block of a list."""
        return int(self.file["BLOCK_STARTS"].array("<i8", list, list + 1)[0])

    def document_numbers(self, first_list: int, last_list: int) -> NDArray[np.int64]:
        """The passage numbers of lists first … last − 1, concatenated; of documents where each is one."""
        sizes = block_sizes(np.diff(self.list_starts[first_list : last_list + 1]))
        return self.block_documents(self.first_block(first_list), self.first_block(last_list), sizes)

    def counts(self, first_list: int, last_list: int) -> NDArray[np.int64]:
        """The term counts of lists first … last − 1 (bm25)."""
        sizes = block_sizes(np.diff(self.list_starts[first_list : last_list + 1]))
        return self.block_counts(self.first_block(first_list), self.first_block(last_list), sizes)

    def block_documents(self, first: int, stop: int, sizes: NDArray[np.int64]) -> NDArray[np.int64]:
        """The passage numbers of blocks first … stop − 1 with these sizes."""
        firsts = self.file["BLOCK_DOCUMENTS"].array("<u4", first, stop)
        offsets, packed = self._packed("BLOCK_OFFSETS", "PACKED_DOCUMENTS", first, stop, sizes)
        try:
            numbers = unpack_documents(firsts, offsets, packed, sizes)
        except ValueError as error:
            raise self._corrupt("PACKED_DOCUMENTS", str(error)) from error
        if len(numbers) and not 0 <= numbers.min() <= numbers.max() < self.passages:
            raise self._corrupt("PACKED_DOCUMENTS", "a document number is out of range")
        return numbers

    def block_counts(self, first: int, stop: int, sizes: NDArray[np.int64]) -> NDArray[np.int64]:
        """The term counts of blocks first … stop − 1 with these sizes (bm25)."""
        offsets, packed = self._packed("COUNT_OFFSETS", "PACKED_COUNTS", first, stop, sizes)
        try:
            return unpack_values(offsets, packed, sizes) + 1
        except ValueError as error:
            raise self._corrupt("PACKED_COUNTS", str(error)) from error

    def _packed(
        self, offsets_name: str, packed_name: str, first: int, stop: int, sizes: NDArray[np.int64]
    ) -> tuple[NDArray[np.uint64], NDArray[np.uint8]]:
        """The packed bytes of blocks first … stop − 1 and the blocks' offsets in them."""
        if stop - first != len(sizes):
            raise self._corrupt("BLOCK_STARTS", "the blocks do not fit the lists")
        bounds = self.file[offsets_name].array("<u8", first, stop + 1)
        positions = (bounds & np.uint64((1 << 56) - 1)).astype(np.int64)
        if (np.diff(positions) < 0).any():
            raise self._corrupt(offsets_name, "the blocks do not follow each other")
        packed = self.file[packed_name].array(np.uint8, int(positions[0]), int(positions[-1]) + 8)
        return bounds[:-1] - np.uint64(positions[0]), packed

    @property
    def tokens(self) -> int:
        """The number of stored token vectors: of postings, unless lists hold a document once per centroid."""
        if self.meta.kind != "centroid":
            return self.meta.postings
        return len(self.file["CODES"].data) // max(self.meta.code_width, 1)

    @cached_property
    def token_starts(self) -> NDArray[np.int64]:
        """The first token of each passage [passages + 1], of a centroid segment."""
        starts = self.file["TOKEN_STARTS"].array("<i8")
        if starts[0] != 0 or starts[-1] != self.tokens or not rises(starts):
            raise self._corrupt("TOKEN_STARTS", "the tokens do not follow each other")
        return starts.copy()  # a file that is truncated later must not change it

    def token_centroids(self, start: int, stop: int) -> NDArray[np.uint32]:
        """The centroids of tokens start … stop − 1; 0 in a segment from before there were centroids."""
        if not self.meta.has_centroids:
            return np.zeros(stop - start, np.uint32)
        return self.file["TOKEN_CENTROIDS"].array("<u2", start, stop).astype(np.uint32)

    def encoded(self, start: int, stop: int) -> Encoded:
        """The encoded vectors of postings start … stop − 1; of tokens in a centroid segment."""
        width = self.meta.code_width
        codes = (
            self.file["CODES"]
            .array(CODE_TYPE[self.meta.codec], start * width, stop * width)
            .reshape(-1, width)
        )
        if self.meta.codec != "int8" and not self.meta.has_residuals:
            return Encoded(self.meta.codec, codes)
        kind = np.float16 if self.meta.codec == "int8" else np.uint8
        return Encoded(self.meta.codec, codes, self.file["SCALES"].array(kind, start, stop))

    def semantic(self, start: int, stop: int) -> Encoded:
        """The encoded semantic vectors of passages start … stop − 1."""
        width, codec = self.meta.semantic_dimension, self.meta.semantic_codec
        codes = (
            self.file["SEMANTIC_CODES"]
            .array(CODE_TYPE[codec], start * width, stop * width)
            .reshape(-1, width)
        )
        scales = self.file["SEMANTIC_SCALES"].array(np.float16, start, stop) if codec == "int8" else None
        return Encoded(codec, codes, scales)

    def close(self) -> None:
        self.store.close()


class WordLists(Segment):
    """The BM25 lists of a segment's documents, beside the lists of a model; a BM25 segment to searches.

    They have a file of their own; ids, texts, metadata and deletions are those of the segment.
    """

    def __init__(self, segment: Segment, words: WordsRecord) -> None:
        self.record = replace(
            segment.record,
            file=words.file,
            postings=words.postings,
            total_length=words.total_length,
            graph_file=None,
            words=None,
        )
        self.name, self.storage, self.index_id = words.file.name, segment.storage, segment.index_id
        self.file = CitFile(segment.storage, words.file, "words", segment.index_id)
        self.meta = self._meta(self.file["META"].json())
        if self.meta.kind != "bm25":
            raise self._corrupt("META", "its lists are not those of words")
        self.documents = self.passages = segment.documents
        # Not the segment itself: a reference in both directions would delay freeing its files.
        self.store, self.columns = segment.store, segment.columns
        self.id_table, self.file_id, self.words = segment.id_table, segment.file_id, None
        self._shape({})


def term_lists(segment: Segment) -> Segment | None:
    """The lists of a segment whose names are terms: its own or those beside them; None if it has none."""
    return segment if segment.meta.kind == "bm25" else segment.words


def deleted_passages(segment: Segment, deleted: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """The passages of deleted documents, ascending."""
    if not segment.meta.has_long_documents or not len(deleted):
        return deleted
    starts, ends = segment.passage_starts[deleted], segment.passage_starts[deleted + np.int64(1)]
    counts = ends - starts
    before = np.cumsum(counts) - counts  # passages of earlier deleted documents
    return (np.repeat(starts - before, counts) + np.arange(counts.sum())).astype(np.uint32)
