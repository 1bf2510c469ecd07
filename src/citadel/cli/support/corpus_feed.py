"""Feed a corpus into an index in parts: lines of text, or an .npz file of vectors."""

from __future__ import annotations

import os
import zlib
from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Protocol

from citadel.cli.support.output import say
from citadel.cli.support.vectors import read_shapes
from citadel.errors import DocumentTooLargeError, InputError, UsageError
from citadel.index.manifest import Build
from citadel.progress import Progress
from citadel.settings import DEFAULT_MEMORY, EncodeOn
from citadel.text.corpus import KEPT_REASONS, Corpus, OnError, find_file, read_corpus
from citadel.text.files import STDIN

if TYPE_CHECKING:
    from citadel.api import Index
    from citadel.types import Document, VectorBatch

Enough = Callable[[int], bool]
_CHUNK = 1 << 20
_LINE_SHARE = 16  # max line is this fraction of the memory: held as bytes, text and document
_MIN_LINE = 1 << 20


class Feed(Protocol):
    """A corpus that is read into an index."""

    @property
    def skipped(self) -> int:
        """Number of skipped documents."""

    @property
    def reasons(self) -> list[InputError]:
        """The first reasons for skipping."""

    def add(self, index: Index, enough: Enough, progress: Progress) -> bool:
        """Add documents until `enough` returns true; return whether the corpus has ended."""

    def state(self) -> Build:
        """The position up to which the corpus is read."""

    def require_documents(self, before: int) -> None:
        """Raise InputError if the corpus has no document; `before` is the number already indexed."""

    def close(self) -> None: ...


