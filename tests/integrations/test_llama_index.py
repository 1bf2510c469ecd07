"""The LlamaIndex retriever and vector store, through a query engine with a mock model, and their filters."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import citadel

pytest.importorskip(
    "llama_index.core", reason="llama-index-core is not installed: pip install 'citadel-ir[llama-index]'"
)

from llama_index.core import StorageContext, VectorStoreIndex
from llama_index.core.embeddings import MockEmbedding
from llama_index.core.llms import MockLLM
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.response_synthesizers import ResponseMode
from llama_index.core.schema import IndexNode, NodeRelationship, RelatedNodeInfo, TextNode
from llama_index.core.vector_stores import (
    FilterCondition,
    FilterOperator,
    MetadataFilter,
    MetadataFilters,
    VectorStoreQuery,
)
from llama_index.core.vector_stores.types import VectorStoreQueryMode

from citadel.integrations.llama_index import CitadelRetriever, CitadelVectorStore
from citadel.integrations.llama_index_filters import citadel_filter

MODEL = Path(__file__).parents[2] / "models" / "small-en"


def make_node(id: str, text: str, source: str | None = None, **metadata: Any) -> TextNode:
    node = TextNode(id_=id, text=text, metadata=metadata)
    if source is not None:
        node.relationships[NodeRelationship.SOURCE] = RelatedNodeInfo(node_id=source)
    return node


NODES = [
    make_node("n1", "Einstein proposed relativity.", "einstein", year=1905, tags=["physics"], lang="en"),
    make_node("n2", "Einstein proposed photons.", "einstein", year=1905, tags=["physics", "light"]),
    make_node("n3", "Darwin proposed evolution.", "darwin", year=1859, tags=[]),
    make_node("n4", "Curie isolated radium."),
]


@pytest.fixture
def store(tmp_path: Path) -> CitadelVectorStore:
    store = CitadelVectorStore(tmp_path / "idx", model="bm25")
    assert store.add(NODES) == [node.node_id for node in NODES]
    return store


def search(store: CitadelVectorStore, text: str, k: int = 10, **options: Any) -> list[str]:
    return store.query(VectorStoreQuery(query_str=text, similarity_top_k=k, **options)).ids or []


def filters(*parts: tuple[str, str, Any], condition: str = "and") -> MetadataFilters:
    chosen: list[Any] = [
        MetadataFilter(key=key, operator=FilterOperator(operator), value=value)
        for key, operator, value in parts
    ]
    return MetadataFilters(filters=chosen, condition=FilterCondition(condition))


# -- query engines


def test_retriever_in_a_query_engine(tmp_path: Path) -> None:
    """With the installed model; the mock repeats its prompt, which has the retrieved text."""
    with citadel.Index.create(tmp_path / "idx", model=MODEL) as index:
        index.add({"id": node.node_id, "text": node.text, "title": "T"} for node in NODES)
        index.commit()
    retriever = CitadelRetriever(tmp_path / "idx", k=1)
    engine = RetrieverQueryEngine.from_args(retriever, llm=MockLLM(), response_mode=ResponseMode.COMPACT)
    answer = engine.query("Who proposed relativity?")
    assert "Einstein proposed relativity." in str(answer) and "Darwin" not in str(answer)
    [source] = answer.source_nodes
    assert source.node_id == "n1" and source.metadata == {"title": "T"}
    assert source.score is not None and 0 < source.score < 1
    asynchronous = asyncio.run(engine.aquery("Who proposed relativity?"))
    assert str(asynchronous) == str(answer)


def test_store_in_an_index_with_a_query_engine(tmp_path: Path) -> None:
    store = CitadelVectorStore(tmp_path / "idx", model="bm25")
    context = StorageContext.from_defaults(vector_store=store)
    index = VectorStoreIndex(NODES, storage_context=context, embed_model=MockEmbedding(embed_dim=1))
    engine = index.as_query_engine(
        llm=MockLLM(), similarity_top_k=2, filters=filters(("year", "<", 1900)), response_mode="compact"
    )
    answer = engine.query("Who proposed what?")
    assert "Darwin proposed evolution." in str(answer) and "Einstein" not in str(answer)
    index.delete_ref_doc("darwin")
    assert sorted(node.node_id for node in store.get_nodes()) == ["n1", "n2", "n4"]
    opened = VectorStoreIndex.from_vector_store(store, embed_model=MockEmbedding(embed_dim=1))
    [best] = opened.as_retriever(similarity_top_k=1).retrieve("radium")
    assert best.node_id == "n4"


# -- the store


def test_nodes_come_back_whole(store: CitadelVectorStore) -> None:
    node = TextNode(
        id_="rich",
        text="Rome",
        metadata={"a": 1, "secret": "x"},
        excluded_llm_metadata_keys=["secret"],
        start_char_idx=3,
        relationships={NodeRelationship.NEXT: RelatedNodeInfo(node_id="n1")},
    )
    link = IndexNode(id_="link", text="Paris", index_id="other")
    store.add([node, link])
    assert store.get_nodes(["rich", "unknown", "link"]) == [node, link]
    assert store.get_nodes(["n1"])[0].ref_doc_id == "einstein"
    [found] = store.query(VectorStoreQuery(query_str="Rome")).nodes or []
    assert found == node


def test_known_ids_are_replaced(store: CitadelVectorStore) -> None:
    store.add([make_node("n4", "Pasteur disproved it.")])
    assert search(store, "radium") == [] and search(store, "Pasteur") == ["n4"]


def test_similarities_are_from_0_to_1(store: CitadelVectorStore) -> None:
    result = store.query(VectorStoreQuery(query_str="Einstein proposed relativity", similarity_top_k=3))
    assert result.ids is not None and result.ids[0] == "n1" and result.similarities is not None
    assert result.similarities == sorted(result.similarities, reverse=True)
    assert all(0 < value < 1 for value in result.similarities)


def test_restricted_to_nodes_and_documents(store: CitadelVectorStore) -> None:
    assert search(store, "proposed", doc_ids=["darwin"]) == ["n3"]
    assert search(store, "proposed", doc_ids=["nothing"]) == []
    assert set(search(store, "proposed", node_ids=["n2", "n3", "n4"])) == {"n2", "n3"}
    assert len(search(store, "proposed", k=1, node_ids=["n2", "n3"])) == 1


@pytest.mark.parametrize(
    ("given", "matching"),
    [
        (filters(("year", "==", 1905)), {"n1", "n2"}),
        (filters(("year", "!=", 1905)), {"n3", "n4"}),
        (filters(("year", ">", 1859), ("lang", "==", "en")), {"n1"}),
        (filters(("year", "<=", 1859), ("lang", "==", "en"), condition="or"), {"n1", "n3"}),
        (filters(("year", "==", 1905), ("lang", "==", "en"), condition="not"), {"n3", "n4"}),
        (filters(("year", "in", [1859, 1860])), {"n3"}),
        (filters(("year", "nin", [1905])), {"n3", "n4"}),
        (filters(("tags", "contains", "light")), {"n2"}),
        (filters(("tags", "any", ["light", "physics"])), {"n1", "n2"}),
        (filters(("tags", "all", ["light", "physics"])), {"n2"}),
        (filters(("tags", "is_empty", None)), {"n3", "n4"}),
        (filters(("year", "is_empty", None)), {"n4"}),
        (filters(), {"n1", "n2", "n3", "n4"}),
    ],
)
def test_filters(store: CitadelVectorStore, given: MetadataFilters, matching: set[str]) -> None:
    assert {node.node_id for node in store.get_nodes(filters=given)} == matching
    found = search(store, "einstein darwin curie", filters=given)
    assert set(found) == matching
    outer = MetadataFilters(filters=[given, MetadataFilters(filters=[])])
    assert {node.node_id for node in store.get_nodes(filters=outer)} == matching


def test_delete_nodes(store: CitadelVectorStore) -> None:
    store.delete_nodes(["n1", "n4", "unknown"], filters=filters(("year", "==", 1905)))
    assert [node.node_id for node in store.get_nodes()] == ["n2", "n3", "n4"]
    store.delete_nodes(filters=filters(("year", ">", 0)))
    assert [node.node_id for node in store.get_nodes()] == ["n4"]
    store.clear()
    assert store.get_nodes() == [] and len(store.client) == 0


def test_asynchronous_calls(store: CitadelVectorStore) -> None:
    async def change() -> list[str]:
        await store.async_add([make_node("n5", "Pasteur", "pasteur")])
        query = VectorStoreQuery(query_str="Pasteur Darwin", similarity_top_k=5)
        found = (await store.aquery(query)).ids or []
        await store.adelete("pasteur")
        await store.adelete_nodes(["n1"])
        return [*found, *(node.node_id for node in await store.aget_nodes())]

    assert asyncio.run(change()) == ["n5", "n3", "n2", "n3", "n4"]
    asyncio.run(store.aclear())
    assert store.get_nodes() == []


@pytest.mark.parametrize(
    "query",
    [
        VectorStoreQuery(query_embedding=[1.0]),
        VectorStoreQuery(query_str="x", mode=VectorStoreQueryMode.MMR),
        VectorStoreQuery(query_str="x", filters=filters(("lang", "text_match", "e"))),
        VectorStoreQuery(query_str="x", filters=filters(("tags", "any", "physics"))),
        VectorStoreQuery(query_str="x", filters=filters(("year", ">", "1900"))),
    ],
)
def test_errors_are_typed(store: CitadelVectorStore, query: VectorStoreQuery) -> None:
    with pytest.raises(citadel.UsageError):
        store.query(query)


def test_taken_name_is_refused(store: CitadelVectorStore) -> None:
    with pytest.raises(citadel.UsageError, match="taken"):
        store.add([make_node("n9", "x", _node="y")])
    with pytest.raises(citadel.UsageError):
        store.delete_nodes()  # would delete everything


# -- the retriever


def test_retriever_options(store: CitadelVectorStore, tmp_path: Path) -> None:
    chosen = filters(("year", ">", 1900))
    retriever = CitadelRetriever(store.client, k=1, filters=chosen)
    assert [hit.node_id for hit in retriever.retrieve("evolution relativity")] == ["n1"]
    assert [hit.node_id for hit in asyncio.run(retriever.aretrieve("evolution relativity"))] == ["n1"]
    own = CitadelRetriever(tmp_path / "idx", filters={"year": {"$lt": 1900}})
    assert [hit.node_id for hit in own.retrieve("proposed")] == ["n3"]
    assert CitadelRetriever(tmp_path / "idx", min_relevance=1.0).retrieve("proposed") == []
    with pytest.raises(citadel.IndexNotFoundError):
        CitadelRetriever(tmp_path / "misspelt")


def test_passages_of_long_documents(tmp_path: Path) -> None:
    store = CitadelVectorStore(tmp_path / "idx", model=MODEL, chunk_tokens=64, chunk_overlap=8)
    text = "Bread dough rises. " * 150 + "Einstein proposed relativity. " + "Yeast is a fungus. " * 150
    store.add([make_node("long", text)])
    [hit] = CitadelRetriever(tmp_path / "idx", passages=True).retrieve("who proposed relativity")
    start, end = hit.metadata["passage_start"], hit.metadata["passage_end"]
    assert "Einstein" in hit.text and text[start:end] == hit.text and len(hit.text) < len(text) / 4


def test_condition_not_means_none_of_them() -> None:
    given = filters(("a", "==", 1), ("b", "==", 2), condition="not")
    assert citadel_filter(given) == {"$not": {"$or": [{"a": {"$eq": 1}}, {"b": {"$eq": 2}}]}}
