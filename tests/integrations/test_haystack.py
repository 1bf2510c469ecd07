"""Haystack's own suites for document stores, the retriever in a pipeline, and errors."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

pytest.importorskip("haystack", reason="haystack-ai is not installed: pip install 'citadel-ir[haystack]'")

from haystack import Document, Pipeline
from haystack.dataclasses import ByteStream
from haystack.document_stores.errors import DuplicateDocumentError
from haystack.document_stores.types import DuplicatePolicy
from haystack.errors import FilterError
from haystack.testing import document_store as suites
from haystack.testing import document_store_async as async_suites

from citadel.integrations.haystack import CitadelDocumentStore, CitadelRetriever


@pytest.fixture
def document_store(tmp_path: Path) -> CitadelDocumentStore:
    return CitadelDocumentStore(str(tmp_path / "idx"), model="bm25")


class TestDocumentStore(
    suites.DocumentStoreBaseExtendedTests,
    suites.CountDocumentsByFilterTest,
    suites.CountUniqueMetadataByFilterTest,
    suites.GetMetadataFieldsInfoTest,
    suites.GetMetadataFieldMinMaxTest,
    suites.GetMetadataFieldUniqueValuesTest,
):
    @pytest.fixture
    def document_store(self, tmp_path: Path) -> CitadelDocumentStore:
        """The suite's own fixture must be overridden in the class."""
        return CitadelDocumentStore(str(tmp_path / "idx"), model="bm25")

    def test_write_documents(self, document_store: CitadelDocumentStore) -> None:  # type: ignore[override]
        """The suite leaves the default policy to the store: a known id is an error."""
        document = Document(content="test doc")
        assert document_store.write_documents([document]) == 1
        with pytest.raises(DuplicateDocumentError):
            document_store.write_documents([document])
        self.assert_documents_are_equal(document_store.filter_documents(), [document])


class TestDocumentStoreAsync(
    async_suites.CountDocumentsAsyncTest,
    async_suites.CountDocumentsByFilterAsyncTest,
    async_suites.CountUniqueMetadataByFilterAsyncTest,
    async_suites.DeleteAllAsyncTest,
    async_suites.DeleteByFilterAsyncTest,
    async_suites.DeleteDocumentsAsyncTest,
    async_suites.FilterDocumentsAsyncTest,
    async_suites.GetMetadataFieldMinMaxAsyncTest,
    async_suites.GetMetadataFieldUniqueValuesAsyncTest,
    async_suites.GetMetadataFieldsInfoAsyncTest,
    async_suites.UpdateByFilterAsyncTest,
    async_suites.WriteDocumentsAsyncTest,
):
    async def test_write_documents_async(self, document_store: CitadelDocumentStore) -> None:
        document = Document(content="test doc")
        assert await document_store.write_documents_async([document]) == 1
        with pytest.raises(DuplicateDocumentError):
            await document_store.write_documents_async([document])


DOCUMENTS = [
    Document(id="d1", content="Einstein proposed relativity", meta={"year": 1905, "title": "T"}),
    Document(id="d2", content="Darwin proposed evolution", meta={"year": 1859}),
    Document(id="d3", blob=ByteStream(b"\x00\xff", mime_type="image/png"), embedding=[0.1, 0.2]),
]


def test_every_suite_is_used() -> None:
    """A suite that a later Haystack adds must be added here too."""
    for module, used in ((suites, TestDocumentStore), (async_suites, TestDocumentStoreAsync)):
        offered = {value for name, value in vars(module).items() if name.endswith(("Test", "Tests"))}
        ours = {suite for suite in offered if suite.__module__ == module.__name__}
        covered = {test for suite in ours for test in vars(suite) if test.startswith("test_")}
        assert covered and covered <= set(dir(used))


def test_documents_come_back_whole(document_store: CitadelDocumentStore) -> None:
    document_store.write_documents(DOCUMENTS)
    assert document_store.filter_documents() == DOCUMENTS
    assert "_haystack" not in document_store.get_metadata_fields_info()


def test_retriever_in_a_pipeline(document_store: CitadelDocumentStore) -> None:
    document_store.write_documents(DOCUMENTS)
    pipeline = Pipeline()
    pipeline.add_component("retriever", CitadelRetriever(document_store, top_k=5))
    restored = Pipeline.from_dict(pipeline.to_dict(), allowed_modules=["citadel.integrations.haystack"])
    [best, second] = restored.run({"retriever": {"query": "who proposed evolution"}})["retriever"][
        "documents"
    ]
    assert (best.id, second.id) == ("d2", "d1") and 0 < second.score < best.score < 1
    recent = {"field": "meta.year", "operator": ">", "value": 1900}
    retriever = restored.get_component("retriever")
    assert isinstance(retriever, CitadelRetriever)
    found = asyncio.run(retriever.run_async("who proposed evolution", filters=recent))
    assert [document.id for document in found["documents"]] == ["d1"]
    assert len(retriever.run("proposed", top_k=1)["documents"]) == 1


def test_policies_within_one_call(document_store: CitadelDocumentStore) -> None:
    twice = [DOCUMENTS[0], DOCUMENTS[0]]
    with pytest.raises(DuplicateDocumentError):
        document_store.write_documents(twice, policy=DuplicatePolicy.FAIL)
    assert document_store.count_documents() == 0
    assert document_store.write_documents(twice, policy=DuplicatePolicy.SKIP) == 1


@pytest.mark.parametrize(
    "filters",
    [
        {"field": "meta.year", "operator": "~", "value": 1},
        {"field": "content", "operator": "==", "value": "x"},
        {"operator": "XOR", "conditions": [{"field": "meta.year", "operator": "==", "value": 1}]},
        {"operator": "AND", "conditions": []},
        {"operator": "AND", "conditions": ["x"]},
        {"field": "meta.year", "operator": ">", "value": "2024-05-17"},
    ],
)
def test_bad_filters(document_store: CitadelDocumentStore, filters: dict) -> None:
    document_store.write_documents(DOCUMENTS)
    with pytest.raises(FilterError):
        document_store.filter_documents(filters)
    with pytest.raises(FilterError):
        document_store.search("relativity", filters=filters)


def test_delete_by_filter_refuses_to_delete_everything(document_store: CitadelDocumentStore) -> None:
    with pytest.raises(FilterError):
        document_store.delete_by_filter({})


def test_taken_name_is_refused(document_store: CitadelDocumentStore) -> None:
    with pytest.raises(ValueError, match="taken"):
        document_store.write_documents([Document(content="x", meta={"_haystack": 1})])
    assert document_store.count_documents() == 0


def test_path_of_a_model_is_written_as_text(tmp_path: Path) -> None:
    model = Path(__file__).parents[2] / "models" / "small-en"
    stored = CitadelDocumentStore(str(tmp_path / "idx"), model=model).to_dict()
    assert stored["init_parameters"]["model"] == str(model)
    assert CitadelDocumentStore.from_dict(stored).count_documents() == 0
