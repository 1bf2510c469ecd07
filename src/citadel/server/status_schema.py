"""Response models of errors, `/v1/stats` and `/health/`."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from citadel.server.base_schema import ResponseModel


class ErrorDetail(ResponseModel):
    """Code, message and request id of an error."""

    code: str
    message: str
    request_id: str | None


class ErrorResponse(ResponseModel):
    """Any response other than 200."""

    error: ErrorDetail


class ListSizeBin(BaseModel):
    """One bin of the histogram of list lengths."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True)

    from_: int = Field(alias="from")
    to: int
    lists: int
    postings: int


class KeySize(ResponseModel):
    """The length of one list: its key (null for bm25) and word (null for given vectors)."""

    key: int | None
    word: str | None
    postings: int


class MemoryStats(ResponseModel):
    """Sizes in bytes."""

    resident_bytes: int
    index_bytes: int
    model_bytes: int


class ModelStats(ResponseModel):
    """Router, fingerprint and vector dimensions of the index."""

    router: str
    fingerprint: str
    has_text: bool
    token_dimension: int
    semantic_dimension: int


class ServerStats(ResponseModel):
    """State of the server process."""

    version: str
    uptime_seconds: float
    instruction_set: str
    read_only: bool
    waiting: int
    workers: int
    queued: int
    reload_error: str | None
    limits: dict[str, int]


class StatsResponse(ResponseModel):
    """Statistics of the index, its model and the server."""

    index: dict[str, Any]
    list_sizes: list[ListSizeBin]
    largest_keys: list[KeySize]
    example_queries: list[str] = Field(description="titles of some documents, to try a search with")
    memory: MemoryStats
    model: ModelStats
    server: ServerStats


class IndexModel(ResponseModel):
    """An index of the server."""

    name: str
    documents: int
    generation: int
    router: str
    read_only: bool


class IndexesResponse(ResponseModel):
    """The indexes that a token may read."""

    indexes: list[IndexModel]


class FieldModel(ResponseModel):
    """A metadata field and what it holds."""

    name: str
    kind: Literal["number", "boolean", "string", "date", "list", "nested", "mixed"] = Field(
        description="what a filter can compare: all but nested and mixed; date: every string is an ISO date"
    )


class FieldsResponse(ResponseModel):
    """The metadata fields of the index, in order of first use."""

    fields: list[FieldModel]
    generation: int


class HealthResponse(ResponseModel):
    """Health of the server."""

    status: Literal["live", "ready", "stopping"]
    generation: int | None = None