class TextFeed:
    """A JSONL or TSV corpus."""

    def __init__(
        self,
        path: str,
        source: str,
        format: str | None,
        on_error: OnError,
        start: int = 0,
        memory: int = DEFAULT_MEMORY,
        generate_ids: bool = False,
        encode_on: EncodeOn | None = None,
    ) -> None:
        self._source, self._encode_on = source, encode_on or EncodeOn()
        limit = max(memory // _LINE_SHARE, _MIN_LINE)
        self._corpus = read_corpus(
            path, format=format, on_error=on_error, start=start, max_line=limit, generate_ids=generate_ids
        )
        self._ended = False
        self._counted = 0
        self._read = deque[int]()  # bytes consumed after each document that is read and not yet indexed
        self._indexed = 0

    @property
    def skipped(self) -> int:
        return self._corpus.skipped

    @property
    def reasons(self) -> list[InputError]:
        return self._corpus.reasons

    def add(self, index: Index, enough: Enough, progress: Progress) -> bool:
        if progress.total is None:
            progress.total = self._corpus.lines.size
            progress.resume(self._corpus.lines.consumed_on_disk)
        documents, is_added = self._documents(enough), False
        while not is_added:
            self._read.clear()
            try:
                index.add_checked(documents, lambda count: self._advance(count, progress), self._encode_on)
                is_added = True
            except DocumentTooLargeError as error:
                self._corpus.refuse(error)
        index.tally("skipped", self.skipped - self._counted)
        self._counted = self.skipped
        return self._ended

    def _advance(self, count: int, progress: Progress) -> None:
        """Show `count` more documents as indexed."""
        self._indexed += count
        consumed = [self._read.popleft() for _ in range(min(count, len(self._read)))]
        if consumed:
            progress(consumed[-1], self._indexed)

    def _documents(self, enough: Enough) -> Iterator[Document]:
        corpus, start = self._corpus, self._corpus.position.offset
        for document, position in corpus:
            self._read.append(corpus.lines.consumed_on_disk)
            yield document
            if enough(position.offset - start):
                return
        self._ended = True

    def state(self) -> Build:
        line, offset, crc = self._corpus.position
        return Build(self._source, offset, crc, line)

    def require_documents(self, before: int) -> None:
        _require(self._indexed + before, self.skipped, self._corpus.source)

    def at_end(self) -> bool:
        """Whether only blank lines follow."""
        return next(self._corpus, None) is None and not self.skipped

    def close(self) -> None:
        self._corpus.close()


class VectorFeed:
    """An .npz corpus; `line` of its state counts documents, the CRC covers the whole file."""

    def __init__(self, path: str, source: str, on_error: OnError, start: int = 0) -> None:
        self._path, self._source, self._on_error = path, source, on_error
        self._size, self._crc = file_crc(path)
        self._documents = next(iter(read_shapes(path).get("ids", ())), None)
        self._done = start
        self._batches: Iterator[VectorBatch] | None = None
        self.skipped, self.reasons = 0, list[InputError]()

    def add(self, index: Index, enough: Enough, progress: Progress) -> bool:
        if self._batches is None:
            index.add_vectors([])  # an index of text refuses vectors before the arrays are read
            self._batches = self._rest(index)
            progress.total = self._documents
            progress.resume(self._done)
        size = 0
        for batch in self._batches:
            before = self.skipped
            self._add(index, batch)
            index.tally("skipped", self.skipped - before)
            self._done += len(batch)
            size += batch_bytes(batch)
            progress(self._done)
            if enough(size):
                return False
        return True

    def _add(self, index: Index, batch: VectorBatch) -> None:
        """Add a batch; under `skip`, halve it until the bad document is alone."""
        try:
            index.add_vectors(batch)
        except InputError as error:
            if self._on_error == "fail":
                raise InputError(error.reason, error.source or self._path, error.line) from None
            if len(batch) == 1:
                self.skipped += 1
                self.reasons += (
                    [InputError(error.reason, self._path)] if len(self.reasons) < KEPT_REASONS else []
                )
                return
            middle = len(batch) // 2
            self._add(index, batch.part(0, middle))
            self._add(index, batch.part(middle, len(batch)))

    def _rest(self, index: Index) -> Iterator[VectorBatch]:
        from citadel.index.vectors import batches

        passed = 0
        for batch in batches(self._path, index.settings, index.memory):
            passed += len(batch)
            new = min(passed - self._done, len(batch))
            if new > 0:
                yield batch.part(len(batch) - new, len(batch))

    def state(self) -> Build:
        return Build(self._source, self._size, self._crc, self._done)

    def require_documents(self, before: int) -> None:
        _require(self._done - self.skipped + before, self.skipped, self._path)

    def close(self) -> None:
        self._batches = None


def is_vectors(corpus: str) -> bool:
    """Whether a corpus holds vectors.

    >>> is_vectors("corpus.npz"), is_vectors("corpus.jsonl.gz")
    (True, False)
    """
    return corpus.lower().endswith(".npz")


def open_feed(
    corpus: str,
    format: str | None,
    on_error: str,
    start: Build | None = None,
    memory: int = DEFAULT_MEMORY,
    generate_ids: bool = False,
    encode_on: EncodeOn | None = None,
) -> Feed:
    """Open a corpus at its beginning, or where an earlier build stopped."""
    if on_error not in ("fail", "skip"):
        raise UsageError(f"--on-error is fail or skip, not {on_error!r}")
    policy: OnError = "skip" if on_error == "skip" else "fail"
    if is_vectors(corpus):
        if generate_ids:
            raise UsageError("--generate-ids is for JSONL: an .npz file has an array `ids`")
        if encode_on is not None and encode_on.is_gpu:
            raise UsageError(f"--device {encode_on.device} is for text: vectors are not encoded")
        return VectorFeed(corpus, real_source(corpus), policy, start.line if start else 0)
    if encode_on is not None and encode_on.is_gpu:
        _check_device(encode_on)
    position = start.position if start else 0
    return TextFeed(corpus, real_source(corpus), format, policy, position, memory, generate_ids, encode_on)


def _check_device(encode_on: EncodeOn) -> None:
    """Raise UsageError before an index is created or replaced."""
    try:
        from citadel.model.documents import check_encode_on
    except ModuleNotFoundError as error:
        raise UsageError(
            f"--device {encode_on.device} needs {error.name}: run `pip install 'citadel-ir[gpu]'`"
        ) from None
    check_encode_on(encode_on)


def real_source(corpus: str) -> str:
    """Return the canonical path of a corpus.

    >>> real_source("-")
    '-'
    """
    file = find_file(corpus, "corpus.jsonl")
    if file == STDIN:
        return STDIN
    return os.fsencode(os.path.realpath(file)).decode(errors="backslashreplace")  # a name need not be UTF-8


def report_skipped(feed: Feed | Corpus) -> None:
    """Print the first reasons for skipped documents on standard error."""
    for reason in feed.reasons:
        say(f"skipped: {reason}")
    if feed.skipped > len(feed.reasons):
        say(f"skipped: {feed.skipped - len(feed.reasons):,} more")


def _require(documents: int, skipped: int, source: str) -> None:
    if documents == 0:
        lines = f"; all {skipped:,} were skipped" if skipped else ""
        raise InputError(f"the corpus has no documents{lines}: check the file and its --format", source)


def report_truncated(index: Index, documents: int) -> None:
    """Print the number of documents that were cut, and the limit, to standard error."""
    from citadel.api import truncation_message

    if documents:
        say(truncation_message(documents, index.max_tokens))


def batch_bytes(batch: VectorBatch) -> int:
    """Return the size of a batch: its texts and arrays in bytes."""
    arrays = (batch.keys, batch.weights, batch.vectors, batch.semantic)
    texts = sum(len(document.text) + len(document.title) for document in batch.documents)
    return texts + sum(array.nbytes for array in arrays if array is not None)


def file_crc(path: str) -> tuple[int, int]:
    """Return size and zlib.crc32 of a file."""
    size = crc = 0
    try:
        with open(path, "rb") as file:
            while piece := file.read(_CHUNK):
                size, crc = size + len(piece), zlib.crc32(piece, crc)
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", path) from None
    except ValueError as error:
        raise InputError(f"not a file name: {error}", repr(path)) from None
    return size, crc
