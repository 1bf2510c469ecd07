"""The structured results of the MCP tools; clients get their JSON Schema."""

from __future__ import annotations

from typing import Any

from citadel.integrations import MissingPackageError

try:
    from pydantic import BaseModel, ConfigDict, Field
except ImportError as error:
    raise MissingPackageError("mcp", error) from None


class HitResult(BaseModel):
    """A hit of `search`."""

    rank: int
    id: str
    score: float
    relevance: float | None = Field(description="From 0 to 1; null where the model has no calibration.")
    title: str
    text: str = Field(description="The best passage of the document, up to the length limit.")
    text_start: int = Field(description="Position of `text` in the document's text.")
    is_whole: bool = Field(description="Whether `text` is all of the document's text.")
    metadata: dict[str, Any]


class SearchResult(BaseModel):
    """The result of `search`."""

    hits: list[HitResult]
    query_cut: bool = Field(description="Whether the query was longer than the model reads.")


class GetResult(BaseModel):
    """The result of `get`."""

    id: str
    title: str
    text: str
    metadata: dict[str, Any]
    total_characters: int
    next_start: int | None = Field(description="`start` of the next part; null after the last.")


class MatchResult(BaseModel):
    """Words of a query and of a document that met under one key."""

    query: str
    document: str
    gain: float = Field(description="What the match added to the score.")
    share: float | None


class ExplainResult(BaseModel):
    """The result of `explain`; the gains add up to the score."""

    id: str
    title: str
    score: float | None = Field(description="null if the document does not match at all.")
    matches: list[MatchResult]
    unmatched: list[str] = Field(description="Words of the query that the document lacks.")
    semantic_gain: float | None = Field(description="What the vectors of the whole texts added.")
    semantic_share: float | None
    snippet: str


class StatsResult(BaseModel):
    """The result of `stats`."""

    documents: int
    generation: int
    router: str
    fields: dict[str, str] = Field(description="Metadata fields with their types.")
    figures: dict[str, Any] = Field(description="As printed by `citadel stats`.")


class NewDocument(BaseModel):
    """A document to add."""

    model_config = ConfigDict(extra="forbid")

    id: str | None = Field(None, description="Replaces the document with this id; generated if missing.")
    title: str = ""
    text: str
    metadata: dict[str, Any] = Field(default_factory=dict, description="Fields for filters.")


class AddResult(BaseModel):
    """The result of `add`."""

    added: int
    generated_ids: list[str] = Field(description="Ids of documents that came without one, in order.")
    cut: int = Field(description="Documents that were longer than the model reads.")
    generation: int


class DeleteResult(BaseModel):
    """The result of `delete`."""

    deleted: int
    generation: int
