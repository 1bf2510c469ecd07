"""The write buffer: documents in memory, routed and quantised but not yet sorted by key."""

from __future__ import annotations

import array
import itertools
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citadel.errors import DocumentTooLargeError, InputError
from citadel.index.centroid_book import AnyCodebook, CentroidBook
from citadel.index.codebook_sample import CodebookSample
from citadel.index.document_limits import metadata_json
from citadel.index.documents import Row, row_of
from citadel.index.growable import Column
from citadel.index.id_table import id_hashes
from citadel.index.packing import POSTINGS_PER_BLOCK, is_first_of_pair, list_groups
from citadel.index.quantize import (
    TOKEN_SCALES,
    Encoded,
    decode,
    encode,
    limit_of,
    require_finite,
    weight_steps,
)
from citadel.index.segment import WHOLE_TEXT, Meta
from citadel.routing import get_router
from citadel.settings import DEFAULT_MEMORY, Settings, WordSettings
from citadel.text.analyser import get_analyser
from citadel.types import Document, Floats, Passages, VectorBatch

_TERM_BYTES = 96  # per new term besides its text: its number and its table entry
_DOCUMENT_BYTES = 600  # per document besides its text: Python objects and the lookup of its id
_ROW_COPIES = 3  # of a text while its row is written: joined, encoded, and in SQLite
_STAGED_TOKENS = 1 << 16
_TOKEN_BYTES = 10  # per buffered token, with its copies while it becomes a posting
_POSTING_BYTES = 60  # per posting until its segment is written
_SORTING_BYTES = 24  # per posting while a segment is sorted: order, key, copies of a chunk
_LONG_TEXT = 1 << 17  # bytes
_LONG_TEXT_COPIES = 8  # estimate of the memory of a long text and its terms
_MIN_LIMIT = 8 << 20  # bytes that a document may take even under a smaller bound
_CHUNK = 1 << 16  # postings sorted at a time; fewer when vectors are wide
_CHUNK_BYTES = 4 << 20
_TERMS_PER_CHUNK = 8192
_ROWS_ENCODED = 1 << 13


def stored_codec(settings: Settings, codebook: AnyCodebook | None) -> str:
    """The codec of a segment written now: int8 until the product quantiser or the centroids are trained."""
    codec = settings.lexical.codec if settings.lexical else "int8"
    return "int8" if codebook is None and settings.has_codebook else codec


class _TermTable(dict[str, int]):
    """Term numbers in order of first occurrence, with the bytes that the terms take."""

    bytes = 0

    def __missing__(self, term: str) -> int:
        self[term] = number = len(self)
        self.bytes += _TERM_BYTES + sys.getsizeof(term)
        return number

    def truncate(self, terms: int, size: int) -> None:
        """Drop the newest terms until `terms` remain, which take `size` bytes."""
        while len(self) > terms:
            self.popitem()
        self.bytes = size


def _text_bytes(document: Document, metadata: str) -> int:
    return sum(map(sys.getsizeof, (document.id, document.title, document.text, metadata)))


def _largest(values: NDArray[Any]) -> float:
    """Largest absolute value, without a copy; NaN if there is one.

    >>> _largest(np.array([1.0, -3.0])), _largest(np.array([]))
    (3.0, 0.0)
    """
    low, high = float(values.min(initial=0)), float(values.max(initial=0))
    return high if np.isnan(high) else max(abs(low), abs(high))  # no -0.0


def expected_bytes(document: Document) -> int:
    """Estimate the memory that adding a long text takes; 0 for a short text.

    >>> expected_bytes(Document("d1", "short"))
    0
    """
    size = sys.getsizeof(document.text)
    return _LONG_TEXT_COPIES * size if size > _LONG_TEXT else 0


