"""LangChain's own suites, and what they leave open: filters, scores, titles, errors."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import citadel

pytest.importorskip(
    "langchain_core", reason="langchain-core is not installed: pip install 'citadel-ir[langchain]'"
)
pytest.importorskip("langchain_tests", reason="langchain-tests is not installed")

from langchain_core.documents import Document
from langchain_core.vectorstores import VectorStore
from langchain_tests.integration_tests import RetrieversIntegrationTests, VectorStoreIntegrationTests

from citadel.integrations.langchain import CitadelRetriever, CitadelVectorStore

MODEL = Path(__file__).parents[2] / "models" / "small-en"
TEXTS = ["Einstein proposed relativity", "Darwin proposed evolution", "Curie isolated radium", "Rome"]


class TestVectorStore(VectorStoreIntegrationTests):
    @pytest.fixture
    def vectorstore(self, tmp_path: Path) -> VectorStore:
        return CitadelVectorStore(tmp_path / "idx", model=MODEL)


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> citadel.Index:
    index = citadel.Index.create(tmp_path_factory.mktemp("langchain") / "idx", model=MODEL)
    index.add({"id": f"d{n}", "text": text, "n": n} for n, text in enumerate(TEXTS))
    return index.commit()


class TestRetriever(RetrieversIntegrationTests):
    @pytest.fixture(autouse=True)
    def _index(self, index: citadel.Index) -> None:
        self.index = index

    @property
    def retriever_constructor(self) -> type[CitadelRetriever]:
        return CitadelRetriever

    @property
    def retriever_constructor_params(self) -> dict[str, Any]:
        return {"index": self.index}

    @property
    def retriever_query_example(self) -> str:
        return "who proposed relativity"


def test_filters_and_scores(index: citadel.Index) -> None:
    store = CitadelVectorStore(index)
    wanted = {"n": {"$gte": 1}, "$not": {"n": {"$in": [3]}}}
    assert {document.id for document in store.similarity_search("who", k=9, filter=wanted)} == {"d1", "d2"}
    scored = store.similarity_search_with_relevance_scores("who proposed relativity", k=4)
    values = [value for _, value in scored]
    assert scored[0][0].id == "d0"
    assert values == sorted(values, reverse=True) and all(0 <= value <= 1 for value in values)
    above = store.similarity_search_with_relevance_scores(
        "who proposed relativity", score_threshold=values[0]
    )
    assert [document.id for document, _ in above] == ["d0"]


def test_asynchronous_calls_agree(index: citadel.Index) -> None:
    store, retriever = CitadelVectorStore(index), CitadelRetriever(index=index, k=2, filter={"n": {"$lt": 2}})

    async def ask() -> tuple[list[Document], list[Document]]:
        return await store.asimilarity_search("radium", k=2), await retriever.ainvoke("proposed")

    found, retrieved = asyncio.run(ask())
    assert found == store.similarity_search("radium", k=2)
    assert retrieved == retriever.invoke("proposed")
    assert {document.id for document in retrieved} == {"d0", "d1"}


def test_retriever_of_the_store(index: citadel.Index) -> None:
    retriever = CitadelVectorStore(index).as_retriever(search_kwargs={"k": 1, "filter": {"n": 2}})
    assert [document.id for document in retriever.invoke("relativity")] == ["d2"]


def test_min_relevance_leaves_out_weak_hits(index: citadel.Index) -> None:
    assert len(CitadelRetriever(index=index).invoke("relativity")) == 4
    assert CitadelRetriever(index=index, min_relevance=1.0).invoke("relativity") == []


def test_metadata_may_use_any_name(tmp_path: Path) -> None:
    store = CitadelVectorStore(tmp_path / "idx", model="bm25")
    fields = {"title": "T", "text": "x", "id": 7, "nested": {"a": [1, None]}}
    [id] = store.add_texts(["relativity"], [fields])
    assert store.get_by_ids([id])[0].metadata == fields


def test_from_texts_opens_the_same_index(tmp_path: Path) -> None:
    for n, text in enumerate(TEXTS):
        CitadelVectorStore.from_texts([text], index=tmp_path / "idx", model="bm25", ids=[f"d{n}"])
    assert len(CitadelVectorStore(tmp_path / "idx").similarity_search("proposed")) == 2


@pytest.mark.parametrize(
    "call",
    [
        lambda store: store.similarity_search_by_vector([0.0]),
        lambda store: store.max_marginal_relevance_search("x"),
        lambda store: store.delete(),
        lambda store: store.add_texts(["x"], ids=["a", "b"]),
        lambda store: store.add_texts(["x"], [{}, {}]),
        lambda store: store.similarity_search("x", filter={"n": {"$near": 1}}),
        lambda store: store.similarity_search("x", filter=lambda document: True),
        lambda store: CitadelVectorStore.from_texts(["x"]),
        lambda store: CitadelVectorStore(store._store.index, model="bm25"),
    ],
)
def test_errors_are_typed(index: citadel.Index, call: Any) -> None:
    with pytest.raises(citadel.UsageError):
        call(CitadelVectorStore(index))


def test_refused_document_leaves_nothing_behind(tmp_path: Path) -> None:
    store = CitadelVectorStore(tmp_path / "idx", model="bm25")
    with pytest.raises(citadel.InputError):
        store.add_texts(["a", "b"], [{}, {"x": float("nan")}])
    store.add_texts(["c"], ids=["c"])
    assert len(store._store.index) == 1


def test_retriever_of_a_missing_index_creates_nothing(tmp_path: Path) -> None:
    with pytest.raises(citadel.IndexNotFoundError):
        CitadelRetriever(index=tmp_path / "misspelt")
    assert list(tmp_path.iterdir()) == []


def test_passages_of_long_documents(tmp_path: Path) -> None:
    store = CitadelVectorStore(tmp_path / "idx", model=MODEL, chunk_tokens=64, chunk_overlap=8)
    text = "Bread dough rises. " * 150 + "Einstein proposed relativity. " + "Yeast is a fungus. " * 150
    store.add_texts([text], ids=["long"])
    [whole] = CitadelRetriever(index=tmp_path / "idx").invoke("who proposed relativity")
    [part] = CitadelRetriever(index=tmp_path / "idx", passages=True).invoke("who proposed relativity")
    start, end = part.metadata["passage_start"], part.metadata["passage_end"]
    assert whole.page_content == text and len(part.page_content) < len(text) / 4
    assert "Einstein" in part.page_content and text[start:end] == part.page_content
