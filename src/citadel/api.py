"""`Index`, the public class of the library: create, open, add, delete, commit, merge, check, search."""

from __future__ import annotations

import functools
import os
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from citadel.encode.batches import encoded_batches
from citadel.encode.locate import (
    chosen_model,
    fingerprint,
    index_model,
    model_name,
    require_fingerprint,
    text_model,
)
from citadel.errors import InputError, OwnershipError, TruncatedDocumentsWarning, UncommittedChangesWarning, UsageError
from citadel.forks import no_fork
from citadel.index import check as checking
from citadel.index.create import create_index
from citadel.index.manifest import Build
from citadel.index.snapshot import Snapshot, open_snapshot
from citadel.index.stats import statistics
from citadel.index.storage import FolderStorage, Storage, forked
from citadel.index.vectors import batches
from citadel.index.writer import Writer
from citadel.progress import document_progress
from citadel.search.searcher import QueryEncoder, Searcher
from citadel.settings import DEFAULT_ANALYSER, DEFAULT_MEMORY, Field, Settings, text_settings, vector_settings
from citadel.text.analyser import get_analyser
from citadel.text.parse import check_document, known_id, make_document
from citadel.types import Document, RoutedTokens, VectorBatch

if TYPE_CHECKING:
    from citadel.encode.encoder import Encoder

Path = str | os.PathLike[str]


