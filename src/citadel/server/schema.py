"""What requests and answers hold. FastAPI makes the OpenAPI document of these; unknown fields are refused."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, model_validator

from citadel.server.ledger import TOKEN_PATTERN

SemanticMode = Literal["auto", "exact", "rerank", "off"]


def _example(**fields: Any) -> dict[str, Any]:
    return {"examples": [fields]}


class Body(BaseModel):
    """A request: strict, so that "10" is no number and a misspelt field is no silence."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class Answer(BaseModel):
    """An answer; only ever made to be described."""

    model_config = ConfigDict(extra="forbid")


# ---- search ----------------------------------------------------------------------------------------------------------


class QueryVectors(Body):
    """A query given as the vectors of its tokens: n keys, n weights, n vectors, and the pooled vector."""

    keys: list[int] | None = Field(None, description="n keys, 0 to 2³² − 1")
    weights: list[float] | None = Field(None, description="n weights; 1 each when left out")
    vectors: list[list[float]] | None = Field(None, description="n vectors of the index's dimension")
    semantic: list[float] | None = Field(None, description="the semantic vector, if the index has that field")

    @property
    def rows(self) -> int:
        return max(len(part or ()) for part in (self.keys, self.weights, self.vectors))


class Asked(Body):
    """How to search, for one query and for several."""

    k: int = Field(10, ge=0, description="hits a query")
    semantic_mode: SemanticMode = Field("auto", description="how semantic vectors are used")
    tau: float | None = Field(None, ge=0, description="leave out document weights up to this; not below the index's τ")
    documents: bool = Field(True, description="whether hits carry title, text and metadata")
    deadline_ms: int | None = Field(None, ge=100, description="shortens the server's deadline")


class SearchRequest(Asked):
    """One query: a text, or given vectors."""

    model_config = ConfigDict(json_schema_extra=_example(query="who proposed relativity", k=3))

    query: str | None = None
    vectors: QueryVectors | None = None
    explain: bool = Field(False, description="put an explanation into each hit")

    @model_validator(mode="after")
    def _one_query(self) -> SearchRequest:
        return _one_of(self)


class BatchQuery(Body):
    """One query of several."""

    id: str | None = Field(None, description="its place, 1, 2, …, when left out")
    query: str | None = None
    vectors: QueryVectors | None = None

    @model_validator(mode="after")
    def _one_query(self) -> BatchQuery:
        return _one_of(self)


class BatchRequest(Asked):
    """Several queries."""

    model_config = ConfigDict(
        json_schema_extra=_example(
            queries=[{"id": "q1", "query": "relativity"}, {"id": "q2", "query": "evolution"}], k=3
        )
    )

    queries: list[BatchQuery] = Field(min_length=1)


Query = TypeVar("Query", SearchRequest, BatchQuery)


def _one_of(given: Query) -> Query:
    if (given.query is None) == (given.vectors is None):
        raise ValueError("give either query or vectors")
    return given


class Hit(Answer):
    """A ranked document."""

    rank: int
    id: str
    score: float
    title: str | None = None
    text: str | None = None
    text_cut: bool | None = Field(None, description="true: title or text is cut; GET /v1/documents has the whole")
    metadata: dict[str, Any] | None = None
    explanation: dict[str, Any] | None = None


class Timings(Answer):
    """Where the time went, in milliseconds."""

    queue_ms: float
    encode_ms: float
    scan_ms: float
    documents_ms: float
    explain_ms: float
    total_ms: float


class Found(Answer):
    """What every search tells of itself."""

    generation: int = Field(description="the commit that answered")
    tau: float = Field(description="the τ in use")
    dot_products: int
    timings: Timings


class SearchAnswer(Found):
    """The hits of one query, best first."""

    query: str | None
    hits: list[Hit]


class BatchResult(Answer):
    """The hits of one query of several."""

    query_id: str
    query: str | None
    hits: list[Hit]


class BatchAnswer(Found):
    """The hits of several queries, in their order."""

    results: list[BatchResult]


# ---- explain ---------------------------------------------------------------------------------------------------------


class ExplainRequest(Body):
    """Which query token met which document token, and its share."""

    model_config = ConfigDict(json_schema_extra=_example(query="who proposed relativity", id="d1"))

    query: str
    id: str = Field(description="of the document")
    tau: float | None = Field(None, ge=0)
    semantic_mode: SemanticMode = "auto"


