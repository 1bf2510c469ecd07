"""LangChain: `CitadelVectorStore` and `CitadelRetriever`."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any, Self

from citadel.errors import UsageError
from citadel.integrations import MissingPackageError
from citadel.integrations.store import AnyIndex, Store, new_ids, relevance
from citadel.types import Document as Stored
from citadel.types import Hit

try:
    from langchain_core.callbacks import AsyncCallbackManagerForRetrieverRun, CallbackManagerForRetrieverRun
    from langchain_core.documents import Document
    from langchain_core.embeddings import Embeddings
    from langchain_core.retrievers import BaseRetriever
    from langchain_core.vectorstores import VectorStore
    from pydantic import ConfigDict, PrivateAttr
except ImportError as error:
    raise MissingPackageError("langchain", error) from None

_NO_VECTOR = "a text has many vectors here: search with text"


class CitadelVectorStore(VectorStore):
    """A vector store over an index, which encodes text itself, so that no embeddings are needed.

    `index` is an Index or the path of one; a missing index is created with `options`, those of
    `Index.create`. Filters are citadel's: `{"year": {"$gte": 1900}}`.

    >>> import tempfile
    >>> store = CitadelVectorStore(tempfile.mkdtemp(), model="bm25")
    >>> store.add_documents([Document("E = mc²", id="d1", metadata={"year": 1905})])
    ['d1']
    >>> [document.id for document in store.similarity_search("mc²", filter={"year": {"$gte": 1900}})]
    ['d1']
    """

    def __init__(self, index: AnyIndex, **options: Any) -> None:
        self._store = Store(index, **options)

    @classmethod
    def from_texts(
        cls,
        texts: list[str],
        embedding: Embeddings | None = None,
        metadatas: list[dict[str, Any]] | None = None,
        *,
        ids: list[str] | None = None,
        index: AnyIndex | None = None,
        **options: Any,
    ) -> Self:
        """Open or create an index and add texts. `embedding` is not used."""
        if index is None:
            raise UsageError("from_texts needs index=PATH: an index is a folder")
        store = cls(index, **options)
        store.add_texts(texts, metadatas, ids=ids)
        return store

    def add_texts(
        self,
        texts: Iterable[str],
        metadatas: list[dict[str, Any]] | None = None,
        *,
        ids: Sequence[str | None] | None = None,
        **kwargs: Any,
    ) -> list[str]:
        """Add texts, replacing those with known ids, and return their ids."""
        given = list(texts)
        known, fields = new_ids(ids, len(given)), metadatas or [{} for _ in given]
        if len(fields) != len(given):
            raise UsageError(
                f"{len(fields):,} metadatas for {len(given):,} texts: give one per text, or none"
            )
        rows = zip(known, given, fields, strict=True)
        self._store.write([Stored(id, text, metadata=metadata) for id, text, metadata in rows])
        return known

    def delete(self, ids: list[str] | None = None, **kwargs: Any) -> bool:
        """Delete documents by id; unknown ids are ignored."""
        if ids is None:
            raise UsageError("delete takes ids; to delete everything, remove the folder of the index")
        self._store.delete(ids)
        return True

    def get_by_ids(self, ids: Sequence[str], /) -> list[Document]:
        """The documents with these ids; unknown ids are left out."""
        return [_document(stored) for stored in self._store.get(ids)]

    def similarity_search(
        self, query: str, k: int = 4, *, filter: dict[str, Any] | None = None, **kwargs: Any
    ) -> list[Document]:
        """The best k documents for a text that match the filter."""
        return [_document(hit.document) for hit in self._store.search(query, k, filter)]

    def similarity_search_with_score(
        self, query: str, k: int = 4, *, filter: dict[str, Any] | None = None, **kwargs: Any
    ) -> list[tuple[Document, float]]:
        """The best k documents with the scores of the engine; higher is better."""
        return [(_document(hit.document), hit.score) for hit in self._store.search(query, k, filter)]

    def _similarity_search_with_relevance_scores(
        self, query: str, k: int = 4, *, filter: dict[str, Any] | None = None, **kwargs: Any
    ) -> list[tuple[Document, float]]:
        return [(_document(hit.document), relevance(hit)) for hit in self._store.search(query, k, filter)]

    def similarity_search_by_vector(
        self, embedding: list[float], k: int = 4, **kwargs: Any
    ) -> list[Document]:
        """Raise UsageError: a query is text."""
        raise UsageError(f"similarity_search_by_vector: {_NO_VECTOR}")

    def max_marginal_relevance_search(
        self, query: str, k: int = 4, fetch_k: int = 20, lambda_mult: float = 0.5, **kwargs: Any
    ) -> list[Document]:
        """Raise UsageError: diversity would need one vector per text."""
        raise UsageError(f"max_marginal_relevance_search: {_NO_VECTOR}, with search_type='similarity'")


class CitadelRetriever(BaseRetriever):
    """A retriever over an existing index.

    With `passages`, the text of a result is the passage that matched best instead of the whole document; its
    offsets are in the metadata as `passage_start` and `passage_end`.

    >>> import citadel, tempfile
    >>> with citadel.Index.create(tempfile.mkdtemp(), model="bm25") as index:
    ...     added = index.add([{"id": "d1", "text": "E = mc²"}])
    ...     CitadelRetriever(index=index.commit(), k=3).invoke("mc²")[0].page_content
    'E = mc²'
    """

    model_config = ConfigDict(arbitrary_types_allowed=True)

    index: Any  # an Index or the path of one
    k: int = 10
    filter: dict[str, Any] | None = None
    min_relevance: float = 0.0
    passages: bool = False
    _store: Store = PrivateAttr()

    def model_post_init(self, context: Any, /) -> None:
        """Open the index."""
        self._store = Store(self.index, create=False)

    def _get_relevant_documents(
        self,
        query: str,
        *,
        run_manager: CallbackManagerForRetrieverRun,
        k: int | None = None,
        filter: dict[str, Any] | None = None,
    ) -> list[Document]:
        return self._retrieve(query, k, filter)

    async def _aget_relevant_documents(
        self,
        query: str,
        *,
        run_manager: AsyncCallbackManagerForRetrieverRun,
        k: int | None = None,
        filter: dict[str, Any] | None = None,
    ) -> list[Document]:
        return await asyncio.to_thread(self._retrieve, query, k, filter)

    def _retrieve(self, query: str, k: int | None, filter: dict[str, Any] | None) -> list[Document]:
        hits = self._store.search(
            query, self.k if k is None else k, self.filter if filter is None else filter
        )
        relevant = [hit for hit in hits if relevance(hit) >= self.min_relevance]
        return [_passage(hit) if self.passages else _document(hit.document) for hit in relevant]


def _passage(hit: Hit) -> Document:
    """The best passage of a hit as LangChain's document."""
    whole, best = _document(hit.document), hit.passage
    offsets = {"passage_start": best.start, "passage_end": best.end}
    return Document(best.text, id=whole.id, metadata={**whole.metadata, **offsets})


def _document(stored: Stored) -> Document:
    """A stored document as LangChain's; a title becomes metadata."""
    title = {"title": stored.title} if stored.title else {}
    return Document(stored.text, id=stored.id, metadata={**title, **stored.metadata})