class Index:
    """An index in a folder. Changes wait until `commit`; searchers see committed generations only.

    Threads may share an Index. A forked child can search with it, but must open its own to change anything.

    >>> import tempfile
    >>> with Index.create(tempfile.mkdtemp()) as index:
    ...     added = index.add([{"id": "d1", "text": "E = mc²", "year": 1905}])
    ...     hits = index.commit().searcher().search("mc²")
    >>> hits[0].id, hits[0].metadata["year"]
    ('d1', 1905)
    """

    def __init__(
        self,
        storage: Storage,
        memory: int = DEFAULT_MEMORY,
        model: Path | None = None,
        threads: int | None = None,
        encoder: Encoder | None = None,
    ) -> None:
        self._storage, self._memory = storage, memory
        self._loading = threading.Lock()  # taken inside `no_fork` alone
        self._process = os.getpid()
        self._view: Snapshot | Writer = open_snapshot(storage)  # a Writer from the first change on
        self._model, self._threads = _same_kind(self.settings, model), threads
        self._encoder = encoder
        self._closed = False

    def __repr__(self) -> str:
        return f"Index({self._storage.location!r}, {len(self):,} documents, router {self.settings.router})"

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled by its path: the copy opens the newest generation."""
        if self.has_changes:
            raise UsageError(f"{self._storage.location}: changes wait, which a copy would not have; commit them first")
        return _reopened, (self._storage, self._memory, self._model, self._threads)

    @classmethod
    def create(
        cls,
        path: Path | Storage,
        *,
        model: Path | None = None,
        router: str | None = None,
        fields: Mapping[str, Field | Mapping[str, Any] | int] | None = None,
        fingerprint: str | None = None,
        tau: float | None = None,
        codec: str | None = None,
        semantic_codec: str | None = None,
        analyser: str | None = None,
        k1: float | None = None,
        b: float | None = None,
        memory: int = DEFAULT_MEMORY,
        threads: int | None = None,
        overwrite: bool = False,
        build: Build | None = None,
    ) -> Self:
        """A new, empty index: for text, or with `fields` for given vectors.

        Text goes through `model`, a folder made by `citadel export`, or the default model that comes with the package;
        then `tau` (the model's own) and the codecs of its token and semantic vectors (`int8`) can be chosen. With
        `model="bm25"`, or an `analyser` (`english`), `k1` (0.9) or `b` (0.4), it goes through BM25.

        `fields` names a `lexical` and/or a `semantic` field, each a dimension or a `Field`; such an index needs the
        `fingerprint` of whatever made the vectors, so that nobody mixes two models.
        """
        given = {"analyser": analyser, "k1": k1, "b": b}
        terms: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
        encoder, named = None, chosen_model(model, router, terms) if fields is None else None
        if named is not None:
            encoder = _load(named, tau, threads)
            settings = encoder.index_settings(model_name(named), router, tau, codec, semantic_codec)
        elif codec is not None or semantic_codec is not None:
            raise UsageError("codec and semantic_codec go with a model: a field of given vectors names its own")
        elif fields is None:
            analyser = get_analyser(analyser or DEFAULT_ANALYSER).fingerprint
            settings = text_settings(analyser, router, tau, **terms)
        else:
            settings = vector_settings(fields, router, fingerprint, tau)
        storage = _storage(path)
        create_index(storage, settings, overwrite, build)
        return cls(storage, memory, named, threads, encoder)

    @classmethod
    def open(
        cls,
        path: Path | Storage,
        *,
        memory: int = DEFAULT_MEMORY,
        model: Path | None = None,
        threads: int | None = None,
    ) -> Self:
        """The newest generation of an existing index; `model` is the folder of its model, unless that is installed."""
        return cls(_storage(path), memory, model, threads)

    # -- changes -----------------------------------------------------------------------------------------------------

    def add(
        self,
        documents: Iterable[Document | Mapping[str, Any]],
        *,
        progress: bool | Callable[[int], None] = False,
    ) -> int:
        """Add documents from a list or a stream and return their number; a known id is replaced.

        A document that is refused raises InputError; those before it wait for `commit` or `rollback`. Any other
        failure drops the documents of this call, and no others. Texts longer than the model reads are cut, with one
        `TruncatedDocumentsWarning` per call. `progress=True` shows a bar on a terminal; a function is called with
        the number of documents encoded or indexed so far.
        """
        self._writable()
        if isinstance(documents, (str, bytes, Mapping, Document)) or not isinstance(documents, Iterable):
            raise UsageError("add takes several documents: put a single one into a list")
        total = len(documents) if isinstance(documents, Sized) else None
        with document_progress(progress, "Adding", total) as advance:
            added, truncated = self._add((_checked(item) for item in documents), advance)
        if truncated:
            warnings.warn(truncation_message(truncated, self.max_tokens), TruncatedDocumentsWarning, stacklevel=2)
        return added

    def add_checked(self, documents: Iterable[Document], advance: Callable[[int], Any] | None = None) -> int:
        """Add documents that `read_corpus` or `make_document` has checked: `add` without checks and warnings.

        `advance` is called with the number of further documents that are encoded or indexed."""
        self._writable()
        return self._add(documents, advance)[0]

    def _add(self, documents: Iterable[Document], advance: Callable[[int], Any] | None = None) -> tuple[int, int]:
        """Add checked documents; the number added and the number that were cut."""
        if self.settings.model is None:
            return self._writer.add(documents if advance is None else _counted(documents, advance)), 0
        counts: Counter[str] = Counter()

        def count(name: str, number: int) -> None:
            counts[name] += number
            self.tally(name, number)

        batches = encoded_batches(documents, self._encode(), self._memory, count, advance)
        return self._writer.add_vectors(batches), counts["cut"]

    @property
    def max_tokens(self) -> int | None:
        """Tokens of a document that the model of this index reads; None for an index without a model."""
        return None if self.settings.model is None else self._encode().config.document_length

    def add_vectors(self, given: Any, *, fingerprint: str | None = None) -> int:
        """Add documents with vectors: mappings with `id`, `keys`, `weights`, `vectors`, `semantic`, `text`, …;
        or one mapping of arrays for many (`ids`, `offsets`, …), an `.npz` file of such arrays, or a `VectorBatch`."""
        self._writable()
        settings = self.settings
        if settings.router == "bm25":
            raise UsageError("this index holds text: vectors need one of their own, made with fields=… or from an .npz")
        if fingerprint is not None and fingerprint != settings.fingerprint:
            raise InputError(f"vectors of {fingerprint!r} do not belong into an index of {settings.fingerprint!r}")
        return self._writer.add_vectors(
            [given] if isinstance(given, VectorBatch) else batches(given, settings, self._memory)
        )

    def delete(self, ids: Iterable[str]) -> int:
        """Delete documents by id; unknown ids are ignored. Returns the number deleted."""
        self._writable()
        wanted = [known_id(id) for id in ([ids] if isinstance(ids, str) else ids)]
        return self._writer.delete(id for id in wanted if id is not None)

    def commit(self, build: Build | None = None) -> Self:
        """Make all changes durable and visible: they survive a power cut when this returns."""
        self._writable()
        if build is not None or isinstance(self._view, Writer):
            self._writer.commit(build)
        return self

    def merge(self, *, retrain: bool = False) -> Self:
        """Join all segments into one and drop what was deleted; `retrain` makes a new codebook for pq codecs."""
        self._writable()
        self._writer.merge(retrain)
        return self

    def merge_space(self, *, retrain: bool = False) -> int:
        """Bytes of free disk space that `merge` may need; 0 when there is nothing to merge."""
        return self._writer.merge_space(retrain)

    def rollback(self) -> None:
        """Drop every change that was not committed."""
        if isinstance(self._view, Writer):
            self._view.rollback()

    @property
    def has_changes(self) -> bool:
        """Whether there are uncommitted changes."""
        return isinstance(self._view, Writer) and self._view.changed

    @property
    def _writer(self) -> Writer:
        """The writer of this index, made at the first change."""
        if isinstance(view := self._view, Writer):
            return view
        with no_fork, self._loading:
            if not isinstance(self._view, Writer):
                if os.getpid() != self._process:
                    raise OwnershipError(forked(self._storage.location))
                self._view = Writer(self._storage, self._memory, self._view)
            return self._view

    # -- reading -----------------------------------------------------------------------------------------------------

    def searcher(
        self,
        *,
        threads: int | None = None,
        engine: str = "native",
        device: str = "cpu",
        gpu_memory: int | None = None,
        card_memory: int | None = None,
    ) -> Searcher:
        """A searcher over the last committed generation; commits after this do not change what it finds.

        `device="cuda"` copies the index to a GPU and searches there; its model encodes queries there too.
        Lists beyond `gpu_memory` bytes stay in host memory (`card_memory` is its former name)."""
        memory = card_memory if gpu_memory is None else gpu_memory
        return self._searcher(self._snapshot, threads, engine, device, memory)

    def _searcher(
        self, snapshot: Snapshot, threads: int | None, engine: str, device: str, gpu_memory: int | None
    ) -> Searcher:
        encoder = self._encode if self.settings.model else None
        on_device = functools.cache(lambda: self.encoder_on(device)) if encoder and device != "cpu" else None
        searcher = Searcher(snapshot, threads, engine, encoder, device, on_device, gpu_memory)
        searcher.recipe = _restored, (self._memory, self._model, self._threads, threads, engine, device, gpu_memory)
        return searcher

    def refresh(self) -> Self:
        """Move to the newest generation, unless changes of this Index wait."""
        with no_fork, self._loading:
            if not isinstance(self._view, Writer):
                self._storage.reopen()
                self._view = open_snapshot(self._storage, self._view)
                return self
        self._writer.refresh()
        return self

    @property
    def _snapshot(self) -> Snapshot:
        view = self._view
        return view.snapshot if isinstance(view, Writer) else view

    def get(self, id: str) -> Document | None:
        """The committed document with this id."""
        known = known_id(id)
        return None if known is None else self._snapshot.get(known)

    def __len__(self) -> int:
        return len(self._snapshot)

    def __contains__(self, id: object) -> bool:
        known = known_id(id) if isinstance(id, str | int) else None
        return known is not None and bool(self._snapshot.locate([known]))

    @property
    def settings(self) -> Settings:
        return self._snapshot.settings

    @property
    def memory(self) -> int:
        """The bound, in bytes, for what waits and for what is read at a time."""
        return self._memory

    @property
    def generation(self) -> int:
        """The number of the last commit seen."""
        return self._snapshot.manifest.generation

    @property
    def build(self) -> Build | None:
        """How far a `citadel index` build has come, where one made this index."""
        return self._snapshot.manifest.build

    @property
    def counts(self) -> dict[str, int]:
        """The running figures: documents replaced, skipped, cut."""
        return dict(self._snapshot.manifest.counts)

    def stats(self) -> dict[str, Any]:
        """Documents, postings, lists, bytes: what `citadel stats` prints."""
        return statistics(self._snapshot)

    def check(self, *, deep: bool = False) -> None:
        """Raise CorruptIndexError when the newest generation on disk is damaged; `deep` reads every byte."""
        checking.check(self._storage, deep)

    def encode_query(self, text: str) -> RoutedTokens:
        """A query as the index's model routes it."""
        if self.settings.model is None:
            raise UsageError(f"this index has no model ({self.settings.router}): it cannot encode a text")
        return self._encode().encode_query(text)

    def tally(self, what: str, how_many: int) -> None:
        """Add to a running figure shown by `stats`, as documents skipped."""
        self._writer.count(what, how_many)

    def _encode(self) -> Encoder:
        """The model of this index, loaded when text first needs it."""
        if self._encoder is None:
            with no_fork, self._loading:
                self._encoder = self._encoder or self._loaded()
        return self._encoder

    def _loaded(self) -> Encoder:
        settings = self.settings
        encoder = _load(self._find_model(), settings.tau, self._threads)
        require_fingerprint(encoder.fingerprint, settings.fingerprint, encoder.folder)
        return encoder

    def require_model(self) -> None:
        """Raise InputError now, and not at the first text, where the index's model is neither given nor installed."""
        if self.settings.model is not None and self._encoder is None:
            self._find_model()

    def _find_model(self) -> str:
        settings = self.settings
        return index_model(self._model, settings.model, settings.fingerprint, self._storage.location)

    def encoder_on(self, device: str) -> QueryEncoder:
        """Load the model of this index on a GPU, for queries."""
        from citadel.model.texts import query_encoder

        folder = self._find_model()
        require_fingerprint(fingerprint(folder), self.settings.fingerprint, folder)
        return query_encoder(folder, device)

    # -- end ---------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """End writing and drop uncommitted changes, with an `UncommittedChangesWarning`. Searchers stay usable."""
        self._close(stacklevel=3)

    def _close(self, stacklevel: int) -> None:
        had_changes = self.has_changes
        self.rollback()
        self._closed = True
        if had_changes:
            message = f"{self._storage.location}: closed with uncommitted changes, now dropped: call commit() first"
            warnings.warn(message, UncommittedChangesWarning, stacklevel=stacklevel)

    def _writable(self) -> None:
        if self._closed:
            raise UsageError(f"{self._storage.location}: this Index was closed; open it again to change it")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self.rollback()  # the exception says enough
        self._close(stacklevel=3)


def _storage(path: Path | Storage) -> Storage:
    if path is None or isinstance(path, (int, bytes)) or path == "":
        raise UsageError(f"an index is a folder: give its path, not {path!r}")
    return FolderStorage(path) if isinstance(path, (str, os.PathLike)) else path


def _reopened(storage: Storage, memory: int, model: Path | None, threads: int | None) -> Index:
    """An Index that was pickled."""
    return Index(storage, memory, model, threads)


def _restored(snapshot: Snapshot, memory: int, model: Path | None, threads: int | None, *options: Any) -> Searcher:
    """A Searcher that was pickled."""
    return Index(snapshot.storage, memory, model, threads)._searcher(snapshot, *options)


def _counted(documents: Iterable[Document], advance: Callable[[int], Any]) -> Iterator[Document]:
    """Report each document when the next one is wanted: by then it is indexed."""
    for document in documents:
        yield document
        advance(1)


def _checked(item: Document | Mapping[str, Any]) -> Document:
    if isinstance(item, Document):
        return check_document(item)
    if not isinstance(item, Mapping):
        raise InputError(f"a document is a Document or a dict with id and text, not {type(item).__name__}")
    return make_document(item)


def truncation_message(documents: int, limit: int | None) -> str:
    """One sentence on documents that were cut.

    >>> truncation_message(2, 512)
    '2 documents are longer than the 512 tokens that the model reads; the rest of their text is not searchable: ...'
    """
    are = "document is" if documents == 1 else "documents are"
    return (
        f"{documents:,} {are} longer than the {limit} tokens that the model reads; "
        "the rest of their text is not searchable: split it into passages"
    )


def _load(model: Path, tau: float | None, threads: int | None) -> Encoder:
    from citadel.encode.encoder import Encoder

    return Encoder(model, threads, tau=tau)


def _same_kind(settings: Settings, model: Path | None) -> Path | None:
    """A model named when an index is opened; only an index that was built with one can use it."""
    if model is not None and settings.model is None and text_model(model) is not None:
        raise UsageError(f"this index was not built with a model ({settings.router}): leave model out")
    return model