class Buffer:
    """The postings and documents of the next segment."""

    def __init__(
        self,
        settings: Settings,
        codebook: AnyCodebook | None,
        sample: CodebookSample | None,
        memory: int = DEFAULT_MEMORY,
    ) -> None:
        self.settings, self._sample, self._memory = settings, sample, memory
        self.codec, self._codebook = stored_codec(settings, codebook), codebook
        self.documents: list[Document] = []
        self._metadata: list[str] = []
        self.numbers: dict[str, int] = {}
        self._passages = array.array("I")  # per document
        self._spans: dict[int, NDArray[np.uint32]] = {}  # of documents with several passages, [r, 2]
        self._num_passages = 0
        self._columns: dict[str, Column] = {}
        self._terms = _TermTable()
        self._tokens = array.array("I")
        self._lengths = array.array("I")
        self._words = None if settings.words is None else WordBuffer(self, settings.words, memory)
        self._num_staged = 0  # documents whose tokens are postings already
        self._stored_bytes = self._largest_document = (
            0  # bytes of documents and postings, and of the largest document
        )

    def __len__(self) -> int:
        return len(self.numbers)

    @property
    def bytes(self) -> int:
        """Memory of the buffer, including what writing it will take."""
        return (
            self._stored_bytes
            + _ROW_COPIES * self._largest_document
            + self._terms.bytes
            + _TOKEN_BYTES * len(self._tokens)
            + (0 if self._words is None else self._words.bytes)
        )

    def _take(self, document: Document, metadata: str, passages: int = 1) -> bool:
        """Append a document and its metadata as JSON; True when it replaces a buffered one."""
        self._passages.append(passages)
        self._num_passages += passages
        replaced = self.numbers.pop(document.id, None) is not None
        self.numbers[document.id] = len(self.documents)
        if document.metadata:  # kept as JSON, which takes a fraction of the memory
            document = Document(document.id, document.text, document.title)
        self.documents.append(document)
        self._metadata.append(metadata)
        size = _text_bytes(document, metadata)
        self._stored_bytes += _DOCUMENT_BYTES + size
        self._largest_document = max(self._largest_document, size)
        return replaced

    def discard(self, id: str) -> bool:
        """Drop a buffered document; False when the id is unknown."""
        return self.numbers.pop(id, None) is not None

    # -- text

    def add_terms(self, document: Document, windows: Iterable[Sequence[str]]) -> bool:
        """Add a document of a bm25 index from lists of its terms; raises when it is too large."""
        metadata = metadata_json(document)
        self._append_terms(document, windows, (1 + _ROW_COPIES) * _text_bytes(document, metadata))
        return self._take(document, metadata)

    def _append_terms(self, document: Document, windows: Iterable[Sequence[str]], size: int) -> None:
        """Append the terms of a document, which takes `size` bytes besides; all of them or none."""
        if len(document.text) > _LONG_TEXT and len(self._lengths) > self._num_staged:
            self._stage()  # staging a long document alone takes half the memory
        first, known = len(self._tokens), (len(self._terms), self._terms.bytes)
        try:
            self._require_room(document, size)
            for terms in windows:
                self._tokens.extend(map(self._terms.__getitem__, terms))
                self._require_room(document, size + self._own_bytes(len(self._tokens) - first, known[1]))
        except InputError:
            del self._tokens[first:]
            self._terms.truncate(*known)
            raise
        self._lengths.append(len(self._tokens) - first)
        if len(self._tokens) >= _STAGED_TOKENS:
            self._stage()

    def _own_bytes(self, tokens: int, known: int) -> int:
        """Memory of one document's tokens and of the terms that it added to the table."""
        postings = min(tokens, len(self._terms))
        return _TOKEN_BYTES * tokens + _POSTING_BYTES * postings + self._terms.bytes - known

    def _require_room(self, document: Document, size: int) -> None:
        """Raise when a document needs more than half the bound; reading and writing need the rest."""
        if size > max(self._memory // 2, _MIN_LIMIT):
            length = (len(document.text) + len(document.title)) / 1e6
            raise DocumentTooLargeError(
                f"document {document.id!r} of {length:.1f} million characters is too large for "
                f"{self._memory / 1e6:.0f} MB of memory: raise the bound (--memory), or split the document"
            )

    def _stage(self) -> None:
        """Turn buffered tokens into (term, document, count) postings."""
        lengths = np.array(
            self._lengths[self._num_staged :], np.uint32
        )  # a copy: a view would block appending
        tokens = np.frombuffer(self._tokens, np.uint32)
        if len(lengths) == 1:
            pairs: NDArray[Any] = np.sort(tokens)
        else:
            owners = np.repeat(
                np.arange(self._num_staged, self._num_staged + len(lengths), dtype=np.uint64), lengths
            )
            pairs = np.sort(owners << np.uint64(32) | tokens)
        is_first = np.ones(len(pairs), np.bool_)
        np.not_equal(pairs[1:], pairs[:-1], out=is_first[1:])
        first = np.flatnonzero(is_first)
        rows = pairs[first]
        owner = np.full(len(rows), self._num_staged) if len(lengths) == 1 else rows >> np.uint64(32)
        self._append("KEYS", rows.astype(np.uint32))  # the lower 32 bits
        self._append("DOCUMENTS", owner.astype(np.uint32))
        self._append("COUNTS", np.diff(np.append(first, len(pairs))).astype(np.uint32))
        self._num_staged += len(lengths)
        self._tokens = array.array("I")

    # -- vectors

    def add_batch(self, batch: VectorBatch) -> int:
        """Add documents with given vectors and return how many replaced a buffered one."""
        self.check(batch)
        metadata = [metadata_json(document) for document in batch.documents]
        if self._words is not None:
            self._words.add_texts(batch.documents)  # first: it may raise
        owners = np.repeat(np.arange(len(batch.offsets) - 1), np.diff(batch.offsets))  # passages
        kept = batch.weights > (self.settings.tau if self.settings.router == "dynamic" else 0)
        rows = slice(None) if kept.all() else kept  # copies only when postings are dropped
        keys, weights = batch.keys[rows], batch.weights[rows]
        if isinstance(self._codebook, CentroidBook) and batch.vectors is not None:
            keys = self._codebook.nearest(batch.vectors[rows] * weights[:, None])
        self._append("KEYS", keys)
        self._append("DOCUMENTS", (owners[rows] + self._num_passages).astype(np.uint32))
        if self.settings.router == "sparse":
            self._append("VALUES", weights.astype(np.float16))
        elif batch.vectors is not None:
            self._append_vectors(keys, weights, batch.vectors[rows])
        if batch.semantic is not None and self.settings.semantic is not None:
            self._append_encoded("SEMANTIC_", encode(self.settings.semantic.codec, batch.semantic))
        counts = itertools.repeat(1) if batch.passages is None else self._take_spans(batch.passages)
        return sum(map(self._take, batch.documents, metadata, counts))

    def _take_spans(self, passages: Passages) -> list[int]:
        """Keep the spans of documents with several passages; return the passages per document."""
        counts = passages.counts
        for document in np.flatnonzero(counts > 1).tolist():
            spans = passages.spans[passages.starts[document] : passages.starts[document + 1]].copy()
            self._spans[len(self.documents) + document] = spans
            self._stored_bytes += spans.nbytes + sys.getsizeof(spans)
        per_document: list[int] = counts.tolist()
        return per_document

    def check(self, batch: VectorBatch) -> None:
        """Raise InputError, naming the document, for values that cannot be stored."""
        limit = limit_of(self.codec)
        largest = _largest(batch.weights)
        self._require(batch, "weights", batch.weights, largest, limit_of("fp16"))
        if batch.vectors is not None:
            widest = _largest(batch.vectors)
            self._require(batch, "vectors", batch.vectors, widest, limit)
            if not widest * largest <= limit:  # rarely: the exact check needs all products
                with np.errstate(over="ignore", invalid="ignore"):
                    weighted = batch.vectors * batch.weights[:, None]
                    self._require(batch, "weighted vectors", weighted, _largest(weighted), limit)
        if batch.semantic is not None and self.settings.semantic is not None:
            maximum = limit_of(self.settings.semantic.codec)
            if not _largest(batch.semantic) <= maximum:
                for passage, vector in enumerate(batch.semantic):
                    require_finite(vector, "semantic vector", batch.passage_owner(passage), maximum)

    def _require(self, batch: VectorBatch, what: str, values: Floats, largest: float, maximum: float) -> None:
        """Raise InputError, naming the document, if the largest value is not within the maximum."""
        if not largest <= maximum:
            row = int(np.argmax(~(np.abs(values).reshape(len(values), -1).max(axis=1) <= maximum)))
            require_finite(values[row : row + 1], what, batch.owner(row), maximum)

    def _append_vectors(self, keys: NDArray[np.uint32], weights: Floats, vectors: Floats) -> None:
        step = _ROWS_ENCODED if self._sample is None else max(len(keys), 1)  # a cache's worth is faster
        for start in range(0, len(keys), step):
            rows = slice(start, start + step)
            self._append_some(keys[rows], weights[rows], vectors[rows])

    def _append_some(self, keys: NDArray[np.uint32], weights: Floats, vectors: Floats) -> None:
        weighted = vectors if (weights == 1).all() else vectors * weights[:, None]  # [P, d]
        if self._sample is not None and self._codebook is None:
            self._sample.add(weighted, keys)
        if self.settings.router == "dynamic":
            self._append("WEIGHTS", weight_steps(weights, self.settings.weight_step))
        tried = TOKEN_SCALES if self.settings.router == "centroid" else 1
        self._append_encoded("", encode(self.codec, weighted, keys, self._codebook, tried))

    def _append_encoded(self, prefix: str, encoded: Encoded) -> None:
        self._append(f"{prefix}CODES", encoded.codes)
        if encoded.scales is not None:
            self._append(f"{prefix}SCALES", encoded.scales)

    def _append(self, name: str, values: NDArray[Any]) -> None:
        self._columns.setdefault(name, Column()).append(values)
        self._stored_bytes += values.nbytes + (_SORTING_BYTES * len(values) if name == "KEYS" else 0)

    # -- writing

    @property
    def num_vectors(self) -> int:
        """Vectors in the buffer, those of replaced documents included."""
        return len(self._columns["CODES"].values()) if "CODES" in self._columns else 0

    def vectors(self, rows: NDArray[np.int64]) -> Floats:
        """Some of the vectors, while the codec is int8."""
        codes, scales = self._columns["CODES"].values()[rows], self._columns["SCALES"].values()[rows]
        return decode(Encoded("int8", codes, scales))

    def contents(self, codebook: AnyCodebook | None) -> MemoryContents:
        """Sort the buffer for writing; `codebook` may have been trained since documents were added.

        The buffer stays intact in case the write fails. Add nothing while the contents are in use.
        """
        if self.settings.router == "bm25" and len(self._lengths) > self._num_staged:
            self._stage()
        columns = {name: column.values() for name, column in self._columns.items()}
        return MemoryContents(self, columns, codebook)

    def words(self) -> MemoryContents | None:
        """The BM25 lists of the same documents."""
        return None if self._words is None else self._words.contents(None)


class WordBuffer(Buffer):
    """The BM25 lists of the documents of another buffer, which keeps the documents."""

    def __init__(self, owner: Buffer, words: WordSettings, memory: int) -> None:
        super().__init__(words.settings(), None, None, memory)
        self._analyser = get_analyser(words.analyser, words.fingerprint)  # checked by the writer
        self.documents, self._metadata, self.numbers = owner.documents, owner._metadata, owner.numbers

    def add_texts(self, documents: Sequence[Document]) -> None:
        """Add the terms of documents that the owner takes next; all of them or none."""
        done = len(self._lengths)
        try:
            for document in documents:
                self._append_terms(document, self._analyser.windows(document.encoded_text), 0)
                self._passages.append(1)
        except InputError:
            self._drop_from(done)
            raise

    def _drop_from(self, document: int) -> None:
        """Drop the documents from this number on."""
        if len(self._lengths) > self._num_staged:
            self._stage()
        kept = self._columns["DOCUMENTS"].values() < document if "DOCUMENTS" in self._columns else None
        if kept is not None:
            columns, self._columns, self._stored_bytes = self._columns, {}, 0
            for name, column in columns.items():
                self._append(name, column.values()[kept])
        del self._lengths[document:], self._passages[document:]
        self._num_staged = document


class MemoryContents:
    """A buffer as the contents of a segment (see `segment_writer.Contents`)."""

    def __init__(
        self, buffer: Buffer, columns: dict[str, NDArray[Any]], codebook: AnyCodebook | None
    ) -> None:
        settings = self._settings = buffer.settings
        self._buffer, self._columns = buffer, columns
        self._live = np.array(sorted(buffer.numbers.values()), np.int64)  # without replaced documents
        self._counts = np.frombuffer(buffer._passages, np.uint32)  # passages per document
        self._tokens: dict[str, NDArray[Any]] = {}  # centroid: columns in token order
        self._drop_replaced()
        if buffer._codebook is None and codebook is not None:
            self._requantize(stored_codec(settings, codebook), codebook)
        if get_router(settings.router).kind == "centroid":
            self._keep_tokens()
        self._sort()
        lexical, semantic = settings.lexical, settings.semantic
        self.meta = Meta(
            documents=len(self._live),
            postings=int(self.list_lengths.sum()),
            kind=get_router(settings.router).kind,
            dimension=lexical.dimension if lexical else 0,
            codec=stored_codec(settings, codebook),
            weight_step=settings.weight_step if settings.router == "dynamic" else 0.0,
            semantic_dimension=semantic.dimension if semantic else 0,
            semantic_codec=semantic.codec if semantic else "int8",
            passages=int(self._counts[self._live].sum()),
            has_centroids=isinstance(codebook, CentroidBook),
        )

    def _drop_replaced(self) -> None:
        """Drop the postings and semantic vectors of replaced documents, and number the other passages."""
        total = len(self._buffer.documents)
        if len(self._live) == total:
            return
        is_live = np.zeros(total, np.bool_)
        is_live[self._live] = True
        is_kept = np.repeat(is_live, self._counts)  # [passages]
        renumber = np.where(is_kept, np.cumsum(is_kept) - 1, -1)
        if "DOCUMENTS" in self._columns:
            kept = renumber[self._columns["DOCUMENTS"]] >= 0
            for name in [name for name in self._columns if not name.startswith("SEMANTIC_")]:
                self._columns[name] = self._columns[name][kept]
            self._columns["DOCUMENTS"] = renumber[self._columns["DOCUMENTS"]].astype(np.uint32)
        for name in [name for name in self._columns if name.startswith("SEMANTIC_")]:
            self._columns[name] = self._columns[name][is_kept]

    def _keep_tokens(self) -> None:
        """Keep the columns of tokens in their order; the lists hold the numbers of passages only."""
        self._tokens = {"TOKEN_CENTROIDS": self._columns.get("KEYS", np.zeros(0, np.uint32)).astype("<u2")}
        for name in ("CODES", "SCALES"):
            if name in self._columns:
                self._tokens[name] = self._columns.pop(name)
        owners = self._columns.get("DOCUMENTS", np.zeros(0, np.uint32))
        passages = int(self._counts[self._live].sum())
        self._token_counts = np.bincount(owners, minlength=passages).astype(np.uint32)

    def token_counts(self) -> Iterator[NDArray[np.uint32]]:
        yield self._token_counts

    def tokens(self, name: str) -> Iterator[NDArray[Any]]:
        if name in self._tokens:
            yield self._tokens[name]

    def _requantize(self, codec: str, codebook: AnyCodebook | None) -> None:
        if "CODES" not in self._columns:  # no document has a vector
            return
        rows = Encoded("int8", self._columns["CODES"], self._columns.pop("SCALES"))
        keys, step = self._columns["KEYS"], 65_536
        coded, centroids = [], []
        for i in range(0, max(len(rows), 1), step):
            vectors, own = decode(rows[i : i + step]), keys[i : i + step]
            own = codebook.nearest(vectors) if isinstance(codebook, CentroidBook) else own
            coded.append(rows[i : i + step] if codec == "int8" else encode(codec, vectors, own, codebook))
            centroids.append(own)
        self._columns["KEYS"] = np.concatenate(centroids)
        self._columns["CODES"] = np.concatenate([part.codes for part in coded])
        if scales := [part.scales for part in coded if part.scales is not None]:
            self._columns["SCALES"] = np.concatenate(scales)

    def _sort(self) -> None:
        """Sort postings by key; a stable sort keeps documents and tokens in order."""
        from citadel._native import sort_by_key

        keys = self._columns.pop("KEYS", np.zeros(0, np.uint32))
        self._sorted_terms: list[str] = []
        if self._settings.router == "bm25":
            keys = self._rank_terms(keys)
        self._order = sort_by_key(np.ascontiguousarray(keys))
        if self._settings.router == "centroid" and len(keys):
            self._order = self._order[
                is_first_of_pair(keys[self._order], self._columns["DOCUMENTS"][self._order])
            ]
        ordered = keys[self._order]
        starts = np.flatnonzero(np.diff(ordered, prepend=~ordered[:1]))  # ~ makes the first posting a start
        self.keys, self.list_lengths = ordered[starts], np.diff(starts, append=len(ordered))

    def _rank_terms(self, keys: NDArray[np.uint32]) -> NDArray[np.uint32]:
        """Replace term numbers by the byte-order ranks of the terms in use."""
        table = self._buffer._terms
        used = np.zeros(len(table), np.bool_)
        used[keys] = True
        self._sorted_terms = sorted(itertools.compress(table, used))  # str and UTF-8 sort alike
        numbers = np.fromiter(map(table.__getitem__, self._sorted_terms), np.uint32, len(self._sorted_terms))
        ranks = np.zeros(len(table), np.uint32)
        ranks[numbers] = np.arange(len(numbers), dtype=np.uint32)
        return ranks[keys]

    def words(self) -> MemoryContents | None:
        """The BM25 lists of the same documents."""
        return self._buffer.words()

    def ids(self) -> Iterator[tuple[list[bytes], NDArray[np.uint64]]]:
        ids = [self._buffer.documents[number].id for number in self._live.tolist()]
        yield [id.encode() for id in ids], id_hashes(ids)

    def document_rows(self) -> Iterator[Row]:
        """The rows of the document database."""
        for new, number in enumerate(self._live.tolist()):
            yield row_of(new, self._buffer.documents[number], self._buffer._metadata[number])

    def passage_counts(self) -> Iterator[NDArray[np.uint32]]:
        yield self._counts[self._live]

    def passage_spans(self) -> Iterator[NDArray[np.uint32]]:
        for number in self._live.tolist():
            yield self._buffer._spans.get(number, WHOLE_TEXT)

    def terms(self) -> tuple[NDArray[np.uint32], Iterable[bytes]]:
        terms = self._sorted_terms
        parts = (terms[start : start + _TERMS_PER_CHUNK] for start in range(0, len(terms), _TERMS_PER_CHUNK))
        lengths = np.fromiter((len(term.encode()) for term in terms), np.uint32, len(terms))
        return lengths, ("".join(part).encode() for part in parts)

    def lengths(self) -> Iterator[NDArray[np.uint32]]:
        yield np.frombuffer(self._buffer._lengths, np.uint32)[self._live]

    @property
    def total_length(self) -> int:
        """Tokens of all documents (bm25)."""
        return sum(int(part.sum()) for part in self.lengths()) if self._settings.router == "bm25" else 0

    def rows(self, name: str) -> Iterator[tuple[NDArray[np.uint32], NDArray[Any]]]:
        if name in self._columns:
            for lists, begin, end in self._chunks():
                # Five times as fast as indexing with an array.
                yield lists, np.take(self._columns[name], self._order[begin:end], axis=0)

    def _chunks(self) -> Iterator[tuple[NDArray[np.uint32], int, int]]:
        """Yield (list of each posting, start, stop) for groups of lists or parts of a long list."""
        starts = np.cumsum(self.list_lengths) - self.list_lengths
        widest = max((column[:1].nbytes for column in self._columns.values()), default=0)
        chunk = min(_CHUNK, _CHUNK_BYTES // max(widest, 1) // POSTINGS_PER_BLOCK * POSTINGS_PER_BLOCK)
        for first, stop in list_groups(self.list_lengths, chunk):
            lists = np.repeat(np.arange(first, stop, dtype=np.uint32), self.list_lengths[first:stop])
            for begin in range(0, len(lists), chunk):
                part, start = lists[begin : begin + chunk], int(starts[first]) + begin
                yield part, start, start + len(part)

    def semantic(self, name: str) -> Iterator[NDArray[Any]]:
        yield self._columns[name]

    def semantic_vectors(self, start: int, stop: int) -> Floats:
        assert self._settings.semantic is not None
        scales = self._columns.get("SEMANTIC_SCALES")
        codes = self._columns["SEMANTIC_CODES"]
        return decode(
            Encoded(
                self._settings.semantic.codec,
                codes[start:stop],
                None if scales is None else scales[start:stop],
            )
        )
