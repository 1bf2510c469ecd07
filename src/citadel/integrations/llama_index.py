"""LlamaIndex: `CitadelVectorStore` and `CitadelRetriever`."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from citadel.api import Index
from citadel.errors import UsageError
from citadel.integrations import MissingPackageError
from citadel.integrations.store import AnyIndex, Store, relevance
from citadel.types import Document as Stored
from citadel.types import Hit

try:
    from llama_index.core.bridge.pydantic import PrivateAttr
    from llama_index.core.retrievers import BaseRetriever
    from llama_index.core.schema import (
        BaseNode,
        ImageNode,
        IndexNode,
        MetadataMode,
        Node,
        NodeWithScore,
        QueryBundle,
        TextNode,
    )
    from llama_index.core.vector_stores import MetadataFilters, VectorStoreQuery, VectorStoreQueryResult
    from llama_index.core.vector_stores.types import BasePydanticVectorStore, VectorStoreQueryMode

    from citadel.integrations.llama_index_filters import Filters, citadel_filter
except ImportError as error:
    raise MissingPackageError("llama-index", error) from None

_NODE, _SOURCE = "_node", "_ref_doc_id"  # metadata fields for what only LlamaIndex knows
_CLASSES: dict[str, type[BaseNode]] = {each.class_name(): each for each in (Node, IndexNode, ImageNode)}
_NO_VECTOR = {
    VectorStoreQueryMode.SVM, VectorStoreQueryMode.LOGISTIC_REGRESSION,
    VectorStoreQueryMode.LINEAR_REGRESSION, VectorStoreQueryMode.MMR,
}  # fmt: skip


class CitadelVectorStore(BasePydanticVectorStore):
    """A vector store over an index, which encodes text itself, so that no embedding model is needed.

    `index` is an Index or the path of one; a missing index is created with `options`, those of
    `Index.create`.

    >>> import tempfile
    >>> store = CitadelVectorStore(tempfile.mkdtemp(), model="bm25")
    >>> store.add([TextNode(id_="n1", text="E = mc²", metadata={"year": 1905})])
    ['n1']
    >>> store.query(VectorStoreQuery(query_str="mc²", similarity_top_k=3)).ids
    ['n1']
    """

    stores_text: bool = True
    is_embedding_query: bool = False  # queries come as text
    _store: Store = PrivateAttr()

    def __init__(self, index: AnyIndex, **options: Any) -> None:
        super().__init__(stores_text=True)
        self._store = Store(index, **options)

    @classmethod
    def class_name(cls) -> str:
        """The name in LlamaIndex's serialized components."""
        return "CitadelVectorStore"

    @property
    def client(self) -> Index:
        """The index."""
        return self._store.index

    def add(self, nodes: Sequence[BaseNode], **kwargs: Any) -> list[str]:
        """Add nodes, replacing those with known ids, and return their ids."""
        self._store.write([_stored(node) for node in nodes])
        return [node.node_id for node in nodes]

    def delete(self, ref_doc_id: str, **delete_kwargs: Any) -> None:
        """Delete all nodes of a source document."""
        self._store.delete_matching({_SOURCE: ref_doc_id})

    def get_nodes(
        self, node_ids: list[str] | None = None, filters: MetadataFilters | None = None
    ) -> list[BaseNode]:
        """The nodes with these ids that match the filters; unknown ids are left out."""
        if node_ids is None:
            return [_node(stored) for stored in self._store.documents(citadel_filter(filters))]
        return [_node(stored) for stored in self._store.get(self._chosen(node_ids, filters))]

    def delete_nodes(
        self,
        node_ids: list[str] | None = None,
        filters: MetadataFilters | None = None,
        **delete_kwargs: Any,
    ) -> None:
        """Delete the nodes with these ids that match the filters."""
        if node_ids is not None:
            self._store.delete(self._chosen(node_ids, filters))
        else:
            self._store.delete_matching(citadel_filter(filters))

    def _chosen(self, node_ids: Sequence[str], filters: Filters) -> list[str]:
        if filters is None:
            return list(node_ids)
        allowed = set(self._store.index.refresh().ids(citadel_filter(filters)))
        return [id for id in node_ids if id in allowed]

    def clear(self) -> None:
        """Delete all nodes."""
        self._store.clear()

    def query(self, query: VectorStoreQuery, **kwargs: Any) -> VectorStoreQueryResult:
        """The best nodes for `query_str` with their relevance, from 0 to 1."""
        if query.mode in _NO_VECTOR:
            raise UsageError(f'query mode "{query.mode.value}" needs one vector per text: use "default"')
        if query.query_str is None:
            raise UsageError("a query is text here: give query_str")
        filter = citadel_filter(query.filters)
        if query.doc_ids:  # VectorStoreIndex sends empty lists for no restriction
            filter = {"$and": [filter, {_SOURCE: {"$in": query.doc_ids}}]}
        hits = self._hits(query.query_str, query.similarity_top_k, filter, query.node_ids)
        return VectorStoreQueryResult(
            nodes=[_node(hit.document) for hit in hits],
            similarities=[relevance(hit) for hit in hits],
            ids=[hit.id for hit in hits],
        )

    def _hits(self, text: str, k: int, filter: dict[str, Any], ids: Sequence[str] | None) -> list[Hit]:
        if not ids:
            return list(self._store.search(text, k, filter))
        chosen = set(ids)  # an id is no metadata: rank all that match, and keep these
        hits = self._store.search(text, self._store.count(), filter)
        return [hits[rank] for rank, id in enumerate(hits.ids) if id in chosen][:k]

    async def async_add(self, nodes: Sequence[BaseNode], **kwargs: Any) -> list[str]:
        """Like `add`, in a thread."""
        return await asyncio.to_thread(self.add, nodes)

    async def adelete(self, ref_doc_id: str, **delete_kwargs: Any) -> None:
        """Like `delete`, in a thread."""
        await asyncio.to_thread(self.delete, ref_doc_id)

    async def aget_nodes(
        self, node_ids: list[str] | None = None, filters: MetadataFilters | None = None
    ) -> list[BaseNode]:
        """Like `get_nodes`, in a thread."""
        return await asyncio.to_thread(self.get_nodes, node_ids, filters)

    async def adelete_nodes(
        self,
        node_ids: list[str] | None = None,
        filters: MetadataFilters | None = None,
        **delete_kwargs: Any,
    ) -> None:
        """Like `delete_nodes`, in a thread."""
        await asyncio.to_thread(self.delete_nodes, node_ids, filters)

    async def aclear(self) -> None:
        """Like `clear`, in a thread."""
        await asyncio.to_thread(self.clear)

    async def aquery(self, query: VectorStoreQuery, **kwargs: Any) -> VectorStoreQueryResult:
        """Like `query`, in a thread."""
        return await asyncio.to_thread(self.query, query)


