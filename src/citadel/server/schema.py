"""Request and response models. FastAPI generates the OpenAPI document from them."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Protocol, TypeVar

from pydantic import AfterValidator, ConfigDict, Field, model_validator

from citadel.server.base_schema import RequestModel, ResponseModel, example
from citadel.server.filter_schema import MAX_FACETS, FacetValue, FieldName, FilterObject
from citadel.server.ledger import TOKEN_PATTERN

SemanticMode = Literal["auto", "exact", "graph", "rerank", "off"]
SearchMode = Annotated[
    Literal["model", "bm25", "hybrid"],
    Field(description="which lists of an index built with --hybrid are searched"),
]
FusionMethod = Annotated[
    Literal["linear", "rrf"] | None, Field(description="mode hybrid: how scores are fused; linear by default")
]
Weights = Annotated[
    list[float] | None,
    Field(min_length=2, max_length=2, description="mode hybrid: weights of model and BM25"),
]


def _not_blank(text: str) -> str:
    if not text.strip():
        raise ValueError("the query is empty: send one word or more")
    return text


QueryText = Annotated[str, AfterValidator(_not_blank), Field(json_schema_extra={"pattern": r"\S"})]


# ---- search ------------------------------------------------------------------------------------------------


class QueryVectors(RequestModel):
    """A query as vectors: n keys, n weights, n token vectors, and the semantic vector."""

    keys: list[int] | None = Field(None, description="n keys, 0 to 2³² − 1")
    weights: list[float] | None = Field(None, description="n weights; 1 each by default")
    vectors: list[list[float]] | None = Field(None, description="n vectors of the index's dimension")
    semantic: list[float] | None = Field(None, description="the semantic vector, if the index has that field")

    @property
    def num_tokens(self) -> int:
        """The length of the longest list."""
        return max(len(part or ()) for part in (self.keys, self.weights, self.vectors))


class SearchOptions(RequestModel):
    """Options of a search, for one query or a batch."""

    k: int = Field(10, ge=0, description="hits per query")
    filter: FilterObject | None = None
    offset: int = Field(0, ge=0, description="leave out this many of the first hits")
    min_score: float | None = Field(None, description="leave out hits with a lower score")
    min_relevance: float | None = Field(
        None, ge=0, le=1, description="leave out hits with a lower relevance; for text queries"
    )
    group_by: FieldName | None = Field(
        None, description="return only the best document of each value of this metadata field"
    )
    mode: SearchMode = "model"
    fusion: FusionMethod = None
    weights: Weights = None
    semantic_mode: SemanticMode = Field("auto", description="how semantic vectors are used")
    ef: int | None = Field(
        None, ge=1, le=100_000, description="documents that the mode graph scores exactly; 2 k by default"
    )
    effort: float | None = Field(
        None, ge=0, le=1, description="instead of ef: 0.5 is the default, more finds more and takes longer"
    )
    tau: float | None = Field(
        None, ge=0, description="ignore document weights up to this threshold; at least the index's own τ"
    )
    documents: bool = Field(True, description="return title, text and metadata of each hit")
    passages: bool = Field(False, description="return the other passages of long documents, too")
    deadline_ms: int | None = Field(None, ge=100, description="a deadline shorter than the server's")


class SearchRequest(SearchOptions):
    """One query: a text or vectors."""

    model_config = ConfigDict(
        json_schema_extra=example(
            query="who proposed relativity", k=3, filter={"year": {"$gte": 1900}}, facets=["year"]
        )
    )

    query: QueryText | None = None
    vectors: QueryVectors | None = None
    explain: bool = Field(False, description="return an explanation with each hit")
    facets: list[FieldName] = Field(
        [], max_length=MAX_FACETS, description="metadata fields whose values are counted"
    )

    @model_validator(mode="after")
    def _one_query(self) -> SearchRequest:
        return _require_one(self)


class BatchQuery(RequestModel):
    """One query of a batch: a text or vectors."""

    id: str | None = Field(None, description="its position, 1, 2, …, by default")
    query: QueryText | None = None
    vectors: QueryVectors | None = None

    @model_validator(mode="after")
    def _one_query(self) -> BatchQuery:
        return _require_one(self)


class BatchRequest(SearchOptions):
    """Several queries with the same options."""

    model_config = ConfigDict(
        json_schema_extra=example(
            queries=[{"id": "q1", "query": "relativity"}, {"id": "q2", "query": "evolution"}], k=3
        )
    )

    queries: list[BatchQuery] = Field(min_length=1)


Query = TypeVar("Query", SearchRequest, BatchQuery)


def _require_one(request: Query) -> Query:
    if (request.query is None) == (request.vectors is None):
        raise ValueError("give either query or vectors")
    return request


class PassageModel(ResponseModel):
    """A passage of a long document."""

    text: str
    start: int = Field(description="its first character in the document's text")
    end: int = Field(description="the character after its last")
    score: float


class PartModel(ResponseModel):
    """One part of the score of a hit in the mode hybrid."""

    name: Literal["model", "bm25"]
    score: float | None = Field(description="null if the document is not among the candidates of this part")
    rank: int | None
    gain: float = Field(description="what it adds to the hit's score")


class HitModel(ResponseModel):
    """A ranked document."""

    rank: int
    id: str
    score: float
    relevance: float | None = Field(None, description="from 0 to 1, of models with a calibration")
    parts: list[PartModel] | None = Field(None, description="in the mode hybrid")
    title: str | None = None
    text: str | None = None
    text_cut: bool | None = Field(
        None, description="true if title or text is cut; GET /v1/documents returns the whole"
    )
    metadata: dict[str, Any] | None = None
    passage: PassageModel | None = Field(None, description="of a document longer than the model reads")
    passages: list[PassageModel] | None = Field(None, description="its other passages, if requested")
    explanation: dict[str, Any] | None = None


class SearchTimings(ResponseModel):
    """Time per stage in milliseconds."""

    queue_ms: float
    encode_ms: float
    scan_ms: float
    documents_ms: float
    explain_ms: float
    total_ms: float


class SearchSummary(ResponseModel):
    """Fields that every search response has."""

    generation: int = Field(description="the generation that was searched")
    matching: int = Field(description="documents that match the filter; all documents without one")
    unknown_fields: list[str] | None = Field(
        None, description="fields of filter, facets and group_by that no document has, if there are any"
    )
    tau: float = Field(description="the τ in use")
    dot_products: int
    complete: bool | None = Field(
        None, description="of an index served on a cluster: whether all shards answered in time"
    )
    shards: str | None = Field(None, description='how many shards answered, such as "7/8"')
    timings: SearchTimings


class SearchResponse(SearchSummary):
    """The hits of one query, best first."""

    query: str | None
    query_cut: bool = Field(
        description="whether the query is longer than the model reads, so that its end is ignored"
    )
    hits: list[HitModel]
    facets: dict[str, list[FacetValue]] | None = Field(
        None, description="the most frequent values of each requested field, over all matching documents"
    )


class BatchResult(ResponseModel):
    """The hits of one query of a batch."""

    query_id: str
    query: str | None
    query_cut: bool = Field(
        description="whether the query is longer than the model reads, so that its end is ignored"
    )
    hits: list[HitModel]


class BatchResponse(SearchSummary):
    """The results of a batch, in the order of its queries."""

    results: list[BatchResult]


# ---- explain -----------------------------------------------------------------------------------------------


class ExplainRequest(RequestModel):
    """A query and the document to explain."""

    model_config = ConfigDict(json_schema_extra=example(query="who proposed relativity", id="d1"))

    query: QueryText
    id: str = Field(description="id of the document")
    tau: float | None = Field(None, ge=0)
    semantic_mode: SemanticMode = "auto"
    mode: SearchMode = "model"
    fusion: FusionMethod = None
    weights: Weights = None


class TextRequest(RequestModel):
    """A text to explain without an index lookup."""

    model_config = ConfigDict(
        json_schema_extra=example(text="Einstein proposed relativity.", side="document")
    )

    text: str
    side: Literal["document", "query"] = "document"
    tau: float | None = Field(None, ge=0)


class ExplainTimings(ResponseModel):
    """Time in milliseconds."""

    total_ms: float


class ExplainResponse(ResponseModel):
    """An explanation in the JSON of docs/reference/explanation.md."""

    explanation: dict[str, Any]
    generation: int
    timings: ExplainTimings


# ---- documents ---------------------------------------------------------------------------------------------


class DocumentModel(ResponseModel):
    """A document as it was added."""

    id: str
    title: str
    text: str
    metadata: dict[str, Any]


_DOCUMENT: dict[str, Any] = {
    "type": "object",
    "properties": {
        "id": {"anyOf": [{"type": "string", "minLength": 1, "maxLength": 512}, {"type": "integer"}]},
        "title": {"type": ["string", "null"]},
        "text": {"type": ["string", "null"]},
    },
    "anyOf": [{"required": ["text"]}, {"required": ["title"]}],
    "description": "a text, a title or both; without an id one is generated; all other fields are metadata",
}


ChangesToken = Annotated[
    str, Field(pattern=TOKEN_PATTERN, description="`changes` from the response to an add or a delete")
]


class ChangeRequest(RequestModel):
    """Options of every change."""

    commit: bool = Field(False, description="commit in the same request")
    changes: list[ChangesToken] = Field(
        [], max_length=1000, description="earlier changes that must not be lost"
    )


class AddRequest(ChangeRequest):
    """Documents to add; an existing id is replaced."""

    model_config = ConfigDict(
        json_schema_extra=example(
            documents=[{"id": "d9", "title": "Gravity", "text": "Newton proposed gravity.", "year": 1687}],
            commit=True,
        )
    )

    documents: list[dict[str, Any]] = Field(min_length=1, json_schema_extra={"items": _DOCUMENT})


class Choice(Protocol):
    """A request that names documents by id or by filter."""

    @property
    def ids(self) -> list[str] | None: ...
    @property
    def filter(self) -> dict[str, Any] | None: ...


ChoiceRequest = TypeVar("ChoiceRequest", bound=Choice)


def require_ids_or_filter(request: ChoiceRequest) -> ChoiceRequest:
    """Refuse a request with both or neither."""
    if (request.ids is None) == (request.filter is None):
        raise ValueError("give either ids or a filter")
    return request


class DeleteRequest(ChangeRequest):
    """Documents to delete, by id or by filter; unknown ids are ignored."""

    model_config = ConfigDict(json_schema_extra=example(ids=["d9"]))

    ids: list[str] | None = Field(None, min_length=1)
    filter: FilterObject | None = Field(
        None, description="a filter with at least one condition, on committed documents"
    )

    @model_validator(mode="after")
    def _one_choice(self) -> DeleteRequest:
        return require_ids_or_filter(self)


class CommitRequest(RequestModel):
    """The changes that must be durable when the commit returns."""

    model_config = ConfigDict(json_schema_extra=example())

    changes: ChangesToken | Annotated[list[ChangesToken], Field(max_length=1000)] | None = Field(
        None, description="one token or several; by default all uncommitted changes"
    )

    @property
    def tokens(self) -> list[str]:
        """The tokens as a list."""
        return [self.changes] if isinstance(self.changes, str) else self.changes or []


class EmptyRequest(RequestModel):
    """A request without options."""

    model_config = ConfigDict(json_schema_extra=example())


class WriteResponse(ResponseModel):
    """State of the index after a write."""

    waiting: int = Field(description="uncommitted changes")
    generation: int


class ChangeResponse(WriteResponse):
    """An accepted change."""

    changes: str = Field(description="token of this change, for POST /v1/commit")


class CutDocuments(ResponseModel):
    """Documents longer than the model reads: the end of their text is not searchable."""

    documents: int = Field(description="number of documents that were cut")
    limit: int | None = Field(description="tokens of a document that the model reads; null without a model")


class AddResponse(ChangeResponse):
    """Number of documents added, ids generated for them, and how many of them were cut."""

    added: int
    generated_ids: list[str] = Field(description="ids of the documents that were given without one, in order")
    cut: CutDocuments


class DeleteResponse(ChangeResponse):
    """Number of documents deleted."""

    deleted: int


class RollbackResponse(WriteResponse):
    """Number of changes dropped."""

    dropped: int


class CommitResponse(WriteResponse):
    """The index after a commit."""

    documents: int
