"""The read side of `Index`: committed documents, statistics, and the model that encodes text."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator
from itertools import chain
from typing import TYPE_CHECKING, Any

from citadel.encode.locate import (
    fingerprint,
    index_model,
    query_model,
    require_same_vocabulary,
    require_space,
    space_of,
    text_model,
)
from citadel.encode.shared import shared_encoder
from citadel.errors import InputError, UsageError
from citadel.filter.parse import GivenFilter, given_filter
from citadel.filter.tree import Scalar
from citadel.forks import no_fork
from citadel.index import check as checking
from citadel.index.listing import count_documents, count_values, list_documents, list_fields, list_ids
from citadel.index.manifest import Build
from citadel.index.snapshot import Snapshot
from citadel.index.stats import statistics
from citadel.index.storage import AnyPath, Storage
from citadel.settings import Settings
from citadel.text.parse import AnyId, known_id
from citadel.text.values import plain_value
from citadel.types import Document, RoutedTokens

if TYPE_CHECKING:
    from citadel.encode.calibration import Calibration
    from citadel.encode.encoder import Encoder


class IndexReader(ABC):
    """The methods of `Index` that do not change it."""

    def __init__(
        self,
        storage: Storage,
        memory: int,
        model: AnyPath | None,
        threads: int | None,
        encoder: Encoder | None,
        query_model: AnyPath | None = None,
    ) -> None:
        self._storage, self._memory = storage, memory
        self._loading = threading.Lock()  # only taken inside `no_fork`
        self._model, self._threads = _check_model(self.settings, model), threads
        self._encoder = encoder
        self._query_model = _check_model(self.settings, query_model)
        self._query_encoder: Encoder | None = None

    @property
    @abstractmethod
    def _snapshot(self) -> Snapshot:
        """The current committed generation."""

    def __repr__(self) -> str:
        return f"Index({self._storage.location!r}, {len(self):,} documents, router {self.settings.router})"

    def get(self, id: AnyId) -> Document | None:
        """The committed document with this id, or None.

        >>> import citadel, tempfile
        >>> index = citadel.Index.create(tempfile.mkdtemp(), model="bm25")
        >>> added = index.add([{"id": 7, "text": "E = mc²"}])
        >>> index.commit().get(7), index.get("d9")
        (Document(id='7', text='E = mc²', title='', metadata={}), None)
        """
        known = known_id(id)
        return None if known is None else self._snapshot.get(known)

    def __len__(self) -> int:
        return len(self._snapshot)

    def __contains__(self, id: object) -> bool:
        plain = plain_value(id)
        known = known_id(plain) if isinstance(plain, str | int) and not isinstance(plain, bool) else None
        return known is not None and bool(self._snapshot.locate([known]))

    def count(self, filter: GivenFilter | None = None) -> int:
        """The number of documents, or of those whose metadata match a filter.

        >>> import citadel, tempfile
        >>> index = citadel.Index.create(tempfile.mkdtemp(), model="bm25")
        >>> added = index.add({"id": f"d{year}", "text": "E = mc²", "year": year} for year in (1904, 1905))
        >>> index.commit().count({"year": {"$gt": 1904}})
        1
        """
        return count_documents(self._snapshot, given_filter(filter))

    def ids(self, filter: GivenFilter | None = None) -> Iterator[str]:
        """The ids of all documents, or of those that match a filter, in commit order.

        >>> import citadel, tempfile
        >>> index = citadel.Index.create(tempfile.mkdtemp(), model="bm25")
        >>> added = index.add({"id": f"d{year}", "text": "E = mc²", "year": year} for year in (1904, 1905))
        >>> list(index.commit().ids())
        ['d1904', 'd1905']
        """
        return list_ids(self._snapshot, given_filter(filter))

    def documents(self, filter: GivenFilter | None = None, batch: int = 100) -> Iterator[Document]:
        """All documents, or those that match a filter, in commit order; `batch` are read at a time.

        The index may change meanwhile: the documents are those of the generation at the call.

        >>> import citadel, tempfile
        >>> index = citadel.Index.create(tempfile.mkdtemp(), model="bm25")
        >>> added = index.add({"id": f"d{year}", "text": "E = mc²", "year": year} for year in (1904, 1905))
        >>> [document.id for document in index.commit().documents(filter={"year": 1905})]
        ['d1905']
        """
        if isinstance(batch, bool) or not isinstance(batch, int) or batch < 1:
            raise UsageError(f"batch must be a whole number of 1 or more, not {batch!r}")
        return chain.from_iterable(list_documents(self._snapshot, given_filter(filter), batch))

    def facets(
        self, field: str, filter: GivenFilter | None = None, limit: int | None = 100
    ) -> list[tuple[Scalar, int]]:
        """The values of a metadata field with the number of documents that have each, most frequent first.

        >>> import citadel, tempfile
        >>> index = citadel.Index.create(tempfile.mkdtemp(), model="bm25")
        >>> added = index.add({"id": f"d{year}", "text": "E = mc²", "year": year} for year in (1904, 1905))
        >>> index.commit().facets("year")
        [(1904, 1), (1905, 1)]
        """
        if not isinstance(field, str):
            raise UsageError(f"facets takes the name of a field, not {type(field).__name__}")
        if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 0):
            raise UsageError(f"limit must be a whole number of 0 or more, or None, not {limit!r}")
        return count_values(self._snapshot, field, given_filter(filter), limit)

    def fields(self) -> dict[str, str]:
        """The metadata fields with what they hold, so that filters can be offered for them.

        That is `number`, `boolean`, `string`, `date` (every string is an ISO date), `list` (of strings),
        `nested` or `mixed`. Filters take all but the last two.

        >>> import citadel, tempfile
        >>> index = citadel.Index.create(tempfile.mkdtemp(), model="bm25")
        >>> added = index.add([{"id": "d1", "text": "E = mc²", "year": 1905, "tags": ["physics"]}])
        >>> index.commit().fields()
        {'year': 'number', 'tags': 'list'}
        """
        return list_fields(self._snapshot)

    @property
    def settings(self) -> Settings:
        return self._snapshot.settings

    @property
    def memory(self) -> int:
        """Memory bound in bytes for uncommitted changes and for reading."""
        return self._memory

    @property
    def generation(self) -> int:
        """The number of the committed generation in use."""
        return self._snapshot.manifest.generation

    @property
    def build(self) -> Build | None:
        """Progress of the `citadel index` command that built this index, if any."""
        return self._snapshot.manifest.build

    @property
    def counts(self) -> dict[str, int]:
        """Counters: documents replaced, skipped, cut."""
        return dict(self._snapshot.manifest.counts)

    def stats(self) -> dict[str, Any]:
        """Statistics as printed by `citadel stats`: documents, postings, lists, bytes."""
        return statistics(self._snapshot)

    def check(self, *, deep: bool = False) -> None:
        """Raise CorruptIndexError if the newest generation on disk is damaged; `deep` reads every byte."""
        checking.check(self._storage, deep)

    def encode_query(self, text: str) -> RoutedTokens:
        """Encode a query with the model of the index."""
        if self.settings.model is None:
            raise UsageError(f"this index has no model ({self.settings.router}), so it cannot encode text")
        return self._encode_queries().encode_query(text)

    # -- the model

    @property
    def max_tokens(self) -> int | None:
        """Tokens that the model reads of a document; None without a model."""
        return None if self.settings.model is None else self._encode().config.document_length

    def _encode_queries(self) -> Encoder:
        """The model for queries, loaded on first use."""
        if self._query_model is None:
            return self._encode()
        if self._query_encoder is None:
            with no_fork, self._loading:
                self._query_encoder = self._query_encoder or self._load_query_model()
        return self._query_encoder

    def _load_query_model(self) -> Encoder:
        settings = self.settings
        encoder = shared_encoder(self._query_folder(), settings.tau, self._threads)
        require_space(encoder.config, encoder.space, settings, encoder.folder)
        return encoder

    def _query_folder(self) -> str:
        """Folder of the model for queries; its vocabulary is that of the index's model, if that is here."""
        if self._query_model is None:
            return self._find_model()
        folder = query_model(self._query_model)
        try:
            other = self._find_model()
        except InputError:  # it is not needed for queries
            return folder
        if space_of(other) == space_of(folder):  # otherwise it is refused for its space
            require_same_vocabulary(folder, other)
        return folder

    def _encode(self) -> Encoder:
        """The model of this index, which encodes documents, loaded on first use."""
        if self._encoder is None:
            with no_fork, self._loading:
                self._encoder = self._encoder or self._load_model()
        return self._encoder

    def _load_model(self) -> Encoder:
        settings = self.settings
        encoder = shared_encoder(self._find_model(), settings.tau, self._threads)
        require_space(encoder.config, encoder.space, settings, encoder.folder)
        return encoder

    def _calibration(self) -> Calibration | None:
        """The calibration of the model for queries, if its folder has one."""
        from citadel.encode.calibration import load_calibration

        settings = self.settings
        assert settings.semantic is not None
        encoder = self._query_encoder if self._query_model is not None else self._encoder
        folder = self._query_folder() if encoder is None else encoder.folder
        own = fingerprint(folder) if encoder is None else encoder.fingerprint
        return load_calibration(folder, own, settings.semantic.dimension)

    def require_model(self) -> None:
        """Raise InputError if the model for queries is neither given nor installed."""
        if self._query_model is not None:
            self._encode_queries()
        elif self.settings.model is not None and self._encoder is None:
            self._find_model()

    def _find_model(self) -> str:
        settings = self.settings
        return index_model(self._model, settings.model, settings.fingerprint, self._storage.location)


def _check_model(settings: Settings, model: AnyPath | None) -> AnyPath | None:
    """Check that a model given to `open` is for an index that was built with one."""
    if model is not None and settings.model is None and text_model(model) is not None:
        raise UsageError(f"this index was not built with a model ({settings.router}): leave model out")
    return model
