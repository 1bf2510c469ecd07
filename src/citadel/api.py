"""`Index`, the public face of the library: create, open, add, delete, commit, merge, check, search."""

from __future__ import annotations

import functools
import logging
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from citadel.config import DEFAULT_MEMORY, Field, Settings
from citadel.encode.batches import encoded_batches
from citadel.encode.locate import chosen_model, fingerprint, index_model, require_fingerprint, text_model
from citadel.errors import InputError, UsageError
from citadel.forks import no_fork
from citadel.index import check as checking
from citadel.index.create import create_index
from citadel.index.manifest import Build
from citadel.index.snapshot import Snapshot
from citadel.index.stats import statistics
from citadel.index.storage import FolderStorage, Storage
from citadel.index.vectors import batches
from citadel.index.writer import Writer
from citadel.search.searcher import QueryEncoder, Searcher
from citadel.settings import model_settings, text_settings, vector_settings
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
        self._writer = Writer(storage, memory)
        self._model, self._threads = _same_kind(self._writer.settings, model), threads
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
            settings = model_settings(named, encoder, router, tau, codec, semantic_codec)
        elif codec is not None or semantic_codec is not None:
            raise UsageError("codec and semantic_codec go with a model: a field of given vectors names its own")
        elif fields is None:
            settings = text_settings(router, tau, **terms)
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
        self, documents: Iterable[Document | Mapping[str, Any]], *, advance: Callable[[int], Any] | None = None
    ) -> int:
        """Add documents from a list or a stream; an id that is there already is replaced. How many were taken in.

        A document that is refused raises InputError; those before it wait for `commit` or `rollback`. Any other
        failure drops the documents of this call, and no others. `advance` is called as the work goes on, each time
        with how many more documents are encoded or indexed."""
        self._writable()
        if isinstance(documents, (str, bytes, Mapping, Document)) or not isinstance(documents, Iterable):
            raise UsageError("add takes several documents: put a single one into a list")
        checked = (_checked(item) for item in documents)
        if self.settings.model is None:
            return self._writer.add(checked if advance is None else _counted(checked, advance))
        batches = encoded_batches(checked, self._encode(), self._memory, self.tally, advance)
        return self._writer.add_vectors(batches)

    def add_vectors(self, given: Any, *, fingerprint: str | None = None) -> int:
        """Add documents with vectors: mappings with `id`, `keys`, `weights`, `vectors`, `semantic`, `text`, …;
        or one mapping of arrays for many (`ids`, `offsets`, …), an `.npz` file of such arrays, or a `VectorBatch`."""
        self._writable()
        settings = self._writer.settings
        if settings.router == "bm25":
            raise UsageError("this index holds text: vectors need one of their own, made with fields=… or from an .npz")
        if fingerprint is not None and fingerprint != settings.fingerprint:
            raise InputError(f"vectors of {fingerprint!r} do not belong into an index of {settings.fingerprint!r}")
        return self._writer.add_vectors(
            [given] if isinstance(given, VectorBatch) else batches(given, settings, self._memory)
        )

    def delete(self, ids: Iterable[str]) -> int:
        """Delete documents by id; unknown ids are passed over. How many there were."""
        self._writable()
        wanted = [known_id(id) for id in ([ids] if isinstance(ids, str) else ids)]
        return self._writer.delete(id for id in wanted if id is not None)

    def commit(self, build: Build | None = None) -> Self:
        """Make all changes durable and visible: they survive a power cut when this returns."""
        self._writable()
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
        self._writer.rollback()

    @property
    def has_changes(self) -> bool:
        """Whether anything waits to be committed."""
        return self._writer.changed

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
        return self._searcher(self._writer.snapshot, threads, engine, device, memory)

    def _searcher(
        self, snapshot: Snapshot, threads: int | None, engine: str, device: str, gpu_memory: int | None
    ) -> Searcher:
        encoder = self._encode if self.settings.model else None
        on_device = functools.cache(lambda: self.encoder_on(device)) if encoder and device != "cpu" else None
        searcher = Searcher(snapshot, threads, engine, encoder, device, on_device, gpu_memory)
        searcher.recipe = _restored, (self._memory, self._model, self._threads, threads, engine, device, gpu_memory)
        return searcher

    def refresh(self) -> Self:
        """See what other processes have committed since."""
        self._writer.refresh()
        return self

    def get(self, id: str) -> Document | None:
        """The committed document with this id."""
        known = known_id(id)
        return None if known is None else self._writer.snapshot.get(known)

    def __len__(self) -> int:
        return len(self._writer.snapshot)

    def __contains__(self, id: object) -> bool:
        known = known_id(id) if isinstance(id, str | int) else None
        return known is not None and bool(self._writer.snapshot.locate([known]))

    @property
    def settings(self) -> Settings:
        return self._writer.settings

    @property
    def memory(self) -> int:
        """The bound, in bytes, for what waits and for what is read at a time."""
        return self._memory

    @property
    def generation(self) -> int:
        """The number of the last commit seen."""
        return self._writer.snapshot.manifest.generation

    @property
    def build(self) -> Build | None:
        """How far a `citadel index` build has come, where one made this index."""
        return self._writer.snapshot.manifest.build

    @property
    def counts(self) -> dict[str, int]:
        """The running figures: documents replaced, skipped, cut."""
        return dict(self._writer.snapshot.manifest.counts)

    def stats(self) -> dict[str, Any]:
        """Documents, postings, lists, bytes: what `citadel stats` prints."""
        return statistics(self._writer.snapshot)

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
        """The model of this index on a GPU, for queries; each call loads it."""
        from citadel.model.texts import query_encoder

        folder = self._find_model()
        require_fingerprint(fingerprint(folder), self.settings.fingerprint, folder)
        return query_encoder(folder, device)

    # -- end ---------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """End writing: changes that were not committed are dropped, and said so in the log. Searchers go on."""
        if self._writer.changed:
            logging.getLogger("citadel").warning(
                "%s: closed with changes that were not committed", self._storage.location
            )
        self._end()

    def _end(self) -> None:
        self._writer.rollback()
        self._closed = True

    def _writable(self) -> None:
        if self._closed:
            raise UsageError(f"{self._storage.location}: this Index was closed; open it again to change it")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self._end()  # the error says enough


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


def _load(model: Path, tau: float | None, threads: int | None) -> Encoder:
    from citadel.encode.encoder import Encoder

    return Encoder(model, threads, tau=tau)


def _same_kind(settings: Settings, model: Path | None) -> Path | None:
    """A model named when an index is opened; only an index that was built with one can use it."""
    if model is not None and settings.model is None and text_model(model) is not None:
        raise UsageError(f"this index was not built with a model ({settings.router}): leave model out")
    return model
