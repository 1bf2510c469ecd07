"""`Index`, the public face of the library: create, open, add, delete, commit, merge, check, search."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Any, Self

from citadel.config import DEFAULT_MEMORY, Field, Settings
from citadel.errors import InputError, UsageError
from citadel.index import check as checking
from citadel.index.create import create_index
from citadel.index.manifest import Build
from citadel.index.stats import statistics
from citadel.index.storage import FolderStorage, Storage
from citadel.index.vectors import VectorBatch, batches
from citadel.index.writer import Writer
from citadel.search.searcher import Searcher
from citadel.text.analyser import get_analyser
from citadel.text.parse import check_document, make_document
from citadel.types import Document

Path = str | os.PathLike[str]
_TEXT_MODELS = (None, "default", "bm25")  # until the default model ships, text goes through bm25


class Index:
    """An index in a folder. Changes wait until `commit`; searchers see committed generations only.

    >>> import tempfile
    >>> with Index.create(tempfile.mkdtemp()) as index:
    ...     added = index.add([{"id": "d1", "text": "E = mc²", "year": 1905}])
    ...     hits = index.commit().searcher().search("mc²")
    >>> hits[0].id, hits[0].metadata["year"]
    ('d1', 1905)
    """

    def __init__(self, storage: Storage, memory: int = DEFAULT_MEMORY) -> None:
        self._storage = storage
        self._writer = Writer(storage, memory)
        self._closed = False

    def __repr__(self) -> str:
        return f"Index({self._storage.location!r}, {len(self):,} documents, router {self.settings.router})"

    @classmethod
    def create(
        cls,
        path: Path | Storage,
        *,
        model: str | None = None,
        router: str | None = None,
        fields: Mapping[str, Field | Mapping[str, Any] | int] | None = None,
        fingerprint: str | None = None,
        tau: float | None = None,
        analyser: str = "english",
        k1: float = 0.9,
        b: float = 0.4,
        memory: int = DEFAULT_MEMORY,
        overwrite: bool = False,
        build: Build | None = None,
    ) -> Self:
        """A new, empty index: for text, or with `fields` for given vectors.

        `fields` names a `lexical` and/or a `semantic` field, each a dimension or a `Field`; such an index needs the
        `fingerprint` of whatever made the vectors, so that nobody mixes two models.
        """
        if fields is None:
            settings = _text_settings(model, router, analyser, k1, b)
        else:
            settings = _vector_settings(fields, router, fingerprint, tau)
        storage = _storage(path)
        create_index(storage, settings, overwrite, build)
        return cls(storage, memory)

    @classmethod
    def open(cls, path: Path | Storage, *, memory: int = DEFAULT_MEMORY) -> Self:
        """The newest generation of an existing index."""
        return cls(_storage(path), memory)

    # -- changes -----------------------------------------------------------------------------------------------------

    def add(self, documents: Iterable[Document | Mapping[str, Any]]) -> int:
        """Add documents from a list or a stream; an id that is there already is replaced. How many were taken in.

        A document that is refused raises InputError; those before it wait for `commit` or `rollback`. After any other
        failure nothing waits."""
        self._writable()
        if isinstance(documents, (str, bytes, Mapping, Document)) or not isinstance(documents, Iterable):
            raise UsageError("add takes several documents: put a single one into a list")
        return self._writer.add(_checked(item) for item in documents)

    def add_vectors(self, given: Any, *, fingerprint: str | None = None) -> int:
        """Add documents with vectors: mappings with `id`, `keys`, `weights`, `vectors`, `semantic`, `text`, …;
        or one mapping of arrays for many (`ids`, `offsets`, …), an `.npz` file of such arrays, or a `VectorBatch`."""
        self._writable()
        settings = self._writer.settings
        if settings.router == "bm25":
            raise UsageError("this index holds text: vectors need one of their own, made with fields=… or from an .npz")
        if fingerprint is not None and fingerprint != settings.fingerprint:
            raise InputError(f"vectors of {fingerprint!r} do not belong into an index of {settings.fingerprint!r}")
        return self._writer.add_vectors([given] if isinstance(given, VectorBatch) else batches(given, settings))

    def delete(self, ids: Iterable[str]) -> int:
        """Delete documents by id; unknown ids are passed over. How many there were."""
        self._writable()
        wanted = [_known_id(id) for id in ([ids] if isinstance(ids, str) else ids)]
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

    def rollback(self) -> None:
        """Drop every change that was not committed."""
        self._writer.rollback()

    # -- reading -----------------------------------------------------------------------------------------------------

    def searcher(self, *, threads: int | None = None, engine: str = "native") -> Searcher:
        """A searcher over the last committed generation; commits after this do not change what it finds."""
        return Searcher(self._writer.snapshot, threads, engine)

    def refresh(self) -> Self:
        """See what other processes have committed since."""
        self._writer.refresh()
        return self

    def get(self, id: str) -> Document | None:
        """The committed document with this id."""
        known = _known_id(id)
        return None if known is None else self._writer.snapshot.get(known)

    def __len__(self) -> int:
        return len(self._writer.snapshot)

    def __contains__(self, id: object) -> bool:
        known = _known_id(id) if isinstance(id, str | int) else None
        return known is not None and bool(self._writer.snapshot.locate([known]))

    @property
    def settings(self) -> Settings:
        return self._writer.settings

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

    def tally(self, what: str, how_many: int) -> None:
        """Add to a running figure shown by `stats`, as documents skipped."""
        self._writer.count(what, how_many)

    # -- end ---------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """End writing: changes that were not committed are dropped, and said so in the log. Searchers go on."""
        if self._writer.changed:
            logging.getLogger("citadel").warning(
                "%s: closed with changes that were not committed", self._storage.location
            )
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
        self.close()


def _storage(path: Path | Storage) -> Storage:
    if path is None or isinstance(path, (int, bytes)) or path == "":
        raise UsageError(f"an index is a folder: give its path, not {path!r}")
    return FolderStorage(path) if isinstance(path, (str, os.PathLike)) else path


def _known_id(id: object) -> str | None:
    """An id as `add` would have stored it; None for a text that no document can have."""
    if isinstance(id, int) and not isinstance(id, bool):
        return str(id)
    if not isinstance(id, str):
        raise UsageError(f"a document's id is a text or a whole number, not {type(id).__name__}")
    return id if id.isascii() or not any("\ud800" <= letter <= "\udfff" for letter in id) else None


def _checked(item: Document | Mapping[str, Any]) -> Document:
    if isinstance(item, Document):
        return check_document(item)
    if not isinstance(item, Mapping):
        raise InputError(f"a document is a Document or a dict with id and text, not {type(item).__name__}")
    return make_document(item)


def _text_settings(model: str | None, router: str | None, analyser: str, k1: float, b: float) -> Settings:
    if model not in _TEXT_MODELS:
        raise UsageError(f"model {model!r} cannot be loaded: this version encodes text with bm25 only; leave model out")
    if router not in (None, "bm25"):
        raise UsageError(f"router {router!r} needs vectors: create the index with fields=… and use add_vectors")
    from citadel.routing import get_router

    get_router("bm25", k1=k1, b=b)  # refuses parameters out of range
    return Settings("bm25", get_analyser(analyser).fingerprint, analyser=analyser, k1=k1, b=b)


def _vector_settings(
    fields: Mapping[str, Field | Mapping[str, Any] | int],
    router: str | None,
    fingerprint: str | None,
    tau: float | None,
) -> Settings:
    if unknown := set(fields) - {"lexical", "semantic"}:
        raise UsageError(f"unknown field {min(unknown)!r}: an index has a lexical and a semantic field")
    if not fingerprint:
        raise UsageError("an index of given vectors needs fingerprint=…, a name for the model that made them")
    lexical, semantic = (_field(fields[name]) if name in fields else None for name in ("lexical", "semantic"))
    if router is None:
        router = "dynamic" if lexical else "none"
    if router == "bm25" or (router == "none") != (lexical is None):
        raise UsageError(f"router {router!r} does not go with the fields {', '.join(fields) or 'given'}")
    if lexical is not None and (lexical.dimension == 0) != (router == "sparse"):
        raise UsageError(
            f"router {router!r} with a lexical field of dimension {lexical.dimension}: only sparse has dimension 0"
        )
    if tau is not None and not (router == "dynamic" and 0 <= tau < 5.1):
        raise UsageError(f"τ = {tau:g} cannot be used: it is a number from 0 to 5.1, for the dynamic router only")
    return Settings(router, fingerprint, lexical, semantic, tau or 0.0)


def _field(given: Field | Mapping[str, Any] | int) -> Field:
    if isinstance(given, Field):
        return given
    if isinstance(given, int):
        return Field(given)
    try:
        return Field(**given)
    except TypeError as error:
        raise UsageError(f"a field is a dimension or has dimension and codec, not {given!r}") from error
