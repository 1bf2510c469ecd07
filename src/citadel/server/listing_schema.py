"""Request and response models of `/v1/count`, `/v1/facets`, `/v1/list` and `/v1/metadata`."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import ConfigDict, Field, model_validator

from citadel.server.base_schema import RequestModel, ResponseModel, example
from citadel.server.filter_schema import (
    FACET_VALUES,
    MAX_FACET_VALUES,
    MAX_FACETS,
    FacetValue,
    FieldName,
    FilterObject,
)
from citadel.server.kept_generations import CURSOR_PATTERN
from citadel.server.schema import DocumentModel, require_ids_or_filter


class CountRequest(RequestModel):
    """The documents to count: those that match a filter, all by default."""

    model_config = ConfigDict(json_schema_extra=example(filter={"year": {"$gte": 1900}}))

    filter: FilterObject | None = None


class CountResponse(ResponseModel):
    """Number of documents."""

    count: int
    generation: int


class FacetsRequest(RequestModel):
    """Metadata fields whose values are counted over the documents that match a filter."""

    model_config = ConfigDict(json_schema_extra=example(fields=["year"], filter={"year": {"$gte": 1900}}))

    fields: list[FieldName] = Field(min_length=1, max_length=MAX_FACETS)
    filter: FilterObject | None = None
    limit: int = Field(FACET_VALUES, ge=1, le=MAX_FACET_VALUES, description="values per field")


class FacetsResponse(ResponseModel):
    """The most frequent values of each field."""

    facets: dict[str, list[FacetValue]]
    matching: int = Field(description="documents that match the filter; all documents without one")
    generation: int


class ListRequest(RequestModel):
    """One page of the documents that match a filter, in commit order."""

    model_config = ConfigDict(json_schema_extra=example(filter={"year": {"$gte": 1900}}, limit=10))

    filter: FilterObject | None = None
    limit: int = Field(100, ge=1, description="documents per page")
    cursor: Annotated[str, Field(pattern=CURSOR_PATTERN)] | None = Field(
        None, description="`cursor` of the previous page; send the same filter"
    )
    documents: bool = Field(True, description="return whole documents; false: ids only")


class ListedDocument(DocumentModel):
    """A document of a listing."""

    text_cut: bool | None = Field(
        None, description="true if title or text is cut; GET /v1/documents returns the whole"
    )


class ListResponse(ResponseModel):
    """One page of documents or ids."""

    documents: list[ListedDocument] | None = None
    ids: list[str] | None = None
    cursor: str | None = Field(description="for the next page; null after the last one")
    generation: int = Field(description="the generation that is listed, the same on every page")


class MetadataRequest(RequestModel):
    """New metadata for documents, by id or by filter."""

    model_config = ConfigDict(json_schema_extra=example(ids=["d1"], values={"year": 1905, "lang": None}))

    ids: list[str] | None = Field(None, min_length=1)
    filter: FilterObject | None = None
    values: dict[str, Any] = Field(
        min_length=1, description="fields to change; null removes a field, others stay"
    )

    @model_validator(mode="after")
    def _one_choice(self) -> MetadataRequest:
        return require_ids_or_filter(self)


class MetadataResponse(ResponseModel):
    """Number of documents whose metadata were changed; the change is committed."""

    updated: int
    generation: int