class CitadelRetriever(BaseRetriever):
    """A retriever over an existing index, made by LlamaIndex or not.

    `filters` are LlamaIndex's or citadel's. With `passages`, the text of a node is the passage that matched
    best instead of the whole document; its offsets are in the metadata as `passage_start` and `passage_end`.

    >>> import citadel, tempfile
    >>> with citadel.Index.create(tempfile.mkdtemp(), model="bm25") as index:
    ...     added = index.add([{"id": "d1", "text": "E = mc²"}])
    ...     CitadelRetriever(index.commit(), k=3).retrieve("mc²")[0].text
    'E = mc²'
    """

    def __init__(
        self,
        index: AnyIndex,
        k: int = 10,
        filters: Filters = None,
        min_relevance: float = 0.0,
        passages: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.k, self.min_relevance, self.passages = k, min_relevance, passages
        self._filter, self._store = citadel_filter(filters), Store(index, create=False)

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        hits = self._store.search(query_bundle.query_str, self.k, self._filter)
        scored = [(hit, relevance(hit)) for hit in hits]
        return [
            NodeWithScore(node=_passage(hit) if self.passages else _node(hit.document), score=score)
            for hit, score in scored
            if score >= self.min_relevance
        ]

    async def _aretrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return await asyncio.to_thread(self._retrieve, query_bundle)


def _stored(node: BaseNode) -> Stored:
    """A node as a stored document; relationships and settings of the node go into one field."""
    if taken := {_NODE, _SOURCE} & node.metadata.keys():
        raise UsageError(
            f"node {node.node_id!r}: the name {min(taken)!r} is taken: rename this metadata field"
        )
    others = node.model_dump(mode="json", exclude={"text", "text_resource", "metadata", "embedding", "id_"})
    metadata = {**node.metadata, _NODE: {"class": node.class_name(), "fields": others}}
    if node.ref_doc_id is not None:
        metadata[_SOURCE] = node.ref_doc_id
    return Stored(node.node_id, node.get_content(MetadataMode.NONE), metadata=metadata)


def _node(stored: Stored) -> BaseNode:
    """A stored document as a node; a title becomes metadata."""
    title = {"title": stored.title} if stored.title else {}
    metadata = {name: value for name, value in stored.metadata.items() if name not in (_NODE, _SOURCE)}
    own = stored.metadata.get(_NODE, {"class": "TextNode", "fields": {}})
    fields = {**own["fields"], "id_": stored.id, "metadata": {**title, **metadata}}
    node = _CLASSES.get(own["class"], TextNode).from_dict(fields)
    node.set_content(stored.text)
    return node


def _passage(hit: Hit) -> BaseNode:
    """The best passage of a hit as a node."""
    node, best = _node(hit.document), hit.passage
    node.set_content(best.text)
    node.metadata.update(passage_start=best.start, passage_end=best.end)
    return node