class TextRequest(Body):
    """Every token of a text with its keys and weights."""

    model_config = ConfigDict(json_schema_extra=_example(text="Einstein proposed relativity.", side="document"))

    text: str
    side: Literal["document", "query"] = "document"
    tau: float | None = Field(None, ge=0)


class ExplainTimings(Answer):
    """In milliseconds."""

    total_ms: float


class ExplainAnswer(Answer):
    """The JSON of `citadel.explain`, see docs/reference/explanation.md."""

    explanation: dict[str, Any]
    generation: int
    timings: ExplainTimings


# ---- documents -------------------------------------------------------------------------------------------------------


class StoredDocument(Answer):
    """A document as it was given."""

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
    "required": ["id"],
    "anyOf": [{"required": ["text"]}, {"required": ["title"]}],
    "description": "an id and a text, or a title in its place; all other fields are metadata",
}


ChangesToken = Annotated[str, Field(pattern=TOKEN_PATTERN, description="as an add or a delete answered it")]


class ChangeRequest(Body):
    """What every change of documents can ask for."""

    commit: bool = Field(False, description="commit in the same request")
    changes: list[ChangesToken] = Field([], max_length=1000, description="earlier changes that must not be lost")


class AddRequest(ChangeRequest):
    """Documents to take in; an id that is there is replaced."""

    model_config = ConfigDict(
        json_schema_extra=_example(
            documents=[{"id": "d9", "title": "Gravity", "text": "Newton proposed gravity.", "year": 1687}], commit=True
        )
    )

    documents: list[dict[str, Any]] = Field(min_length=1, json_schema_extra={"items": _DOCUMENT})


class DeleteRequest(ChangeRequest):
    """Documents to delete; unknown ids are passed over."""

    model_config = ConfigDict(json_schema_extra=_example(ids=["d9"]))

    ids: list[str] = Field(min_length=1)


class CommitRequest(Body):
    """The changes that must be durable when the commit has answered."""

    model_config = ConfigDict(json_schema_extra=_example())

    changes: ChangesToken | Annotated[list[ChangesToken], Field(max_length=1000)] | None = Field(
        None, description="one token or several; without one, whatever waits"
    )

    @property
    def tokens(self) -> list[str]:
        return [self.changes] if isinstance(self.changes, str) else self.changes or []


class Waiting(Answer):
    """What a change leaves behind."""

    waiting: int = Field(description="changes that wait for a commit")
    generation: int


class Accepted(Waiting):
    """A change that was accepted."""

    changes: str = Field(description="a token of this change, for POST /v1/commit")


class Added(Accepted):
    """How many were taken in."""

    added: int


class Deleted(Accepted):
    """How many there were."""

    deleted: int


class Committed(Waiting):
    """The index after a commit."""

    documents: int


# ---- the rest --------------------------------------------------------------------------------------------------------


class ErrorDetail(Answer):
    """A word for a program, a sentence for a reader."""

    code: str
    message: str
    request_id: str | None


class ErrorAnswer(Answer):
    """Every answer that is not a 200."""

    error: ErrorDetail


class ListSize(BaseModel):
    """How many lists have so many postings, from … to."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True)

    from_: int = Field(alias="from")
    to: int
    lists: int
    postings: int


class LargeKey(Answer):
    """A long list: its key (none for bm25), its word (none for given vectors)."""

    key: int | None
    word: str | None
    postings: int


class Memory(Answer):
    """In bytes."""

    resident_bytes: int
    index_bytes: int
    model_bytes: int


class ModelFigures(Answer):
    """What the index's vectors are."""

    router: str
    fingerprint: str
    has_text: bool
    token_dimension: int
    semantic_dimension: int


class ServerFigures(Answer):
    """The server's own state."""

    version: str
    uptime_seconds: float
    instruction_set: str
    read_only: bool
    waiting: int
    workers: int
    queued: int
    reload_error: str | None
    limits: dict[str, int]


class StatsAnswer(Answer):
    """The index in numbers."""

    index: dict[str, Any]
    list_sizes: list[ListSize]
    largest_keys: list[LargeKey]
    memory: Memory
    model: ModelFigures
    server: ServerFigures


class Health(Answer):
    """How the server is."""

    status: Literal["live", "ready", "stopping"]
    generation: int | None = None
