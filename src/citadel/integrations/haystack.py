"""Haystack: `CitadelDocumentStore` and `CitadelRetriever`."""

from __future__ import annotations

import asyncio
import functools
import os
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from citadel.integrations import MissingPackageError
from citadel.integrations.store import Store, relevance
from citadel.types import Document as Stored

try:
    from haystack import Document, component, default_from_dict, default_to_dict
    from haystack.document_stores.errors import DuplicateDocumentError
    from haystack.document_stores.types import DuplicatePolicy

    from citadel.integrations.haystack_filters import citadel_filter, field_name, with_haystack_errors
except ImportError as error:
    raise MissingPackageError("haystack", error) from None

P = ParamSpec("P")
T = TypeVar("T")
S = TypeVar("S")

Filters = dict[str, Any] | None

_OTHERS = "_haystack"  # metadata field for what only Haystack knows: embeddings, blobs
_TYPES = {"number": "float", "string": "text", "date": "date", "boolean": "boolean", "list": "list"}


def _in_thread(
    method: Callable[Concatenate[S, P], T],
) -> Callable[Concatenate[S, P], Coroutine[Any, Any, T]]:
    """The asynchronous twin of a method."""

    @functools.wraps(method)
    async def call(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await asyncio.to_thread(method, self, *args, **kwargs)

    return call


class CitadelDocumentStore:
    """A document store over an index folder, which is created if missing.

    `options` are those of `Index.create`. Embeddings of documents are stored and returned but not searched:
    the index encodes text itself.

    >>> import tempfile
    >>> store = CitadelDocumentStore(tempfile.mkdtemp(), model="bm25")
    >>> store.write_documents([Document(id="d1", content="E = mc²", meta={"year": 1905})])
    1
    >>> store.filter_documents({"field": "meta.year", "operator": ">", "value": 1900})[0].content
    'E = mc²'
    """

    def __init__(self, path: str, **options: Any) -> None:
        self.path = str(path)
        self._options = {  # in YAML's types
            name: os.fspath(value) if isinstance(value, os.PathLike) else value
            for name, value in options.items()
        }
        self._store = Store(self.path, **options)

    def to_dict(self) -> dict[str, Any]:
        """The path and the options, for pipelines in YAML."""
        return default_to_dict(self, path=self.path, **self._options)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        """Restore a store from `to_dict`."""
        restored: Self = default_from_dict(cls, data)
        return restored

    # -- documents

    def count_documents(self) -> int:
        """The number of documents."""
        return self._store.count()

    def filter_documents(self, filters: Filters = None) -> list[Document]:
        """The documents that match a filter, in the order of writing."""
        wanted = citadel_filter(filters)
        return with_haystack_errors(lambda: [_document(stored) for stored in self._store.documents(wanted)])

    def write_documents(
        self, documents: list[Document], policy: DuplicatePolicy = DuplicatePolicy.NONE
    ) -> int:
        """Write documents and return their number; without a policy, a known id is an error."""
        if not isinstance(documents, list | tuple):
            raise ValueError("write_documents takes a list of documents")
        given = list(documents)
        if wrong := [document for document in given if not isinstance(document, Document)]:
            raise ValueError(f"write_documents takes documents, not {type(wrong[0]).__name__}")
        with self._store.lock:
            chosen = given if policy == DuplicatePolicy.OVERWRITE else self._new(given, policy)
            self._store.write([_stored(document) for document in chosen])
        return len(chosen)

    def _new(self, documents: list[Document], policy: DuplicatePolicy) -> list[Document]:
        """The documents whose ids are new; under the other policies a known id is an error."""
        index = self._store.index.refresh()
        new: dict[str, Document] = {}
        for document in documents:
            if document.id not in new and document.id not in index:
                new[document.id] = document
            elif policy != DuplicatePolicy.SKIP:
                raise DuplicateDocumentError(
                    f"the id {document.id!r} exists: write with DuplicatePolicy.OVERWRITE or SKIP"
                )
        return list(new.values())

    def delete_documents(self, document_ids: list[str]) -> None:
        """Delete documents by id; unknown ids are ignored."""
        self._store.delete(document_ids)

    def delete_all_documents(self, recreate_index: bool = False) -> None:
        """Delete every document; with `recreate_index`, merge too, so that nothing of them stays on disk."""
        with self._store.lock:
            self._store.clear()
            if recreate_index:
                self._store.index.merge()

    def delete_by_filter(self, filters: dict[str, Any]) -> int:
        """Delete the documents that match a filter and return their number."""
        return with_haystack_errors(self._store.delete_matching, citadel_filter(filters))

    def update_by_filter(self, filters: dict[str, Any], meta: dict[str, Any]) -> int:
        """Set fields of the documents that match a filter and return their number."""
        with self._store.lock:
            return with_haystack_errors(self._store.index.update_metadata, citadel_filter(filters), meta)

    # -- metadata

    def count_documents_by_filter(self, filters: dict[str, Any]) -> int:
        """The number of documents that match a filter."""
        return with_haystack_errors(self._store.count, citadel_filter(filters))

    def count_unique_metadata_by_filter(
        self, filters: dict[str, Any], metadata_fields: list[str]
    ) -> dict[str, int]:
        """The number of distinct values of each field."""
        return {
            field_name(field): len(self._distinct(field_name(field), filters)) for field in metadata_fields
        }

    def get_metadata_fields_info(self) -> dict[str, dict[str, str]]:
        """The metadata fields with their types."""
        fields = self._store.index.refresh().fields().items()
        return {name: {"type": _TYPES.get(kind, kind)} for name, kind in fields if name != _OTHERS}

    def get_metadata_field_min_max(self, metadata_field: str) -> dict[str, Any]:
        """The smallest and the largest value of a field; None where no document has it."""
        values = self._distinct(field_name(metadata_field), None)
        return {"min": min(values, default=None), "max": max(values, default=None)}

    def get_metadata_field_unique_values(
        self,
        metadata_field: str,
        search_term: str | None = None,
        from_: int = 0,
        size: int | None = 10,
        filters: Filters = None,
    ) -> tuple[list[Any], int]:
        """A page of the distinct values of a field, and their number.

        Values are in the order of their text; `search_term` keeps those that contain it in any case."""
        term = (search_term or "").casefold()
        values = [
            value
            for value in self._distinct(field_name(metadata_field), filters)
            if term in str(value).casefold()
        ]
        values.sort(key=lambda value: (str(value), type(value).__name__))
        return values[from_ : None if size is None else from_ + size], len(values)

    def _distinct(self, field: str, filters: Filters) -> list[Any]:
        """The values of a field that differ in value or type; a list counts by its members."""
        wanted = citadel_filter(filters)

        def collect() -> list[Any]:
            found: dict[tuple[type, str], Any] = {}
            for document in self._store.documents(wanted):
                value = document.metadata.get(field)
                for each in value if isinstance(value, list) else [value]:
                    if each is not None:
                        found.setdefault((type(each), repr(each)), each)
            return list(found.values())

        return with_haystack_errors(collect)

    # -- search

    def search(self, query: str, top_k: int = 10, filters: Filters = None) -> list[Document]:
        """The best documents for a text, with scores from 0 to 1."""
        hits = with_haystack_errors(self._store.search, query, top_k, citadel_filter(filters))
        return [_document(hit.document, relevance(hit)) for hit in hits]

    count_documents_async = _in_thread(count_documents)
    filter_documents_async = _in_thread(filter_documents)
    write_documents_async = _in_thread(write_documents)
    delete_documents_async = _in_thread(delete_documents)
    delete_all_documents_async = _in_thread(delete_all_documents)
    delete_by_filter_async = _in_thread(delete_by_filter)
    update_by_filter_async = _in_thread(update_by_filter)
    count_documents_by_filter_async = _in_thread(count_documents_by_filter)
    count_unique_metadata_by_filter_async = _in_thread(count_unique_metadata_by_filter)
    get_metadata_fields_info_async = _in_thread(get_metadata_fields_info)
    get_metadata_field_min_max_async = _in_thread(get_metadata_field_min_max)
    get_metadata_field_unique_values_async = _in_thread(get_metadata_field_unique_values)
    search_async = _in_thread(search)


@component
class CitadelRetriever:
    """A component that searches a `CitadelDocumentStore`; filters of a run replace its own."""

    def __init__(
        self, document_store: CitadelDocumentStore, top_k: int = 10, filters: Filters = None
    ) -> None:
        self.document_store, self.top_k, self.filters = document_store, top_k, filters

    def to_dict(self) -> dict[str, Any]:
        """The store and the options, for pipelines in YAML."""
        return default_to_dict(
            self, document_store=self.document_store.to_dict(), top_k=self.top_k, filters=self.filters
        )

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        """Restore a retriever from `to_dict`."""
        given = data["init_parameters"]
        store = given["document_store"]
        if isinstance(store, Mapping):
            store = CitadelDocumentStore.from_dict(dict(store))
        restored: Self = default_from_dict(
            cls, {**data, "init_parameters": {**given, "document_store": store}}
        )
        return restored

    @component.output_types(documents=list[Document])
    def run(self, query: str, filters: Filters = None, top_k: int | None = None) -> dict[str, list[Document]]:
        """The best documents for a text."""
        options = (
            self.top_k if top_k is None else top_k,
            self.filters if filters is None else filters,
        )
        return {"documents": self.document_store.search(query, *options)}

    @component.output_types(documents=list[Document])
    async def run_async(
        self, query: str, filters: Filters = None, top_k: int | None = None
    ) -> dict[str, list[Document]]:
        """Like `run`, in a thread."""
        return await asyncio.to_thread(self.run, query, filters, top_k)


def _stored(document: Document) -> Stored:
    if _OTHERS in document.meta:
        raise ValueError(
            f"document {document.id!r}: the name {_OTHERS!r} is taken; rename this field of meta"
        )
    fields = document.to_dict(flatten=False)
    others = {
        name: value
        for name, value in fields.items()
        if name not in ("id", "meta", "content") and value is not None
    }
    if document.content is None:
        others["content"] = None
    metadata = {**document.meta, **({_OTHERS: others} if others else {})}
    return Stored(document.id, document.content or "", metadata=metadata)


def _document(stored: Stored, score: float | None = None) -> Document:
    """A stored document as Haystack's; a title becomes metadata."""
    title = {"title": stored.title} if stored.title else {}
    meta = {**title, **{name: value for name, value in stored.metadata.items() if name != _OTHERS}}
    fields = {"content": stored.text, **stored.metadata.get(_OTHERS, {}), "id": stored.id, "meta": meta}
    if score is not None:
        fields["score"] = score
    return Document.from_dict(fields)
